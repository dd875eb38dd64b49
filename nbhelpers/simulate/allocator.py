"""PyTorch's caching allocator for CUDA, without CUDA: blocks, pools, segments, addresses."""

from __future__ import annotations

from bisect import bisect_left, insort

# ------------------------------------------------------------------------------------------------
# Blocks of simulated GPU memory, the pools of free ones, and the addresses that segments get.
#
# Source: struct Block, BlockPool, alloc_found_block and try_merge_blocks in
# c10/cuda/CUDACachingAllocator.cpp of torch 2.11.


MIB = 2**20
MIN_BLOCK = 512  # kMinBlockSize
SMALL_SIZE = MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT = 20 * MIB  # kLargeBuffer, large_segment_size()
MIN_LARGE = 10 * MIB  # kMinLargeAlloc: from here a request gets a segment of its own
ROUND_LARGE = 2 * MIB  # kRoundLarge
# Addresses that an expandable segment reserves: more than any card has.
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


# ------------------------------------------------------------------------------------------------
# PyTorch's caching allocator for CUDA, without CUDA: what it hands out and takes from a card.
#
# Source: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h of torch 2.11, with their
# default settings (no `max_split_size`, no rounding to powers of two, no garbage collection), or
# with `expandable_segments`. The rules are the same from torch 2.6 on.
#
# Limits: one device; no CUDA graphs; a block is free at once when it is freed, as if no other
# stream had used it. The driver's addresses decide between free blocks of one size, and how the
# driver chooses them is not documented; `Addresses` says what is assumed.


class CachingAllocator:
    """Hand out simulated memory as PyTorch does on a GPU, and count it as PyTorch does.

    Args:
        expandable_segments: As in `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.

    `allocated`, `reserved` and `requested` are bytes now, `peak_…` the most since `reset_peaks`.
    """

    def __init__(self, *, expandable_segments: bool = False) -> None:
        self.expandable_segments = expandable_segments
        self.allocated = self.reserved = self.requested = 0
        self.peak_allocated = self.peak_reserved = self.peak_requested = 0
        self.num_device_alloc = self.num_device_free = 0
        self.num_active = self.num_segments = 0
        self._large, self._small = Pool(is_small=False), Pool(is_small=True)
        self._addresses = Addresses()

    def malloc(self, size: int) -> Block:
        """Take `size` bytes; torch asks for none with 0, which costs nothing."""
        if size <= 0:
            block = Block(0, 0, None)
            block.is_free = False
            return block
        rounded = (size + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK
        pool = self._small if rounded <= SMALL_SIZE else self._large
        block = self._cached(pool, rounded) or self._new(pool, rounded)
        rest = block.size - rounded
        if rest >= MIN_BLOCK if pool.is_small or self.expandable_segments else rest > SMALL_SIZE:
            split(block, rounded)
        block.is_free, block.requested = False, size
        self.allocated += block.size
        self.requested += size
        self.num_active += 1
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        if self.requested > self.peak_requested:
            self.peak_requested = self.requested
        return block

    def free(self, block: Block) -> None:
        """Give a block back to its pool, merged with free neighbours."""
        pool = block.pool
        if pool is None:
            return
        if block.is_free:
            raise ValueError(f"{block} was freed already")
        self.allocated -= block.size
        self.requested -= block.requested
        self.num_active -= 1
        block.is_free = True
        merge(block, pool)
        insort(pool.free, (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Return to the card every segment (or page) that no block in use needs."""
        for pool in (self._large, self._small):
            for _, _, block in list(pool.free):
                if self.expandable_segments:
                    self._unmap(block, pool)
                elif not block.is_split:
                    pool.remove(block)
                    self._addresses.give(block.address, block.size)
                    self.reserved -= block.size
                    self.num_segments -= 1
                    self.num_device_free += 1

    def reset_peaks(self) -> None:
        """Begin the peaks anew from what is taken now."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved
        self.peak_requested = self.requested

    def memory_stats(self) -> dict[str, int]:
        """Return the counts under the names of `torch.cuda.memory_stats` (bytes; of all pools).

        `inactive_split` and its bytes: free blocks that share a segment; none are counted with
        expandable segments, as in PyTorch.
        """
        shared: list[int] = []
        if not self.expandable_segments:
            for pool in (self._large, self._small):
                shared += [size for size, _, block in pool.free if block.is_split]
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak_allocated,
            "active_bytes.all.current": self.allocated,
            "active_bytes.all.peak": self.peak_allocated,
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.peak_reserved,
            "requested_bytes.all.current": self.requested,
            "requested_bytes.all.peak": self.peak_requested,
            "active.all.current": self.num_active,
            "segment.all.current": self.num_segments,
            "inactive_split.all.current": len(shared),
            "inactive_split_bytes.all.current": sum(shared),
            "num_alloc_retries": 0,
            "num_ooms": 0,
            "num_device_alloc": self.num_device_alloc,
            "num_device_free": self.num_device_free,
        }

    def _cached(self, pool: Pool, size: int) -> Block | None:
        """Take the best fit out of the free blocks. Source: get_free_block."""
        free = pool.free
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        if self.expandable_segments:
            # A block before unmapped addresses counts as large as it could grow.
            while index + 1 < len(free) and _room(free[index + 1][2]) < _room(free[index][2]):
                index += 1
        return free.pop(index)[2]

    def _new(self, pool: Pool, size: int) -> Block:
        """Take memory from the card. Source: alloc_block."""
        if self.expandable_segments:
            return self._expand(pool, size)
        segment = _segment_size(size)
        self.num_segments += 1
        self._reserve(segment)
        return Block(self._addresses.take(segment), segment, pool)

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.num_device_alloc += 1
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved

    def _expand(self, pool: Pool, size: int) -> Block:
        """Map pages behind the lowest place that has room.

        Source: try_allocate_expandable_block.
        """
        block = self._place(pool, size)
        if not block.is_mapped:
            self._map(block, pool, min(block.size, size))
        while block.size < size:
            behind = block.next
            assert behind is not None
            self._map(behind, pool, min(size - block.size, behind.size))
            block = behind
        pool.remove(block)
        return block

    def _place(self, pool: Pool, size: int) -> Block:
        """Return the lowest free or unmapped block from which `size` bytes could be had.

        Source: find_expandable_block.
        """
        for _, block in pool.unmapped:
            if block.prev is not None and block.prev.is_free:
                block = block.prev
            free_bytes, each = 0, block
            while free_bytes < size and each is not None and each.is_free:
                free_bytes, each = free_bytes + each.size, each.next
            if free_bytes >= size:
                return block
        length = round_up(max(UNBOUNDED + UNBOUNDED // 8, size), LARGE_SEGMENT)
        block = Block(self._addresses.take(length), length, pool)
        block.is_mapped = False
        pool.add(block)
        return block

    def _map(self, block: Block, pool: Pool, size: int) -> None:
        """Back the front of an unmapped block with pages, and make it free. Source: map_block."""
        size = round_up(size, pool.page)
        pool.remove(block)
        if size < block.size:
            rest = Block(block.address + size, block.size - size, pool)
            rest.is_mapped = False
            insert_behind(block, rest)
            pool.add(rest)
            block.size = size
        block.is_mapped = True
        merge(block, pool)
        pool.add(block)
        self._reserve(size)

    def _unmap(self, block: Block, pool: Pool) -> None:
        """Return to the card the pages that lie wholly in a free block. Source: unmap_block."""
        first = round_up(block.address, pool.page)
        last = (block.address + block.size) // pool.page * pool.page
        if first >= last:
            return
        pool.remove(block)
        if last < block.address + block.size:
            behind = Block(last, block.address + block.size - last, pool)
            insert_behind(block, behind)
            pool.add(behind)
        if first > block.address:
            front, block = block, Block(first, last - first, pool)
            insert_behind(front, block)
            front.size = first - front.address
            pool.add(front)
        block.size, block.is_mapped = last - first, False
        merge(block, pool)
        if block.is_split:
            pool.add(block)
        else:
            self._addresses.give(block.address, block.size)
        self.reserved -= last - first
        self.num_device_free += 1


def _segment_size(size: int) -> int:
    """Return what is asked of the card for a rounded request. Source: get_allocation_size.

    >>> [_segment_size(n) // 2**20 for n in (512, 2**20, 2**20 + 512, 10 * 2**20, 21 * 2**20)]
    [2, 2, 20, 10, 22]
    """
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MIN_LARGE else round_up(size, ROUND_LARGE)


def _room(block: Block) -> int:
    behind = block.next
    return block.size + (behind.size if behind is not None and not behind.is_mapped else 0)
