"""Promise: the simulated allocator hands out and reserves what PyTorch's does, byte for byte.

Worked by hand from the rules of c10/cuda/CUDACachingAllocator.cpp; random histories keep the laws
that hold for any history. Every GPU of gpus.yaml has a card, and an unknown one gets its kin's.
"""

from __future__ import annotations

import random

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.gpus import Gpu, known_gpus
from nbhelpers.simulate.allocator import CachingAllocator
from nbhelpers.simulate.cards import describe_card, find_card

MIB = 2**20


@pytest.mark.parametrize(
    ("sizes", "allocated", "reserved"),
    [
        ([0], 0, 0),
        ([1], 512, 2 * MIB),
        ([513], 1024, 2 * MIB),
        ([MIB, MIB], 2 * MIB, 2 * MIB),
        ([MIB, MIB, 1], 2 * MIB + 512, 4 * MIB),
        ([MIB + 1], MIB + 512, 20 * MIB),
        ([9 * MIB, 9 * MIB], 18 * MIB, 20 * MIB),
        ([10 * MIB], 10 * MIB, 10 * MIB),
        ([19 * MIB], 20 * MIB, 20 * MIB),  # a rest of 1 MiB is not split off, it counts
        ([19 * MIB - 1], 20 * MIB, 20 * MIB),
        ([19 * MIB - 512], 19 * MIB - 512, 20 * MIB),  # 512 bytes more, and it is split off
    ],
)
def test_requests_are_rounded_and_reserved_as_worked_out_by_hand(sizes, allocated, reserved):
    allocator = CachingAllocator()
    for size in sizes:
        allocator.malloc(size)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


@pytest.mark.parametrize(
    ("sizes", "allocated", "reserved"),
    [
        ([1], 512, 2 * MIB),
        ([MIB + 1], MIB + 512, 20 * MIB),
        ([19 * MIB], 19 * MIB, 20 * MIB),  # any rest is split off
        ([21 * MIB], 21 * MIB, 40 * MIB),
        ([21 * MIB, 19 * MIB], 40 * MIB, 40 * MIB),
        ([21 * MIB, 20 * MIB], 41 * MIB, 60 * MIB),
    ],
)
def test_expandable_segments_map_whole_pages_behind_each_other(sizes, allocated, reserved):
    allocator = CachingAllocator(expandable_segments=True)
    for size in sizes:
        allocator.malloc(size)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_the_smallest_free_block_that_fits_is_taken_and_of_equals_the_lowest():
    allocator = CachingAllocator()
    blocks = [allocator.malloc(n * MIB) for n in (40, 12, 30, 12)]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(11 * MIB + MIB // 2).address == blocks[3].address
    assert allocator.malloc(12 * MIB).address == blocks[1].address
    assert allocator.malloc(12 * MIB).address == blocks[2].address
    assert allocator.reserved == 94 * MIB


def test_free_neighbours_merge_into_a_segment_that_can_be_returned():
    allocator = CachingAllocator()
    blocks = [allocator.malloc(5 * MIB) for _ in range(4)]
    for index in (0, 2):
        allocator.free(blocks[index])
    stats = allocator.memory_stats()
    assert stats["inactive_split.all.current"] == 2
    assert stats["inactive_split_bytes.all.current"] == 10 * MIB
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB
    for index in (1, 3):
        allocator.free(blocks[index])
    assert allocator.memory_stats()["inactive_split.all.current"] == 0
    allocator.empty_cache()
    assert (allocator.reserved, allocator.peak_reserved) == (0, 20 * MIB)


def test_pages_inside_a_free_block_are_unmapped_and_filled_again_from_below():
    allocator = CachingAllocator(expandable_segments=True)
    first, middle, last = (allocator.malloc(n * MIB) for n in (10, 60, 30))
    allocator.free(middle)
    allocator.empty_cache()  # of 10..70 the pages 20..60 are whole
    assert allocator.reserved == 60 * MIB
    again = allocator.malloc(25 * MIB)
    assert (again.address, allocator.reserved) == (first.address + 10 * MIB, 80 * MIB)
    for block in (first, last, again):
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_a_block_is_not_freed_twice():
    allocator = CachingAllocator()
    block = allocator.malloc(12 * MIB)
    allocator.free(block)
    with pytest.raises(ValueError, match="freed already"):
        allocator.free(block)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_any_history_keeps_the_laws(expandable, seed):
    chance = random.Random(seed)
    allocator = CachingAllocator(expandable_segments=expandable)
    live, peak = [], 0
    for turn in range(1500):
        if live and chance.random() < 0.48:
            allocator.free(live.pop(chance.randrange(len(live))))
        else:
            live.append(allocator.malloc(int(2 ** chance.uniform(3, 26.5))))
        if turn % 397 == 0:
            allocator.empty_cache()
        peak = max(peak, allocator.allocated)
        if turn % 50 == 0:
            _check(allocator, live)
    assert allocator.peak_allocated == peak
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved, allocator.requested) == (0, 0, 0)


def _check(allocator: CachingAllocator, live: list) -> None:
    """Blocks tile their segments, nothing overlaps, free neighbours are merged, sums agree."""
    heads = {}
    for block in [*live, *(b for p in (allocator._large, allocator._small) for _, _, b in p.free)]:
        while block.prev is not None:
            block = block.prev
        heads[block.address] = block
    mapped, end = 0, 0
    for address in sorted(heads):
        assert address >= end
        block, end = heads[address], address
        while block is not None:
            assert block.address == end
            behind = block.next
            both_free = behind is not None and block.is_free and behind.is_free
            assert not (both_free and block.is_mapped == behind.is_mapped)
            mapped += block.size * block.is_mapped
            end, block = end + block.size, behind
    in_use = sum(block.size for block in live)
    assert mapped == allocator.reserved <= allocator.peak_reserved
    assert in_use == allocator.allocated <= allocator.reserved
    assert sum(block.requested for block in live) == allocator.requested <= in_use


def test_every_gpu_of_the_table_is_an_exact_card():
    cards = {key: find_card(key) for key in known_gpus()}
    assert all(card.is_exact for card in cards.values())
    assert {card.capability for card in cards.values()} >= {70, 75, 80, 86, 89, 90, 120}
    assert (cards["h100"].multiprocessors, cards["h200"].context_bytes) == (132, 805306368)


def test_an_unknown_card_takes_its_size_from_its_nearest_relative():
    card = find_card("sm_86:24GiB")
    assert (card.multiprocessors, card.threads_per_multiprocessor) == (82, 1536)
    assert (card.memory_total_bytes, card.is_exact) == (24 * 2**30, False)
    assert describe_card(87, 2**36, name="Orin").capability == 87
    with pytest.raises(ConfigError, match=r"capability 6\.1"):
        find_card("6.1:8GiB")
    with pytest.raises(ConfigError, match="did you mean h100"):
        find_card("h1000")


def test_a_mig_instance_has_the_multiprocessors_of_its_slices():
    name = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    gpu = Gpu(
        index=0,
        uuid="",
        name=name,
        key=None,
        memory_total_bytes=20 * 2**30,
        memory_free_bytes=20 * 2**30,
        compute_capability=(8, 0),
        is_mig=True,
    )
    assert find_card(gpu).multiprocessors == 42
