"""The ledger that every allocator shares: the books, group admission and copies."""

from __future__ import annotations

import pytest

from allocators.base import Allocator, Ask, Holder, Move, split
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from allocators.paged import Paged


def test_every_held_slot_is_in_the_first_column_that_applies() -> None:
    holder = Holder("sequence", stored=3, room=20, held=20, final=9, promise=14)
    assert split(holder) == (3, 6, 5, 6)


def test_a_promise_below_the_true_end_leaves_nothing_over_reserved() -> None:
    holder = Holder("sequence", stored=3, room=20, held=20, final=16, promise=9)
    assert split(holder) == (3, 13, 0, 4)


def test_slots_stored_past_the_declared_end_are_used() -> None:
    allocator = Checked(Paged(32, 32, block_size=16))
    seq = Holder("sequence")
    allocator.admit([seq], Ask(4, final=6))
    allocator.commit([seq], [10])
    assert allocator.memory()[:5] == (10, 0, 0, 0, 6)


def test_growing_past_the_promise_moves_the_promise_to_what_is_stored() -> None:
    allocator = Checked(Paged(32, 32, block_size=4))
    seq = Holder("sequence")
    allocator.admit([seq], Ask(4, promise=6, final=4))
    allocator.grow(seq, 9)
    assert seq.promise == 9
    assert allocator.memory()[:5] == (0, 0, 4, 5, 3)


@pytest.mark.parametrize(("asked", "columns"), [(64, (0, 48, 0)), (48, (48, 0, 0)), (47, (48, 0, 0))])
def test_free_slots_are_fragmented_if_they_would_do_and_short_if_not(asked: int, columns: tuple[int, ...]) -> None:
    allocator = Checked(Paged(64, 64))
    allocator.admit([Holder("sequence")], Ask(16))
    assert allocator.memory(Ask(asked))[-3:] == columns


def test_what_is_asked_counts_the_gate_the_group_and_the_spare_slots() -> None:
    assert Ask(tokens=4, promise=10, must_fit=7, spare=5, count=3).slots == 35
    assert Ask(tokens=4, must_fit=7).slots == 7
    assert Ask(tokens=4, must_fit=7).need == 4


def test_only_the_chunk_is_taken_though_the_whole_prompt_must_fit() -> None:
    allocator = Checked(Paged(64, 64, block_size=4))
    seq = Holder("sequence")
    assert allocator.admit([seq], Ask(4, must_fit=64)) == 0
    assert seq.held == 4
    assert allocator.admit([Holder("second")], Ask(4, must_fit=61)) is None


def test_a_fork_onto_a_sequence_copies_what_differs_run_by_run() -> None:
    allocator = Checked(Contiguous(64, 16, fit="first_fit"))
    parent, child = Holder("parent"), Holder("child")
    allocator.admit([parent, child], Ask(16, count=2))
    allocator.commit([parent, child], [12, 9])
    assert allocator.fork(parent, child, common=5)
    assert allocator.take_moves() == [Move("copy", 5, 21, 7)]
    assert allocator.take_moves() == []
    assert child.stored == 12


def test_a_fork_of_an_extent_is_one_copy() -> None:
    allocator = Checked(Contiguous(32, 16, fit="first_fit"))
    parent, child = Holder("parent"), Holder("child")
    allocator.admit([parent], Ask(6))
    allocator.commit([parent], [5])
    assert allocator.fork(parent, child)
    assert allocator.take_moves() == [Move("copy", 0, 6, 5)]


def test_a_fork_without_room_changes_nothing() -> None:
    allocator = Checked(Contiguous(20, 16))
    parent, child = Holder("parent"), Holder("child")
    allocator.admit([parent], Ask(6))
    assert not allocator.fork(parent, child)
    assert (child.row, allocator.take_moves()) == (-1, [])


def test_nothing_is_swapped_unless_an_allocator_says_so() -> None:
    allocator = Paged(64, 64)
    seq = Holder("sequence")
    allocator.admit([seq], Ask(4))
    assert not allocator.swap([seq], to_host=True)
    assert seq.held == 16


def test_rows_are_reported_dirty_once() -> None:
    allocator = Paged(64, 64)
    seq = Holder("sequence")
    allocator.admit([seq], Ask(4))
    assert (allocator.take_dirty(), allocator.take_dirty()) == ([seq.row], [])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "64"])
@pytest.mark.parametrize("key", ["capacity", "max_model_len"])
def test_a_pool_of_no_size_is_an_error_that_names_the_key(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=key):
        Paged(**{"capacity": 64, "max_model_len": 64, key: value})


def test_an_allocator_that_never_widens_needs_only_four_methods() -> None:
    assert Allocator.__abstractmethods__ == {"footprint", "place", "release", "spans"}
