"""Blocks of simulated GPU memory, the pools of free ones, and the addresses that segments get.

Source: struct Block, BlockPool, alloc_found_block and try_merge_blocks in
c10/cuda/CUDACachingAllocator.cpp of torch 2.11.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 2**20
MIN_BLOCK = 512  # kMinBlockSize
SMALL_SIZE = MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT = 20 * MIB  # kLargeBuffer, large_segment_size()
MIN_LARGE = 10 * MIB  # kMinLargeAlloc: from here a request gets a segment of its own
ROUND_LARGE = 2 * MIB  # kRoundLarge
# An expandable segment reserves addresses for 9/8 of the card; without a card, for this much.
UNBOUNDED = 2**42


def round_up(value: int, step: int) -> int:
    """Return the least multiple of `step` that is not below `value`.

    >>> round_up(1, 512), round_up(1024, 512)
    (512, 1024)
    """
    return (value + step - 1) // step * step


class Block:
    """A piece of a segment, in use or free; `size` in bytes, rounded; `requested` as asked for."""

    __slots__ = ("address", "is_free", "is_mapped", "next", "pool", "prev", "requested", "size")

    def __init__(self, address: int, size: int, pool: Pool | None) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.prev: Block | None = None
        self.next: Block | None = None
        self.is_free, self.is_mapped, self.requested = True, True, 0

    def __repr__(self) -> str:
        state = "free" if self.is_free else "in use"
        return f"Block({self.size:,} bytes at {self.address:#x}, {state})"

    @property
    def is_split(self) -> bool:
        """Whether the segment holds more blocks than this one."""
        return self.prev is not None or self.next is not None


class Pool:
    """The free blocks of one size class on one stream, by (size, address), the unmapped by address.

    Source: BlockPool; the keys are BlockComparatorSize's and BlockComparatorAddress's.
    """

    __slots__ = ("free", "is_small", "page", "unmapped")

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.page = SMALL_SEGMENT if is_small else LARGE_SEGMENT
        self.free: list[tuple[int, int, Block]] = []
        self.unmapped: list[tuple[int, Block]] = []

    def add(self, block: Block) -> None:
        """List a free block, mapped or not."""
        if block.is_mapped:
            insort(self.free, (block.size, block.address, block))
        else:
            insort(self.unmapped, (block.address, block))

    def remove(self, block: Block) -> None:
        """Take a free block off its list."""
        if block.is_mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, (block.address,))]


class Addresses:
    """Where the driver puts segments: each new one below all others, or in the highest free gap.

    Not documented, but measured: with falling addresses the reserved bytes of runs on an H200
    (driver for CUDA 13, torch 2.11) come out to the byte where rising ones miss them by up to 8 %.
    Only the order matters here: of free blocks of one size the allocator takes the one with the
    lowest address.
    """

    __slots__ = ("bottom", "gaps")

    def __init__(self) -> None:
        self.bottom: int = 2**22 * LARGE_SEGMENT  # whole pages of either pool
        self.gaps: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """Return the address of a new segment of `size` bytes."""
        size = round_up(size, SMALL_SEGMENT)
        for index in range(len(self.gaps) - 1, -1, -1):
            address, length = self.gaps[index]
            if length >= size:
                rest = [(address, length - size)] if length > size else []
                self.gaps[index : index + 1] = rest
                return address + length - size
        self.bottom -= size
        return self.bottom

    def give(self, address: int, size: int) -> None:
        """Make a range free again."""
        index = bisect_left(self.gaps, (address, 0))
        size = round_up(size, SMALL_SEGMENT)
        if index < len(self.gaps) and self.gaps[index][0] == address + size:
            size += self.gaps.pop(index)[1]
        if index and sum(self.gaps[index - 1]) == address:
            index -= 1
            address, before = self.gaps.pop(index)
            size += before
        if address == self.bottom:
            self.bottom = address + size
        else:
            self.gaps.insert(index, (address, size))


def insert_behind(block: Block, new: Block) -> None:
    """Link `new` into the segment, behind `block`."""
    new.prev, new.next = block, block.next
    if new.next is not None:
        new.next.prev = new
    block.next = new


def split(block: Block, size: int) -> None:
    """Cut a block to `size`; the rest is free."""
    pool = block.pool
    assert pool is not None
    rest = Block(block.address + size, block.size - size, pool)
    insert_behind(block, rest)
    block.size = size
    insort(pool.free, (rest.size, rest.address, rest))


def merge(block: Block, pool: Pool) -> None:
    """Join a free block (in no list now) with free neighbours that are mapped as it is."""
    near = block.prev
    if near is not None and near.is_free and near.is_mapped == block.is_mapped:
        pool.remove(near)
        block.address, block.prev = near.address, near.prev
        block.size += near.size
        if block.prev is not None:
            block.prev.next = block
    near = block.next
    if near is not None and near.is_free and near.is_mapped == block.is_mapped:
        pool.remove(near)
        block.next = near.next
        block.size += near.size
        if block.next is not None:
            block.next.prev = block
