"""Jenga's pages within pages and SGLang's fixed split, over windows, chunks and states."""

from __future__ import annotations

from math import lcm

import pytest

from allocators.base import Allocator, Ask, Holder
from allocators.checker import Checked
from allocators.dual_pool import DualPool
from allocators.jenga import Jenga
from allocators.layout import KVLayout, LayerGroup, State
from tests.conformance.allocator import AllocatorConformance, churn
from tests.conformance.effort import cases

WINDOW = KVLayout(
    (LayerGroup("window", (0, 1, 2), 1, 1, 1, 1, reach=10), LayerGroup("full", (3, 4), 1, 1, 1, 1)),
)
CHUNK = KVLayout((LayerGroup("chunk", (0,), 1, 1, 1, 1, reach=12), LayerGroup("full", (1,), 1, 1, 1, 1)))
STATES = KVLayout((LayerGroup("full", (0,), 1, 1, 1, 1), LayerGroup("state", (1,), states=(State((30,), 1),))))


class TestJenga(AllocatorConformance):
    capacity, max_model_len = 3000, 48

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Jenga(max(capacity, 120), max_model_len, WINDOW, block_size=4)


class TestJengaWithStates(TestJenga):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Jenga(max(capacity, 120), max_model_len, STATES, block_size=4)  # less hold no large page


class TestDualPool(AllocatorConformance):
    capacity, max_model_len = 4000, 48

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return DualPool(max(capacity, 120), max_model_len, WINDOW, page_size=4)


@pytest.mark.parametrize("layout", [WINDOW, CHUNK, STATES])
@pytest.mark.parametrize("kind", [Jenga, DualPool])
def test_hundreds_of_calls_are_checked(kind: type[Allocator], layout: KVLayout) -> None:
    allocator = Checked(kind(3000, 48, layout))  # type: ignore[arg-type]
    for seq in churn(allocator, 0, calls=cases(200)).live:
        allocator.free(seq)
    assert allocator.memory().free == 3000
    assert allocator.free_slots <= 3000


def test_large_pages_are_the_least_common_multiple_and_come_back_whole() -> None:
    jenga = Jenga(2400, 48, WINDOW, block_size=4)
    assert jenga.large == lcm(3 * 2 * 4, 2 * 2 * 4) == 48
    first, second = Holder("first"), Holder("second")
    for seq in (first, second):
        assert jenga.admit([seq], Ask(4)) == 0
    # each has a large page a group, of which it uses a small one
    assert jenga.num_large - len(jenga._free) == 4
    jenga.free(first)
    jenga.free(second)
    assert len(jenga._free) == jenga.num_large


def test_a_sequence_takes_small_pages_of_others_only_if_there_is_no_large_one() -> None:
    jenga = Jenga(4 * 48, 48, WINDOW, block_size=4)
    seqs = [Holder(f"{number}") for number in range(4)]
    admitted = [seq for seq in seqs if jenga.admit([seq], Ask(4)) is not None]
    assert len(admitted) == 4, "the third and the fourth share the large pages of the first two"
    assert jenga.free_slots == 4 * 48 - 4 * (24 + 16)


def test_pages_whose_multiple_is_larger_than_the_pool_are_refused() -> None:
    with pytest.raises(ValueError, match="least common multiple of pages of 24, 16 units is 48, more than the pool"):
        Jenga(47, 48, WINDOW, block_size=4)


def test_a_pool_of_one_kind_does_not_help_the_other_out() -> None:
    pool = DualPool(2000, 400, WINDOW, page_size=4, window_ratio=0.1)
    seq = Holder("long", final=300)
    assert pool.footprint(200) is None
    assert pool.admit([seq], Ask(40)) == 0
    assert pool.free_slots > 1000
    assert pool.admit([Holder("next")], Ask(40)) is None, "there is room for its full layers, not for its windows"


def test_pools_are_cut_by_their_ratios() -> None:
    pool = DualPool(10_000, 48, WINDOW, page_size=1, window_ratio=0.5)
    full, window = pool._pages[1], pool._pages[0]
    assert abs(window / full - 0.5) < 0.01
    assert 9_980 < full * 4 + window * 6 <= 10_000
    states = DualPool(19_000, 48, STATES, page_size=1, state_ratio=0.9)
    assert states._pages == [5000, 300]


def test_a_pool_that_holds_no_page_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the pool of state gets .* holds no page of 30"):
        DualPool(50, 48, STATES)
