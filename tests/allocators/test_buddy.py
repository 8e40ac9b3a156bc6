"""Buddy placement: power-of-two chunks over a pool that need not be one."""

from __future__ import annotations

import pytest

from allocators.base import Allocator, Ask, Holder
from allocators.buddy import Buddy
from allocators.checker import Checked
from tests.conformance.allocator import AllocatorConformance, fill


class TestBuddy(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Buddy(capacity, max_model_len)


class TestBuddyOverAPowerOfTwo(AllocatorConformance):
    capacity = 256

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Buddy(capacity, max_model_len)


PAPER = 15_728  # slots of OPT-13B on a 40 GB A100
TILES = [8192, 4096, 2048, 1024, 256, 64, 32, 16]


def test_the_papers_pool_is_tiled_by_eight_chunks() -> None:
    """Each tile can be taken whole, and then nothing is left."""
    allocator = Checked(Buddy(PAPER, PAPER))
    for tile in TILES:
        assert allocator.admit([Holder(f"tile {tile}")], Ask(tile)) == 0
    assert allocator.free_slots == 0


def test_seven_requests_of_the_longest_length_fit_the_papers_pool() -> None:
    allocator = Checked(Buddy(PAPER, 2048))
    assert len(list(fill(allocator, 2048))) == 7
    assert allocator.memory(Ask(2048)).short == 1392


@pytest.mark.parametrize("length", [16, 64, 1024])
def test_freed_chunks_join_until_the_tiles_are_whole_again(length: int) -> None:
    allocator = Buddy(PAPER, PAPER)
    seqs = list(fill(allocator, length))
    for seq in seqs[::2] + seqs[1::2]:
        allocator.free(seq)
    assert all(allocator.admit([Holder(f"tile {tile}")], Ask(tile)) == 0 for tile in TILES)


def test_neighbours_that_are_no_buddies_do_not_join() -> None:
    """Two free chunks of 16 side by side are no chunk of 32 when they belong to different parents."""
    allocator = Checked(Buddy(64, 64))
    quarters = list(fill(allocator, 16))
    for seq in quarters[1:3]:
        allocator.free(seq)
    assert allocator.spans(quarters[0]) == [(0, 16)]
    assert allocator.admit([Holder("half")], Ask(32)) is None
    assert allocator.memory(Ask(32)).fragmented == 32


def test_a_chunk_is_the_next_power_of_two() -> None:
    allocator = Buddy(1024, 1024)
    assert [allocator.footprint(tokens) for tokens in (1, 2, 3, 16, 17, 1023, 1024)] == [1, 2, 4, 16, 32, 1024, 1024]


def test_the_rest_of_a_chunk_is_rounding() -> None:
    allocator = Checked(Buddy(1024, 1024))
    allocator.admit([Holder("sequence")], Ask(10, promise=33, final=25))
    books = allocator.memory()
    assert (books.reserved, books.over_reserved, books.rounding) == (25, 8, 31)


def test_the_lowest_chunk_of_the_smallest_sufficient_size_is_taken() -> None:
    allocator = Checked(Buddy(64, 64))
    eighths = list(fill(allocator, 8))
    for i in (1, 4, 5):  # free are [8, 16) and [32, 48)
        allocator.free(eighths[i])
    seq = Holder("small")
    allocator.admit([seq], Ask(5))
    assert allocator.spans(seq) == [(8, 8)]


@pytest.mark.parametrize("capacity", [1, 7, 96, 1000, PAPER])
def test_nothing_larger_than_the_largest_tile_ever_fits(capacity: int) -> None:
    largest = 1 << (capacity.bit_length() - 1)
    assert Buddy(capacity, capacity).footprint(largest) == largest
    assert Buddy(capacity, 2 * capacity).footprint(largest + 1) is None
