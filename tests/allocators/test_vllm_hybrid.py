"""vLLM's hybrid manager as a plug-in: the suite that all inherit, over windows, chunks, states and padding.

That its steps are the engine's is seen to in `tests/golden`.
"""

from __future__ import annotations

import pytest

from allocators.base import Allocator, AllocatorError, Ask, Hit, Holder
from allocators.checker import Checked
from allocators.layout import KVLayout, LayerGroup, State
from allocators.vllm_hybrid import VllmHybrid
from schedulers.continuous import Continuous
from schedulers.reservation import on_demand
from tests.conformance.allocator import AllocatorConformance, churn
from tests.conformance.effort import cases

WINDOW = KVLayout(
    (LayerGroup("window", (0, 1, 2), 1, 1, 1, 1, reach=10), LayerGroup("full", (3, 4), 1, 1, 1, 1)),
)  # groups of two windows, of one (a place of which is empty) and of two full layers
CHUNK = KVLayout((LayerGroup("chunk", (0,), 1, 1, 1, 1, reach=12), LayerGroup("full", (1,), 1, 1, 1, 1)))
STATES = KVLayout((LayerGroup("full", (0,), 1, 1, 1, 1), LayerGroup("state", (1,), states=(State((30,), 1),))))
HALVES = KVLayout((LayerGroup("full", (0,), 1, 1, 1, 1), LayerGroup("window", (1,), 2, 1, 1, 1, reach=10)))


class OverWindows(AllocatorConformance):
    capacity, max_model_len, layout = 6000, 48, WINDOW

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return VllmHybrid(max(capacity, 100), max_model_len, self.layout, block_size=4)  # less hold no block


class TestWindows(OverWindows):
    pass


class TestChunks(OverWindows):
    capacity, layout = 2000, CHUNK


class TestStates(OverWindows):
    capacity, layout = 2000, STATES


class TestBlocksOfTwoSizes(OverWindows):
    capacity, layout = 3000, HALVES


class TestEverythingKept(OverWindows):
    capacity = 3000

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return VllmHybrid(max(capacity, 100), max_model_len, WINDOW, block_size=4, hybrid=False)


@pytest.mark.parametrize("layout", [WINDOW, CHUNK, STATES, HALVES])
def test_hundreds_of_calls_are_checked(layout: KVLayout) -> None:
    allocator = Checked(VllmHybrid(3000, 48, layout, block_size=4))
    for seq in churn(allocator, 0, calls=cases(200)).live:
        allocator.free(seq)
    assert allocator.memory().free == 3000


def test_what_lies_behind_the_window_is_given_back_and_reused() -> None:
    allocator = Checked(VllmHybrid(480, 200, WINDOW, block_size=4))
    seq = Holder("long", final=64)
    assert allocator.admit([seq], Ask(4)) == 0
    for stored in range(64):
        if stored >= seq.room:
            assert allocator.grow(seq, stored + 1)
        allocator.commit([seq], [1])
        allocator.take_moves()
    books = dict(zip(allocator.extra_columns, allocator.extra_books(), strict=True))
    assert books["out_of_window"] <= 3 * 2 * 4, "no more than a block that the window has not left"
    assert seq.held <= (16 + 2 * 4) * 16


def test_books_say_where_a_page_is_empty() -> None:
    allocator = VllmHybrid(2400, 48, WINDOW, block_size=4)
    allocator.admit([Holder("one", final=8)], Ask(8, final=8))
    books = dict(zip(allocator.extra_columns, allocator.extra_books(), strict=True))
    assert books["padding"] == books["padding.window_10"] == 2 * 8  # two blocks of which one layer fills half
    assert sum(allocator.memory()) == 2400


def test_a_pool_of_less_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no block of 16 beside the null block"):
        VllmHybrid(24, 48, WINDOW, block_size=4)


@pytest.mark.parametrize("size", [3, 24, 100, 0])
def test_blocks_of_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        VllmHybrid(4000, 48, WINDOW, block_size=size)


def test_a_claimed_hit_must_have_been_found() -> None:
    allocator = VllmHybrid(2400, 48, WINDOW, block_size=4, enable_prefix_caching=True)
    with pytest.raises(AllocatorError, match="claims a prefix hit of 4 tokens that was not found"):
        allocator.admit([Holder("liar")], Ask(8, hit=Hit(4)))


def test_states_kept_for_reuse_need_a_scheduler_that_ends_pieces_at_blocks() -> None:
    allocator = VllmHybrid(4000, 48, STATES, block_size=4, enable_prefix_caching=True)
    with pytest.raises(ValueError, match="use scheduler=vllm_v1"):
        Continuous(allocator, on_demand, max_model_len=48)
    Continuous(VllmHybrid(4000, 48, STATES, block_size=4), on_demand, max_model_len=48)
