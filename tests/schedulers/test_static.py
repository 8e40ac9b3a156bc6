"""Static batching."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.base import Allocator
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from schedulers.base import Scheduler
from schedulers.request import Batch, Request
from schedulers.reservation import Reservation, max_model_len, on_demand
from schedulers.static import Static
from schedulers.static_bucketed import StaticBucketed
from tests.conformance.scheduler import SchedulerConformance, finish


class TestStatic(SchedulerConformance):
    closed_batches = True

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return Static(allocator, reservation, **limits)


class TestStaticThatDropsFinishedLanes(SchedulerConformance):
    closed_batches = True

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return Static(allocator, reservation, compute_finished=False, **limits)


class TestStaticThatWaits(SchedulerConformance):
    closed_batches = True

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return Static(allocator, reservation, max_wait_s=30e-9, **limits)


LATER = 9  # id of a request that arrives while a batch runs


def paged(blocks: int, *requests: tuple[int, int], **limits: Any) -> Static:
    """A scheduler over `blocks` blocks of 4 slots, with waiting requests of (prompt, output) tokens."""
    limits = {"max_model_len": 100, "watermark": 0.0} | limits
    allocator: Any = Checked(Paged(blocks * 4, 100, block_size=4))
    scheduler = Static(allocator, on_demand, **limits)
    add(scheduler, *requests)
    return scheduler


def add(scheduler: Scheduler, *requests: tuple[int, int], arrival_ns: int = 0, first: int = 0) -> None:
    for number, (prompt, output) in enumerate(requests, start=first):
        assert scheduler.add(Request(number, arrival_ns, prompt, output)) is None


def step(scheduler: Scheduler, now: int = 0) -> Batch:
    batch = scheduler.schedule(now)
    scheduler.complete(batch, None)
    return batch


def ids(seqs: Any) -> list[int]:
    return [seq.request.id for seq in seqs]


def test_four_lanes_of_40_50_300_and_500_tokens_are_useful_44_5_percent_of_the_time() -> None:
    """A gauge of busy lanes would read 100 %: all four lanes are computed until the longest is over."""
    scheduler = Static(Contiguous(4 * 600, 600), max_model_len, max_model_len=600)
    add(scheduler, (10, 40), (10, 50), (10, 300), (10, 500))
    batches = finish(scheduler)
    computed = [len(batch.seqs) + len(batch.idle) for batch in batches]
    assert computed == [4] * 500
    assert sum(len(batch.seqs) for batch in batches) / sum(computed) == 0.445


def test_finished_lanes_are_not_computed_where_a_server_can_drop_them() -> None:
    batches = finish(paged(20, (4, 2), (4, 5), compute_finished=False))
    assert not any(batch.idle for batch in batches)


def test_nobody_joins_until_the_longest_is_over() -> None:
    scheduler = paged(20, (4, 2), (4, 6))
    step(scheduler)
    add(scheduler, (4, 1), first=LATER)
    joined = [ids(batch.admitted) for batch in finish(scheduler)]
    assert joined == [[], [], [], [], [], [LATER]]


def test_finished_lanes_hold_their_slots_until_the_longest_is_over() -> None:
    scheduler = paged(20, (4, 2), (4, 5))
    held = []
    for _ in range(5):
        scheduler.schedule(0)  # the books hold for the step
        held.append(scheduler.allocator.memory().finished_held)
        scheduler.complete(Batch(seqs=list(scheduler.running)), None)
    assert held == [0, 0, 8, 8, 8]
    assert scheduler.allocator.memory().free == 80


def test_the_earliest_arrivals_make_the_batch() -> None:
    assert ids(step(paged(20, (4, 2), (4, 2), (4, 2), max_num_seqs=2)).admitted) == [0, 1]


def test_memory_limits_the_batch() -> None:
    batch = step(paged(3, (8, 2), (8, 2)))
    assert ids(batch.admitted) == [0]
    assert batch.blocked is not None


def test_a_batch_larger_than_the_token_budget_is_prefilled_in_several_steps_and_then_decodes_together() -> None:
    batches = finish(paged(20, (6, 3), (5, 3), max_num_batched_tokens=10))
    assert [list(zip(ids(batch.seqs), batch.counts, strict=True)) for batch in batches] == [
        [(0, 6)],
        [(1, 5)],
        [(0, 1), (1, 1)],
        [(0, 1), (1, 1)],
    ]


def test_a_chunked_prompt_gives_its_first_token_with_its_last_chunk() -> None:
    scheduler = paged(20, (5, 2), max_num_batched_tokens=2, chunked_prefill=True)
    produced = []
    for _ in range(4):
        batch = scheduler.schedule(0)
        produced.append((batch.counts, len(scheduler.complete(batch, None)[0])))
    assert produced == [([2], 0), ([2], 0), ([1], 1), ([1], 1)]


def test_when_a_lane_can_not_grow_the_last_admitted_is_preempted() -> None:
    scheduler = paged(3, (4, 3), (4, 3), (4, 3))
    step(scheduler)
    batch = step(scheduler)
    assert ids(batch.preempted) == [2, 1]
    assert ids(batch.seqs) == [0]


def test_preempted_lanes_lead_the_next_batch_in_their_old_order() -> None:
    scheduler = paged(3, (4, 3), (4, 3), (4, 3))
    step(scheduler)
    add(scheduler, (4, 1), first=LATER)
    batches = finish(scheduler)
    assert [ids(batch.admitted) for batch in batches if batch.admitted] == [[1], [2, LATER]]


def test_the_only_live_lane_ends_the_batch_and_leads_the_next_with_its_slots_kept() -> None:
    """The finished lane holds the block that the other one needs."""
    scheduler = paged(3, (4, 1), (8, 5))
    step(scheduler)
    add(scheduler, (1, 4), first=LATER)
    (lane,) = scheduler.running
    batch = step(scheduler)
    assert (lane.preemptions, lane.stored, lane.row >= 0) == (0, 9, True)
    assert scheduler.held == []
    assert ids(batch.preempted) == []
    assert scheduler.running[0] is lane


def test_the_queue_joins_the_batch_that_a_lone_lane_leads() -> None:
    scheduler = paged(4, (8, 1), (8, 4))
    step(scheduler)
    add(scheduler, (4, 1), first=LATER)
    batch = step(scheduler)
    assert ids(batch.admitted) == [LATER]
    assert ids(scheduler.running) == [1, LATER]


def test_when_all_that_would_be_computed_again_is_refused_room_the_others_decode() -> None:
    scheduler = paged(17)
    for number, (prompt, output, n) in enumerate([(2, 8, 2), (1, 18, 3), (3, 10, 2)]):
        request = Request(number, 0, prompt, output)
        request.n = n
        assert scheduler.add(request) is None
    while scheduler.num_requests:
        assert step(scheduler).seqs


def test_a_batch_starts_at_once_by_default() -> None:
    assert ids(paged(20, (4, 2)).schedule(0).seqs) == [0]


def test_a_batch_waits_for_more_arrivals_at_most_so_long() -> None:
    scheduler = paged(20, max_wait_s=1e-6)
    add(scheduler, (4, 2), arrival_ns=500)
    assert (scheduler.schedule(500).seqs, scheduler.wake_at()) == ([], 1500)
    assert (scheduler.schedule(1499).seqs, scheduler.wake_at()) == ([], 1500)
    assert (ids(scheduler.schedule(1500).seqs), scheduler.wake_at()) == ([0], None)


def test_a_full_batch_does_not_wait() -> None:
    scheduler = paged(20, (4, 2), (4, 2), max_num_seqs=2, max_wait_s=1.0)
    assert len(scheduler.schedule(0).seqs) == 2


def test_an_empty_queue_is_not_waited_for() -> None:
    scheduler = paged(20, max_wait_s=1.0)
    assert (scheduler.schedule(0).seqs, scheduler.wake_at()) == ([], None)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_wait_without_end_is_an_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="max_wait_s"):
        paged(20, max_wait_s=seconds)


class TestStaticInBuckets(SchedulerConformance):
    fcfs = False
    closed_batches = True

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return StaticBucketed(allocator, reservation, **limits)


class TestStaticInBucketsThatWaits(SchedulerConformance):
    fcfs = False
    closed_batches = True

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return StaticBucketed(allocator, reservation, max_wait_s=30e-9, bucket_by="prompt", **limits)


def bucketed(*requests: tuple[int, int], **limits: Any) -> StaticBucketed:
    scheduler = StaticBucketed(Paged(400, 100), on_demand, max_model_len=100, **limits)
    add(scheduler, *requests)
    return scheduler


@pytest.mark.parametrize(("by", "batches"), [("prompt", [[0, 2], [1, 3]]), ("output", [[0, 1], [2, 3]])])
def test_a_batch_is_made_of_similar_lengths(by: str, batches: list[list[int]]) -> None:
    scheduler = bucketed((4, 8), (16, 15), (7, 16), (31, 31), bucket_by=by)
    assert [ids(batch.admitted) for batch in finish(scheduler) if batch.admitted] == batches


def test_similar_answers_leave_fewer_lanes_idle() -> None:
    """Answers of 4 and 30 in turn: half of the lanes are idle for 26 of 30 steps, unless like ones are batched."""
    lengths = [(4, 4 if i % 2 else 30) for i in range(8)]
    plain = finish(paged(100, *lengths, max_num_seqs=4))
    alike = finish(bucketed(*lengths, max_num_seqs=4))
    assert sum(len(batch.idle) for batch in plain) == 2 * 2 * 26
    assert sum(len(batch.idle) for batch in alike) == 0
    assert (len(plain), len(alike)) == (60, 34)


def test_the_bucket_of_the_oldest_is_next_so_nobody_starves() -> None:
    scheduler = bucketed((4, 2), (50, 2), (4, 2), (4, 2), bucket_by="prompt", max_num_seqs=1)
    assert [ids(batch.admitted) for batch in finish(scheduler) if batch.admitted] == [[0], [1], [2], [3]]


def test_a_full_bucket_goes_first_while_the_oldest_may_still_wait() -> None:
    scheduler = bucketed((50, 2), (4, 2), (4, 2), bucket_by="prompt", max_num_seqs=2, max_wait_s=1e-6)
    assert ids(step(scheduler, 10).admitted) == [1, 2]
    step(scheduler, 20)
    assert (scheduler.schedule(30).seqs, scheduler.wake_at()) == ([], 1000)
    assert ids(step(scheduler, 1000).admitted) == [0]


def test_what_there_is_no_bucket_for_is_an_error() -> None:
    with pytest.raises(ValueError, match="bucket_by"):
        bucketed(bucket_by="age")


def test_a_batch_waits_for_the_oldest_though_another_is_first_in_the_queue() -> None:
    scheduler = paged(40, max_wait_s=1e-6, policy="shortest_first")
    add(scheduler, (4, 9), arrival_ns=100)
    add(scheduler, (4, 2), arrival_ns=600, first=1)
    assert (scheduler.schedule(600).seqs, scheduler.wake_at()) == ([], 1100)
    assert len(scheduler.schedule(1100).seqs) == 2


def test_memory_bounds_a_batch_whose_lanes_are_all_that_a_step_can_decode() -> None:
    """40 requests of one block over 30 blocks: as many as fit, and no more than the step's tokens."""
    limits = {"max_num_seqs": 35, "max_num_batched_tokens": 35}
    assert len(step(paged(30, *[(4, 1)] * 40, **limits)).seqs) == 8  # of prompts, 35 tokens a step
    scheduler = paged(30, *[(4, 1)] * 40, **limits)
    scheduler.schedule(0)
    assert len(scheduler.running) == 30


def test_a_lane_that_lives_on_leads_a_batch_of_its_own_bucket() -> None:
    """9 blocks, of which 0, which is over, holds 4; when 1 needs a sixth they are freed, and the batch is a new one.

    Prompts of 8 to 15 tokens are a bucket: who is in that of 1 joins, not the oldest that waits.
    """
    scheduler = StaticBucketed(Paged(36, 100, 4), on_demand, max_model_len=100, watermark=0.0, bucket_by="prompt")
    add(scheduler, (15, 1), (9, 18))
    step(scheduler)
    add(scheduler, (3, 2), first=LATER)
    add(scheduler, (10, 1), arrival_ns=5, first=LATER + 1)
    batch = step(scheduler)
    while not batch.admitted:
        assert ids(batch.seqs) == [1]
        batch = step(scheduler)
    assert (ids(batch.admitted), ids(scheduler.waiting)) == ([LATER + 1], [LATER])


@pytest.mark.parametrize("cls", [Static, StaticBucketed])
@pytest.mark.parametrize(("requests", "starts"), [([1, 1], False), ([1, 1, 1], True), ([2], False), ([2, 1], True)])
def test_a_batch_is_full_when_a_step_decodes_no_more_lanes(cls: Any, requests: list[int], starts: bool) -> None:
    """3 tokens a step, whatever `max_num_seqs` may be; of a request with two answers each takes one."""
    scheduler = cls(Paged(400, 100), on_demand, max_model_len=100, max_num_seqs=8, max_num_batched_tokens=3,
                    chunked_prefill=True, max_wait_s=1.0)  # fmt: skip
    for number, n in enumerate(requests):
        assert scheduler.add(Request(number, 0, 4, 4, n=n)) is None
    assert bool(scheduler.schedule(0).seqs) == starts
