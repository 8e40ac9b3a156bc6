"""Contiguous placement: slab lanes, first fit and best fit."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import settings

from allocators.base import Allocator, Ask, Holder
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from tests.conformance.allocator import AllocatorConformance
from tests.conformance.effort import cases


class TestSlab(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Contiguous(capacity, max_model_len, fit="slab")


class TestFirstFit(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Contiguous(capacity, max_model_len, fit="first_fit")


class TestBestFit(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Contiguous(capacity, max_model_len, fit="best_fit")


class TestCompacting(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Contiguous(capacity, max_model_len, fit="first_fit", compaction="on_refusal")


class TestGrowing(AllocatorConformance):
    extends_past_growth = False

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Contiguous(capacity, max_model_len, fit="best_fit", growth=5)


class TestCompactingAndGrowing(AllocatorConformance):
    effort = settings(AllocatorConformance.effort, max_examples=cases(100))
    extends_past_growth = False

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Contiguous(capacity, max_model_len, fit="best_fit", compaction="on_refusal", growth=1)


Fit = Literal["first_fit", "best_fit"]


def admitted(allocator: Checked, *lengths: int) -> list[Holder]:
    seqs = [Holder(f"extent {i} of {length}") for i, length in enumerate(lengths)]
    for seq, length in zip(seqs, lengths, strict=True):
        assert allocator.admit([seq], Ask(length, promise=length, final=length)) == 0
    return seqs


def start(allocator: Checked, seq: Holder) -> int:
    return int(allocator.tables[seq.row, 0])


def with_holes_of(fit: Fit, *lengths: int) -> Checked:
    """A full pool with holes of these lengths, in this order of address, one slot between them."""
    allocator = Checked(Contiguous(sum(lengths) + len(lengths), 1000, fit=fit))
    extents = admitted(allocator, *(length for hole in lengths for length in (hole, 1)))
    for seq in extents[::2]:
        allocator.free(seq)
    return allocator


def test_first_fit_takes_the_lowest_hole_that_is_large_enough() -> None:
    allocator = with_holes_of("first_fit", 3, 10, 5, 20)
    (seq,) = admitted(allocator, 4)
    assert start(allocator, seq) == 4


def test_best_fit_takes_the_smallest_hole_that_is_large_enough() -> None:
    allocator = with_holes_of("best_fit", 3, 10, 5, 20)
    (seq,) = admitted(allocator, 4)
    assert start(allocator, seq) == 15


def test_best_fit_takes_the_lower_of_two_equal_holes() -> None:
    allocator = with_holes_of("best_fit", 9, 5, 5)
    (seq,) = admitted(allocator, 4)
    assert start(allocator, seq) == 10


def test_holes_join_with_both_neighbours() -> None:
    allocator = Checked(Contiguous(30, 30, fit="first_fit"))
    low, middle, high = admitted(allocator, 10, 10, 10)
    for seq in (low, high, middle):
        allocator.free(seq)
    (whole,) = admitted(allocator, 30)
    assert start(allocator, whole) == 0


@pytest.mark.parametrize("fit", ["first_fit", "best_fit"])
def test_700_slots_do_not_fit_two_holes_of_500(fit: Fit) -> None:
    """1,000 slots are free, none of the holes is long enough: the free slots are fragmented."""
    allocator, ask = with_holes_of(fit, 500, 500), Ask(700)
    assert allocator.admit([Holder("the third")], ask) is None
    books = allocator.memory(ask)
    assert (books.fragmented, books.short, books.free) == (1000, 0, 0)


def test_700_slots_do_not_fit_600_free_ones() -> None:
    """Here no placement at all could help: the free slots are short."""
    allocator, ask = with_holes_of("first_fit", 300, 300), Ask(700)
    assert allocator.admit([Holder("the third")], ask) is None
    books = allocator.memory(ask)
    assert (books.fragmented, books.short, books.free) == (0, 600, 0)


def test_a_slab_lane_is_as_long_as_the_longest_sequence() -> None:
    allocator = Checked(Contiguous(15_728, 2048))
    seqs = admitted(allocator, *[100] * 7)
    assert sorted(start(allocator, seq) for seq in seqs) == [2048 * lane for lane in range(7)]
    assert allocator.admit([Holder("the eighth")], Ask(1)) is None
    assert allocator.memory().free == 1392


def test_a_slab_lane_beyond_the_promise_is_rounding() -> None:
    allocator = Checked(Contiguous(100, 50))
    admitted(allocator, 20)
    assert allocator.memory().rounding == 30


def test_an_extent_never_grows() -> None:
    allocator = Checked(Contiguous(100, 50, fit="first_fit"))
    (seq,) = admitted(allocator, 20)
    assert allocator.grow(seq, 21) == 0


def test_what_is_longer_than_a_lane_never_fits() -> None:
    allocator = Checked(Contiguous(100, 50, lane_slots=20))
    assert (allocator.footprint(20), allocator.footprint(21)) == (20, None)
    assert allocator.admit([Holder("sequence")], Ask(21)) is None


def test_a_pool_shorter_than_a_lane_holds_nothing() -> None:
    assert Contiguous(49, 50).footprint(1) is None


@pytest.mark.parametrize("fit", ["worst_fit", "", None])
def test_an_unknown_fit_is_an_error(fit: str) -> None:
    with pytest.raises(ValueError, match="fit must be"):
        Contiguous(100, 50, fit=fit)  # type: ignore[arg-type]


@pytest.mark.parametrize("lane_slots", [0, -1, 2.5])
def test_lanes_of_no_length_are_an_error(lane_slots: int) -> None:
    with pytest.raises(ValueError, match="lane_slots"):
        Contiguous(100, 50, lane_slots=lane_slots)
