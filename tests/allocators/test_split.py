"""A placement of extents for each group of layers: contiguous and buddy over windows, chunks and states."""

from __future__ import annotations

import pytest

from allocators.base import Allocator, Ask, Holder
from allocators.checker import Checked
from allocators.split import Split
from tests.allocators.test_group_pages import CHUNK, STATES, WINDOW
from tests.conformance.allocator import AllocatorConformance, churn


class TestFirstFit(AllocatorConformance):
    capacity, max_model_len = 3000, 48

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Split(max(capacity, 400), max_model_len, WINDOW, piece_tokens=48)


@pytest.mark.parametrize("layout", [WINDOW, CHUNK, STATES])
@pytest.mark.parametrize("placement", ["slab", "first_fit", "best_fit", "buddy"])
def test_hundreds_of_calls_are_checked(placement: str, layout: object) -> None:
    allocator = Checked(Split(6000, 48, layout, placement, piece_tokens=48))  # type: ignore[arg-type]
    for seq in churn(allocator, 0, calls=200).live:
        allocator.free(seq)
    assert allocator.memory().free == 6000


@pytest.mark.parametrize("placement", ["first_fit", "buddy"])
def test_a_windows_extent_is_a_ring(placement: str) -> None:
    """It begins again behind its window and a step's tokens, and everybody reads what it wrote."""
    allocator = Checked(Split(8000, 200, WINDOW, placement, piece_tokens=8))  # type: ignore[arg-type]
    allocator.expect_steps(8)
    seqs = [Holder(f"{number}", final=150) for number in range(3)]
    for seq in seqs:
        assert allocator.admit([seq], Ask(8, promise=150, final=150)) == 0
    ring = 10 - 1 + 8
    slots = ring if placement == "first_fit" else 32
    assert seqs[0].held == slots * 6 + (150 if placement == "first_fit" else 256) * 4
    for count in [8] * 5 + [1] * 100:
        allocator.take_moves()
        for seq in seqs:
            assert seq.room >= seq.stored + count
            allocator.commit([seq], [count])
    books = dict(zip(allocator.more_columns, allocator.more_books(), strict=True))
    assert books["used.window_10"] == 3 * 9 * 6, "what a window spans before its next token"
    assert books["reserved.window_10"] == 0


def test_shares_are_those_of_the_longest_sequence_or_as_told() -> None:
    split = Split(10_000, 100, WINDOW, piece_tokens=8)
    assert [grid.origin for grid in split.grids] == [0, 6 * (10_000 * 17 * 6 // (17 * 6 + 400) // 6)]
    told = Split(10_000, 100, WINDOW, piece_tokens=8, shares={"window 10": 1, "full": 1})
    assert [inner.capacity for inner in told.inner] == [833, 1250]
    with pytest.raises(ValueError, match="shares must name window 10, full"):
        Split(10_000, 100, WINDOW, shares={"windows": 0.5})


def test_a_step_that_overruns_a_ring_is_refused() -> None:
    with pytest.raises(ValueError, match=r"allocator\.piece_tokens=8 tokens beside its window.*may compute 64"):
        Split(10_000, 100, WINDOW, piece_tokens=8).expect_steps(64)


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(ValueError, match="slab, first_fit, best_fit or buddy, got 'paged'"):
        Split(10_000, 100, WINDOW, "paged")  # type: ignore[arg-type]
