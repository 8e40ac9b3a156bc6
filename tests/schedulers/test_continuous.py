"""Continuous batching."""

from __future__ import annotations

from typing import Any

from allocators.base import Allocator
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request
from schedulers.reservation import Reservation, max_model_len, on_demand
from tests.conformance.scheduler import SchedulerConformance, finish


class TestContinuous(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return Continuous(allocator, reservation, **limits)


class TestPrefillFirst(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return Continuous(allocator, reservation, prefill_first=True, **limits)


class TestSwapping(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        swaps: Any = "swap" if allocator.host_capacity else "recompute"
        return Continuous(allocator, reservation, preemption=swaps, **limits)


def paged(blocks: int, *requests: tuple[int, int], block_size: int = 4, **limits: Any) -> Continuous:
    """A scheduler over `blocks` blocks, with waiting requests of (prompt, output) tokens."""
    limits = {"max_model_len": 100, "watermark": 0.0} | limits
    scheduler = Continuous(Paged(blocks * block_size, 100, block_size), on_demand, **limits)
    add(scheduler, *requests)
    return scheduler


def add(scheduler: Scheduler, *requests: tuple[int, int]) -> None:
    first = len(scheduler.waiting) + len(scheduler.running)
    for number, (prompt, output) in enumerate(requests, start=first):
        assert scheduler.add(Request(number, 0, prompt, output)) is None


def step(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule(0)
    scheduler.complete(batch, None)
    return batch


def scheduled(batch: Batch) -> dict[int, int]:
    """Tokens by request id, in the batch's order."""
    return {seq.request.id: count for seq, count in zip(batch.seqs, batch.counts, strict=True)}


def test_requests_join_and_leave_between_any_two_steps() -> None:
    scheduler = paged(20, (4, 3))
    assert scheduled(step(scheduler)) == {0: 4}
    add(scheduler, (5, 1), (6, 2))
    assert scheduled(step(scheduler)) == {0: 1, 1: 5, 2: 6}
    assert scheduled(step(scheduler)) == {0: 1, 2: 1}


def test_a_chunked_prompt_gives_its_first_token_with_its_last_chunk() -> None:
    """Prompt 5, budget 2: two chunks of 2, and the token comes with the third."""
    scheduler = paged(20, (5, 2), max_num_batched_tokens=2, chunked_prefill=True)
    produced = []
    for _ in range(4):
        batch = scheduler.schedule(0)
        produced.append((scheduled(batch)[0], len(scheduler.complete(batch, None)[0])))
    assert produced == [(2, 0), (2, 0), (1, 1), (1, 1)]


def test_a_prompt_that_does_not_fit_the_rest_of_the_budget_waits_for_a_whole_one() -> None:
    scheduler = paged(20, (6, 2), (5, 2), max_num_batched_tokens=10)
    assert [scheduled(batch) for batch in finish(scheduler)] == [{0: 6}, {0: 1, 1: 5}, {1: 1}]


def test_a_closed_budget_is_not_a_lack_of_memory() -> None:
    assert paged(20, (6, 2), (5, 2), max_num_batched_tokens=10).schedule(0).blocked is None


def test_a_full_batch_is_not_a_lack_of_memory() -> None:
    batch = paged(20, (6, 2), (5, 2), max_num_seqs=1).schedule(0)
    assert (len(batch.seqs), batch.blocked) == (1, None)


def test_a_full_pool_is_a_lack_of_memory() -> None:
    batch = paged(3, (6, 2), (5, 2)).schedule(0)
    assert batch.blocked is not None
    assert batch.blocked.slots == 5


def test_mixed_steps_compute_prompts_beside_decodes() -> None:
    scheduler = paged(20, (4, 5))
    step(scheduler)
    add(scheduler, (4, 5))
    assert scheduled(step(scheduler)) == {0: 1, 1: 4}


def test_prefill_first_computes_prompts_alone() -> None:
    scheduler = paged(20, (4, 5), prefill_first=True)
    step(scheduler)
    add(scheduler, (4, 5))
    assert [scheduled(step(scheduler)) for _ in range(2)] == [{1: 4}, {0: 1, 1: 1}]


def test_prefill_first_finishes_a_chunked_prompt_before_it_decodes() -> None:
    scheduler = paged(20, (2, 5), prefill_first=True, chunked_prefill=True, max_num_batched_tokens=4)
    step(scheduler)
    add(scheduler, (10, 5))
    assert [scheduled(step(scheduler)) for _ in range(4)] == [{1: 4}, {1: 4}, {1: 2}, {0: 1, 1: 1}]


def test_the_watermark_keeps_slots_free_while_others_run() -> None:
    """A quarter of 8 blocks: two must stay free."""
    batch = step(paged(8, (12, 2), (12, 2), (4, 2), watermark=0.25))
    assert scheduled(batch) == {0: 12, 1: 12}
    assert batch.blocked is not None
    assert batch.blocked.slots == 4 + 8


def test_the_first_admission_ignores_the_watermark() -> None:
    assert scheduled(step(paged(8, (32, 1), watermark=0.5))) == {0: 32}


def test_a_reservation_needs_no_watermark() -> None:
    scheduler = Continuous(Contiguous(200, 100), max_model_len, max_model_len=100, watermark=0.5)
    add(scheduler, (4, 2), (4, 2))
    assert scheduled(step(scheduler)) == {0: 4, 1: 4}


def test_the_latest_admitted_is_preempted_first() -> None:
    """Three prompts of one block fill the pool; the first to need another block takes it from the third."""
    scheduler = paged(3, (4, 6), (4, 6), (4, 6))
    step(scheduler)
    batch = step(scheduler)
    assert [seq.request.id for seq in batch.preempted] == [2, 1]
    assert scheduled(batch) == {0: 1}


def test_two_victims_of_a_step_wait_in_their_old_order() -> None:
    scheduler = paged(3, (4, 6), (4, 6), (4, 6))
    step(scheduler)
    step(scheduler)
    assert [seq.request.id for seq in scheduler.waiting] == [1, 2]


def test_a_victim_waits_at_the_front_of_the_queue() -> None:
    scheduler = paged(3, (4, 6), (8, 2))
    step(scheduler)
    add(scheduler, (4, 2))
    step(scheduler)
    assert [seq.request.id for seq in scheduler.waiting] == [1, 2]


def test_a_step_that_preempts_admits_nobody() -> None:
    """The victim frees three blocks and only one is needed; a short newcomer still has to wait for a step."""
    scheduler = paged(4, (4, 6), (12, 2))
    step(scheduler)
    add(scheduler, (1, 1))
    batch = step(scheduler)
    assert [seq.request.id for seq in batch.preempted] == [1]
    assert batch.admitted == []
    assert batch.blocked is None


def test_a_preempted_sequence_keeps_its_tokens_and_computes_them_again() -> None:
    """The second is preempted with prompt 4 and one token more; it comes back with 5 tokens to compute."""
    scheduler = paged(3, (4, 4), (4, 6))
    first = step(scheduler)
    victim = first.seqs[1]
    batches = finish(scheduler)
    assert (victim.preemptions, victim.num_tokens) == (1, 10)
    assert 5 in [scheduled(batch).get(1) for batch in batches]


def test_tokens_computed_again_are_counted_once_each() -> None:
    """4 tokens were stored when it was preempted; of the 5 that are computed when it returns, one is new."""
    scheduler = paged(3, (4, 4), (4, 6))
    victim = step(scheduler).seqs[1]
    finish(scheduler)
    assert victim.recomputed == 4


def test_a_second_preemption_before_new_ground_counts_again() -> None:
    scheduler = paged(20, (8, 4), chunked_prefill=True, max_num_batched_tokens=4)
    (seq,) = scheduler.waiting
    step(scheduler)
    step(scheduler)  # 8 stored
    for _ in range(2):
        scheduler.preempt(seq, Batch())
        step(scheduler)  # 4 again
    finish(scheduler)
    assert seq.recomputed == 4 + 8


def test_a_request_that_is_decoded_alone_takes_as_many_steps_as_tokens() -> None:
    assert len(finish(paged(20, (7, 9)))) == 9
