"""Sliding extents together, and lengthening them: what is moved, and that nothing is lost."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator, AllocatorError, Ask, Holder, Move
from allocators.checker import Checked, ContractError
from allocators.compaction import Extent, Plan, plan
from allocators.contiguous import Contiguous
from tests.conformance.effort import cases


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Extent], int, int]:
    """(extents, low, high)"""
    low = at = draw(st.integers(0, 5))
    extents = []
    for _ in range(draw(st.integers(0, 6))):
        at += draw(st.integers(0, 4))
        slots = draw(st.integers(1, 6))
        extents.append(Extent(at, slots, draw(st.integers(0, slots))))
        at += slots
    return extents, low, at + draw(st.integers(0, 4))


def after(extents: list[Extent], found: Plan) -> list[Extent]:
    """The extents where they are put, each written over nothing but free slots and itself."""
    now = list(extents)
    for i, target in found.slides:
        moved = now[i]._replace(start=target)
        assert not any(target < e.end and e.start < moved.end for j, e in enumerate(now) if j != i), (
            "overwrites another"
        )
        now[i] = moved
    return now


@settings(max_examples=cases(400), deadline=None, derandomize=True)
@given(pools(), st.integers(1, 12), st.data())
def test_a_plan_makes_the_hole_and_moves_as_little_as_any_window(
    pool: tuple[list[Extent], int, int], wanted: int, data: st.DataObject
) -> None:
    extents, low, high = pool
    behind = data.draw(st.none() | st.integers(0, len(extents) - 1)) if extents else None
    found = plan(extents, low, high, wanted, behind)
    holes = [
        start - end
        for end, start in zip([low, *(e.end for e in extents)], [*(e.start for e in extents), high], strict=True)
    ]
    windows = [
        sum(e.tokens for e in extents[first:last])
        for first, last in combinations(range(len(holes) + 1), 2)
        for last in [last - 1]
        if sum(holes[first : last + 1]) >= wanted and (behind is None or first <= behind + 1 <= last)
    ]
    if found is None:
        assert not windows
        return
    start, slots = found.hole
    now = after(extents, found)
    assert slots >= wanted
    assert low <= start
    assert start + slots <= high
    assert not any(start < e.end and e.start < start + slots for e in now), "the hole is not free"
    assert behind is None or now[behind].end == start
    assert sum(extents[i].tokens for i, _ in found.slides) <= min(windows)
    assert all(e.start >= low and e.end <= high for e in now)
    assert sum(length for _, length in found.filled) == slots


def pool_of(capacity: int, *lengths: int, stored: bool = True, **keys: Any) -> tuple[Checked, list[Holder]]:
    """Extents of these lengths from slot 0 on, all of their tokens written in the step before."""
    keys = {"fit": "first_fit", "compaction": "on_refusal"} | keys
    allocator = Checked(Contiguous(capacity, capacity, **keys))
    seqs = [Holder(f"extent {i}") for i in range(len(lengths))]
    for seq, length in zip(seqs, lengths, strict=True):
        assert allocator.admit([seq], Ask(length, promise=length, final=length)) == 0
    if stored:
        allocator.commit(seqs, lengths)
        assert allocator.take_moves() == []
    return allocator, seqs


def test_700_slots_fit_two_holes_of_500_once_the_extent_between_them_is_moved() -> None:
    allocator, seqs = pool_of(1500, 500, 500, 500)
    for seq in (seqs[0], seqs[2]):
        allocator.free(seq)
    assert allocator.admit([new := Holder("the third")], Ask(700)) == 0
    assert allocator.take_moves() == [Move("copy", 500, 0, 500)]
    assert allocator.spans(new) == [(500, 700)]


def test_a_move_may_overlap_itself() -> None:
    allocator, (a, _, c) = pool_of(18, 3, 10, 5)
    for seq in (a, c):
        allocator.free(seq)
    assert allocator.admit([Holder("d")], Ask(8)) == 0
    assert allocator.take_moves() == [Move("copy", 3, 0, 10)]


def test_only_the_cheapest_neighbours_move() -> None:
    """Holes of 4 at 10, 20 and 28: the extent of 4 between the last two moves, not the one of 6."""
    allocator, seqs = pool_of(32, 10, 4, 6, 4, 4, 4)
    for seq in (seqs[1], seqs[3], seqs[5]):
        allocator.free(seq)
    assert allocator.admit([Holder("new")], Ask(8)) == 0
    assert allocator.take_moves() == [Move("copy", 24, 20, 4)]


def test_a_hole_that_is_long_enough_moves_nobody() -> None:
    allocator, seqs = pool_of(30, 10, 10, 10)
    allocator.free(seqs[1])
    assert allocator.admit([Holder("new")], Ask(10)) == 0
    assert allocator.take_moves() == []


def test_what_is_short_is_still_refused_and_moves_nobody() -> None:
    allocator, seqs = pool_of(30, 5, 10, 5, 10)
    for seq in (seqs[0], seqs[2]):
        allocator.free(seq)
    assert allocator.admit([Holder("new")], Ask(11)) is None
    assert allocator.take_moves() == []


def test_tokens_that_the_step_itself_will_write_are_not_copied() -> None:
    """The middle one has 6 tokens; the 2 scheduled for this step go to its new place at once."""
    allocator, (a, b, c) = pool_of(30, 10, 10, 10, stored=False)
    allocator.commit([b], [6])
    allocator.take_moves()
    for seq in (a, c):
        allocator.free(seq)
    allocator.commit([b], [2])
    assert allocator.admit([Holder("new")], Ask(20)) == 0
    assert allocator.take_moves() == [Move("copy", 10, 0, 6)]


def test_an_extent_without_tokens_is_moved_for_nothing() -> None:
    allocator, (a, b, c) = pool_of(30, 10, 10, 10, stored=False)
    for seq in (a, c):
        allocator.free(seq)
    assert allocator.admit([Holder("new")], Ask(20)) == 0
    assert allocator.spans(b) == [(0, 10)]
    assert allocator.take_moves() == []


def test_moved_twice_before_a_step_all_is_still_there() -> None:
    allocator, (a, b, c, _) = pool_of(52, 10, 10, 10, 10, growth=2)
    allocator.free(a)
    allocator.free(c)
    assert allocator.admit([Holder("e")], Ask(20)) == 0
    assert allocator.grow(b, 12) == 12
    assert allocator.take_moves() == [Move("copy", 10, 0, 10), Move("copy", 0, 40, 10)]  # the checker reads them


@pytest.mark.parametrize("hold", [False, True])
def test_a_finished_lane_moves_too(hold: bool) -> None:
    allocator, (a, b, c) = pool_of(30, 10, 10, 10)
    allocator.free(b, hold=hold)
    for seq in (a, c):
        allocator.free(seq)
    assert allocator.admit([Holder("new")], Ask(20)) == 0
    assert len(allocator.take_moves()) == hold


# ---- growth --------------------------------------------------------------------------------------------------------


def test_a_sequence_grows_in_place_where_the_hole_behind_it_allows() -> None:
    allocator, (_, b) = pool_of(40, 10, 10, growth=8)
    assert allocator.grow(b, 11) == 18
    assert (allocator.spans(b), allocator.take_moves()) == ([(10, 18)], [])


def test_it_takes_no_more_than_there_is_behind_it() -> None:
    allocator, (_, b, c) = pool_of(30, 10, 10, 10, growth=8)
    allocator.free(b)
    allocator.admit([Holder("at the front of the hole")], Ask(4))
    assert allocator.grow(c, 11) == 16  # slid down to behind it
    assert allocator.take_moves() == [Move("copy", 20, 14, 10)]


def test_it_is_moved_where_more_fits_as_realloc_does() -> None:
    allocator, (a, _) = pool_of(60, 10, 10, growth=8)
    assert allocator.grow(a, 11) == 18
    assert (allocator.spans(a), allocator.take_moves()) == ([(20, 18)], [Move("copy", 0, 20, 10)])


def test_without_compaction_it_is_refused_where_only_sliding_others_would_help() -> None:
    allocator, (a, *_) = pool_of(33, 10, 10, 10, growth=8, compaction="never")
    assert allocator.grow(a, 12) == 0
    allocator, (a, *_) = pool_of(33, 10, 10, 10, growth=8)
    assert allocator.grow(a, 12) == 12
    assert allocator.take_moves() == [Move("copy", 20, 23, 10), Move("copy", 10, 13, 10)]


def test_a_sequence_alone_in_the_pool_can_always_grow_to_fill_it() -> None:
    allocator, (a, b) = pool_of(40, 30, 10, growth=7, compaction="never")
    allocator.free(a)
    for tokens in range(11, 41):
        assert tokens <= b.room or allocator.grow(b, tokens)
        allocator.commit([b], [1])
        allocator.take_moves()
    assert b.stored == 40


def test_never_further_than_the_longest_sequence() -> None:
    allocator = Checked(Contiguous(100, 20, fit="first_fit", growth=64))
    allocator.admit([seq := Holder("sequence")], Ask(15))
    assert allocator.grow(seq, 16) == 20
    with pytest.raises(AllocatorError, match="past max_model_len"):
        allocator.grow(seq, 21)


# ---- mutations: what would go wrong is found out by the checker's shadow of the pool ---------------------------------


class Moving(Contiguous):
    def __init__(self, capacity: int = 30, max_model_len: int = 30) -> None:
        super().__init__(capacity, max_model_len, fit="first_fit", compaction="on_refusal", growth=1)


class SkippedCopy(Moving):
    def take_moves(self) -> list[Move]:
        return super().take_moves()[:-1]


class TooShort(Moving):
    def take_moves(self) -> list[Move]:
        return [move._replace(length=move.length - 1) for move in super().take_moves()]


class OffByOne(Moving):
    def take_moves(self) -> list[Move]:
        return [move._replace(source=move.source + 1) for move in super().take_moves()]


class WrongOrder(Moving):
    def take_moves(self) -> list[Move]:
        return super().take_moves()[::-1]


class OutsideThePool(Moving):
    def take_moves(self) -> list[Move]:
        return [move._replace(target=self.capacity) for move in super().take_moves()]


class Forgotten(Moving):
    """It forgets that what was committed a step ago is written by now."""

    def take_moves(self) -> list[Move]:
        self._unwritten, kept = {}, dict(self._unwritten)
        moves = super().take_moves()
        self._unwritten = kept
        return moves


def work(allocator: Allocator) -> None:
    """Two extents slide down, at once."""
    checked = Checked(allocator)
    seqs = [Holder(name) for name in "abcd"]
    for seq, length in zip(seqs, (5, 10, 10, 5), strict=True):
        checked.admit([seq], Ask(length, promise=length, final=length))
        checked.commit([seq], [length])
    checked.take_moves()
    checked.free(seqs[0])
    checked.free(seqs[3])
    assert checked.admit([Holder("e")], Ask(10)) == 0
    checked.take_moves()


def test_a_sound_one_passes() -> None:
    work(Moving())


@pytest.mark.parametrize("broken", [SkippedCopy, TooShort, OffByOne, WrongOrder, Forgotten])
def test_a_wrong_move_is_found_out(broken: type[Moving]) -> None:
    with pytest.raises(ContractError, match="does not read what it wrote"):
        work(broken())


def test_a_move_out_of_the_pool_is_found_out() -> None:
    with pytest.raises(ContractError, match="not within the pool"):
        work(OutsideThePool())


def test_a_write_into_the_slots_of_another_is_found_out() -> None:
    class Clobbering(Moving):
        def _move(self, holder: Holder, target: int) -> None:
            super()._move(holder, target)
            self._moves.append(Move("copy", target, 0, 1))

    allocator = Checked(Clobbering())
    seqs = [Holder(name) for name in "abc"]
    for seq in seqs:
        allocator.admit([seq], Ask(10, promise=10, final=10))
        allocator.commit([seq], [10])
    allocator.take_moves()
    allocator.free(seqs[1])
    allocator.grow(seqs[2], 11)
    with pytest.raises(ContractError, match="does not read what it wrote"):
        allocator.take_moves()


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"compaction": "always"}, "compaction must be never or on_refusal"),
        ({"growth": -1}, "growth must be a whole number"),
        ({"growth": True}, "growth must be a whole number"),
        ({"fit": "slab", "compaction": "on_refusal"}, "lanes of a slab"),
        ({"fit": "slab", "growth": 4}, "lanes of a slab"),
    ],
)
def test_options_that_make_no_sense_are_errors(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Contiguous(100, 50, **({"fit": "first_fit"} | keys))
