"""vLLM's v1 scheduler; its steps are compared with the engine's own in `tests/golden`."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.base import Allocator
from allocators.checker import Checked
from allocators.paged import Paged
from schedulers.base import Scheduler
from schedulers.request import Batch, Request
from schedulers.reservation import Reservation, on_demand
from schedulers.vllm_v1 import VllmV1
from tests.conformance.scheduler import SchedulerConformance, finish


class TestVllmV1(SchedulerConformance):
    caps_length = True

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return VllmV1(allocator, reservation, **limits)


class TestWithoutTheGate(TestVllmV1):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return VllmV1(allocator, reservation, scheduler_reserve_full_isl=False, **limits)


class TestPriority(TestVllmV1):
    fcfs = False

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return VllmV1(allocator, reservation, **limits | {"policy": "priority"})


def made(blocks: int, block_size: int = 4, caching: bool = False, **limits: Any) -> VllmV1:
    """A scheduler over `blocks` blocks, checked."""
    limits = {"max_model_len": 100} | limits
    pool: Any = Checked(Paged(blocks * block_size, 100, block_size, enable_prefix_caching=caching))
    return VllmV1(pool, on_demand, **limits)


def step(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule(0)
    scheduler.complete(batch, None)
    return batch


def scheduled(batch: Batch) -> dict[int, int]:
    return {seq.request.id: count for seq, count in zip(batch.seqs, batch.counts, strict=True)}


def test_prompts_and_decodes_share_one_budget_running_ones_first() -> None:
    scheduler = made(20, max_num_batched_tokens=8)
    scheduler.add(Request(0, 0, 6, 5))
    scheduler.add(Request(1, 0, 10, 5))
    assert [scheduled(step(scheduler)) for _ in range(3)] == [{0: 6, 1: 2}, {0: 1, 1: 7}, {0: 1, 1: 1}]


def test_a_long_prompt_is_cut_while_others_are_there_but_not_alone() -> None:
    scheduler = made(40, long_prefill_token_threshold=4)
    scheduler.add(Request(0, 0, 12, 1))
    assert scheduled(step(scheduler)) == {0: 12}
    for number in (1, 2):
        scheduler.add(Request(number, 0, 12, 1))
    assert scheduled(step(scheduler)) == {1: 4, 2: 4}


def test_older_versions_cut_a_lone_prompt_too() -> None:
    scheduler = made(40, long_prefill_token_threshold=4, version="0.19")
    scheduler.add(Request(0, 0, 12, 1))
    assert scheduled(step(scheduler)) == {0: 4}


def test_a_large_request_at_the_head_holds_up_the_small_ones_behind_it() -> None:
    """6 blocks, 2 of them taken: 5 do not fit, and nobody overtakes."""
    scheduler = made(6)
    scheduler.add(Request(0, 0, 7, 3))
    step(scheduler)
    scheduler.add(Request(1, 0, 20, 1))
    scheduler.add(Request(2, 0, 1, 1))
    batch = step(scheduler)
    assert scheduled(batch) == {0: 1}
    assert batch.blocked is not None
    assert [scheduled(batch) for batch in finish(scheduler)] == [{0: 1}, {1: 20, 2: 1}]


def test_without_the_gate_only_the_piece_must_fit() -> None:
    for gate, expected in ((True, {0: 1}), (False, {0: 1, 1: 7})):
        scheduler = made(6, scheduler_reserve_full_isl=gate, max_num_batched_tokens=8)
        scheduler.add(Request(0, 0, 7, 3))
        step(scheduler)
        scheduler.add(Request(1, 0, 20, 1))
        assert scheduled(step(scheduler)) == expected


def test_the_watermark_counts_the_null_block() -> None:
    """A quarter of 8 blocks and a null block, rounded down."""
    assert made(8, watermark=0.25).watermark_slots == 2 * 4
    assert made(7, watermark=0.25).watermark_slots == 2 * 4


def test_an_answer_is_cut_at_max_model_len() -> None:
    scheduler = made(20, max_model_len=10)
    scheduler.add(Request(0, 0, 6, 100))
    assert len(finish(scheduler)) == 4


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused() -> None:
    rejection = made(20, max_model_len=10).add(Request(0, 0, 10, 1))
    assert rejection
    assert "leaves no room" in rejection.reason


def test_priorities_order_the_queue_and_choose_the_victim() -> None:
    """Four blocks, three prompts of one each: the first to outgrow its block takes it from the least urgent."""
    scheduler = made(3, policy="priority")
    for number, priority in enumerate([2, 0, 1]):
        scheduler.add(Request(number, number, 4, 6, priority=priority))
    assert list(scheduled(step(scheduler))) == [1, 2, 0]
    batch = step(scheduler)
    assert [seq.request.id for seq in batch.preempted] == [0, 2]
    assert scheduled(batch) == {1: 1}
    assert [seq.request.id for seq in scheduler.waiting] == [2, 0]


def test_a_victim_that_had_its_turn_gives_its_tokens_back() -> None:
    """The first admitted is the least urgent; the second takes its blocks and its place in the step."""
    scheduler = made(3, policy="priority")
    scheduler.add(Request(0, 0, 3, 6, priority=1))
    step(scheduler)
    scheduler.add(Request(1, 1, 8, 4, priority=0))
    assert scheduled(step(scheduler)) == {0: 1, 1: 8}
    batch = step(scheduler)  # the first has no block for its 5th token
    assert scheduled(batch) == {1: 1}
    assert batch.committed == 1


def test_shortest_first_admits_the_shortest_answer_first() -> None:
    scheduler = made(20, policy="shortest_first", max_num_seqs=1)
    for number, output in enumerate([9, 2, 5]):
        scheduler.add(Request(number, 0, 4, output))
    order = [next(iter(scheduled(batch))) for batch in finish(scheduler)]
    assert sorted(set(order), key=order.index) == [1, 2, 0]


def test_longest_prefix_admits_first_what_is_cached_most() -> None:
    scheduler = made(40, caching=True, policy="longest_prefix", max_num_seqs=1)
    scheduler.add(Request(0, 0, 12, 1, token_ids=list(range(12))))
    finish(scheduler)
    scheduler.add(Request(1, 0, 9, 1, token_ids=[7] * 9))
    scheduler.add(Request(2, 0, 13, 1, token_ids=[*range(6), *[7] * 7]))
    scheduler.add(Request(3, 0, 13, 1, token_ids=[*range(12), 7]))
    assert [scheduled(batch) for batch in finish(scheduler)] == [{3: 1}, {2: 9}, {1: 9}]


def test_prefix_tokens_are_counted_at_admission_and_apart_after_a_preemption() -> None:
    scheduler = made(6, caching=True)
    for number in range(2):
        scheduler.add(Request(number, 0, 8, 8, token_ids=list(range(8))))
    finish(scheduler)
    prefix = scheduler.prefix
    assert (prefix.queries, prefix.hits) == (16, 4)
    assert prefix.preempted_queries > prefix.preempted_hits > 0


@pytest.mark.parametrize(
    "wrong", [{"version": "0.5"}, {"policy": "lifo"}, {"long_prefill_token_threshold": -1}], ids=lambda w: next(iter(w))
)
def test_a_wrong_argument_is_an_error_that_names_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        made(20, **wrong)
