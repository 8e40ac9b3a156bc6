"""A placement of extents for each group of layers: contiguous and buddy over windows, chunks and states."""

from __future__ import annotations

import random

import pytest

from allocators.base import Allocator, Ask, Holder
from allocators.checker import Checked
from allocators.layout import KVLayout
from allocators.split import Split
from tests.allocators.test_group_pages import CHUNK, STATES, WINDOW
from tests.conformance.allocator import AllocatorConformance, churn
from tests.conformance.effort import cases


class TestFirstFit(AllocatorConformance):
    capacity, max_model_len = 3000, 48

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Split(max(capacity, 400), max_model_len, WINDOW, piece_tokens=48)


@pytest.mark.slow
class TestVirtual(AllocatorConformance):
    capacity, max_model_len = 2000, 48

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Split(max(capacity, 400), max_model_len, WINDOW, "virtual", piece_tokens=48, page_bytes=6)


@pytest.mark.parametrize("layout", [WINDOW, CHUNK, STATES])
@pytest.mark.parametrize("placement", ["slab", "first_fit", "best_fit", "buddy", "virtual"])
def test_hundreds_of_calls_are_checked(placement: str, layout: object) -> None:
    allocator = Checked(Split(6000, 48, layout, placement, piece_tokens=48, page_bytes=4))  # type: ignore[arg-type]
    for seq in churn(allocator, 0, calls=cases(80)).live:
        allocator.free(seq)
    assert allocator.memory().free == 6000


@pytest.mark.parametrize("layout", [WINDOW, CHUNK], ids=["window", "chunk"])
@pytest.mark.parametrize("placement", ["slab", "first_fit", "best_fit", "buddy", "virtual"])
def test_an_extent_of_a_window_is_a_ring(placement: str, layout: KVLayout) -> None:
    """It begins again behind its window and a step's tokens, and everybody reads what it wrote: the checker sees to it.

    Its holder comes and goes beside others, and takes no more of it than the ring however long it gets.
    """
    draw, longest, piece = random.Random(placement), 120, 8
    allocator = Checked(Split(3000, longest, layout, placement, piece, page_bytes=4))  # type: ignore[arg-type]
    allocator.limit_step_tokens(piece)
    ring, wrapped, live = allocator.grids[0].ring, 0, dict[Holder, int]()
    assert 0 < ring < longest // 3
    for step in range(120):
        end = draw.randint(1, longest)
        seq = Holder(f"sequence {step}", final=end)
        if len(live) < 4 and allocator.admit([seq], Ask(min(piece, end), promise=end, final=end)) is not None:
            live[seq] = end
        counts = [min(piece if seq.stored < end // 2 else 1, end - seq.stored) for seq, end in live.items()]
        for seq, count in zip(live, counts, strict=True):
            assert seq.room >= seq.stored + count
        allocator.commit(list(live), counts)
        allocator.take_moves()  # everybody writes and reads
        for seq in [seq for seq, end in live.items() if seq.stored == end]:
            wrapped += seq.stored > 2 * ring
            assert allocator.occupied(seq)[0].end <= (32 if placement == "buddy" else ring)
            allocator.free(seq)
            del live[seq]
    assert wrapped > 2


def test_page_groups_are_mapped_until_a_windows_ring_is_whole() -> None:
    """Then only the layers that keep all tokens go on growing; each buffer of a group has page groups of its own."""
    allocator = Checked(Split(8000, 200, WINDOW, "virtual", piece_tokens=8, page_bytes=4, map_us=1))
    allocator.limit_step_tokens(8)
    seq = Holder("long", final=150)
    assert allocator.admit([seq], Ask(8, final=150)) == 0
    ring = 5 * 4  # a window of ten tokens, those of a step beside it, in whole page groups
    assert allocator.grids[0].ring == ring
    for count in [8] * 5 + [1] * 100:
        allocator.take_moves()
        if seq.stored + count > seq.room:
            assert allocator.grow(seq, seq.stored + count)
        allocator.commit([seq], [count])
        tokens = -(-seq.stored // 4) * 4
        assert seq.held == min(tokens, ring) * 6 + tokens * 4
    buffers = (3 * 2, 2 * 2)
    assert allocator.take_delay() == 1000 * 8 // 4 * sum(buffers), "page groups of the prompt's first step"
    books = dict(zip(allocator.extra_columns, allocator.extra_books(), strict=True))
    assert books["used.window_10"] == 9 * 6
    assert books["out_of_window"] == (ring - 9) * 6


def test_a_refused_growth_maps_nothing() -> None:
    """One group has room, the other has not."""
    allocator = Checked(Split(1000, 100, WINDOW, "virtual", piece_tokens=8, page_bytes=4,
                              shares={"window 10": 0.9, "full": 0.1}))  # fmt: skip
    seq = Holder("long")
    assert allocator.admit([seq], Ask(16)) == 0
    assert allocator.footprint(25) is None
    allocator.commit([seq], [16])
    assert allocator.grow(seq, 24)
    before = [inner.free_slots for inner in allocator.inner]
    assert not allocator.grow(seq, 25)
    assert [inner.free_slots for inner in allocator.inner] == before


def test_shares_are_those_of_the_longest_sequence_or_as_told() -> None:
    split = Split(10_000, 100, WINDOW, piece_tokens=8)
    assert [grid.origin for grid in split.grids] == [0, 6 * (10_000 * 17 * 6 // (17 * 6 + 400) // 6)]
    told = Split(10_000, 100, WINDOW, piece_tokens=8, shares={"window 10": 1, "full": 1})
    assert [inner.capacity for inner in told.inner] == [833, 1250]
    with pytest.raises(ValueError, match="shares must name window 10, full"):
        Split(10_000, 100, WINDOW, shares={"windows": 0.5})


def test_a_step_that_overruns_a_ring_is_refused() -> None:
    with pytest.raises(ValueError, match=r"allocator\.piece_tokens=8 tokens beside its window.*may compute 64"):
        Split(10_000, 100, WINDOW, piece_tokens=8).limit_step_tokens(64)


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(ValueError, match="slab, first_fit, best_fit, buddy or virtual, got 'paged'"):
        Split(10_000, 100, WINDOW, "paged")  # type: ignore[arg-type]
