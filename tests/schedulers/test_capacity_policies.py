"""Who may join, by TensorRT-LLM's two capacity policies and by LightLLM's past-future scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator
from allocators.paged import Paged
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.guaranteed_no_evict import GuaranteedNoEvict
from schedulers.ideal import Ideal
from schedulers.lengths import Window
from schedulers.max_utilization import MaxUtilization
from schedulers.orders import Priority
from schedulers.past_future import PastFuture
from schedulers.request import Batch, Request
from schedulers.reservation import Reservation, on_demand
from tests.conformance import scheduler as conformance
from tests.conformance.effort import cases
from tests.conformance.scheduler import SchedulerConformance, serve


def by_priority(seq: Any) -> Any:
    return Priority().key(seq, 0)


class TestGuaranteedNoEvict(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return GuaranteedNoEvict(allocator, reservation, **limits)


class TestMaxUtilization(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return MaxUtilization(allocator, reservation, **limits)


class TestMaxUtilizationInOrder(SchedulerConformance):
    fcfs = False

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return MaxUtilization(allocator, reservation, **limits | {"policy": "shortest_first"})


class TestPastFuture(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return PastFuture(allocator, reservation, initial_output_len=10, **limits)


class TestPastFutureWithOneGuess(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return PastFuture(allocator, reservation, length_predictor="noisy:0.5", **limits)


def made(cls: type[Scheduler], slots: int, *requests: Request, block_size: int = 4, **more: Any) -> Any:
    scheduler = cls(Paged(slots, 100, block_size), on_demand, **{"max_model_len": 100} | more)
    for request in requests:
        assert scheduler.add(request) is None
    return scheduler


def step(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule(0)
    scheduler.complete(batch, None)
    return batch


def admissions(scheduler: Scheduler) -> dict[int, int]:
    """Request id -> the step, from 0, in which it was first admitted."""
    found: dict[int, int] = {}
    for number, batch in enumerate(conformance.steps(scheduler)):
        scheduler.complete(batch, None)
        for seq in batch.admitted:
            found.setdefault(seq.request.id, number)
    return found


def ids(seqs: Any) -> list[int]:
    return [seq.request.id for seq in seqs]


# ---- guaranteed_no_evict


def test_the_head_joins_when_the_longest_that_all_may_get_fits() -> None:
    """Prompt 4 and a cap of 9: 12 tokens stored at most, 3 blocks of 4. Of 7 blocks, two such requests get 6."""
    requests = [Request(i, 0, 4, 3, max_tokens=9) for i in range(3)]
    assert admissions(made(GuaranteedNoEvict, 28, *requests)) == {0: 0, 1: 0, 2: 3}  # when both are over
    assert admissions(made(MaxUtilization, 28, *requests)) == {0: 0, 1: 0, 2: 0}


def test_blocks_that_others_took_already_are_not_counted_twice() -> None:
    """9 blocks; 0 may need 3 and holds 1, 1 may need 6: then exactly 9 are promised."""
    fits = made(GuaranteedNoEvict, 36, Request(0, 0, 4, 9, 9), Request(1, 0, 4, 21, 21))
    assert ids(step(fits).admitted) == [0, 1]
    short = made(GuaranteedNoEvict, 36, Request(0, 0, 4, 9, 9), Request(1, 0, 4, 22, 22))
    batch = step(short)
    assert ids(batch.admitted) == [0]
    assert batch.blocked is not None
    assert batch.blocked.slots == 32 + 4  # 8 blocks are free, 2 promised to 0 and 7 asked for: one is missing


def test_the_truth_may_be_counted_instead_of_the_cap() -> None:
    requests = [Request(i, 0, 4, 3, max_tokens=9) for i in range(3)]
    assert admissions(made(GuaranteedNoEvict, 28, *requests, promise="exact")) == {0: 0, 1: 0, 2: 0}


def test_who_declares_nothing_may_fill_the_pool() -> None:
    """max_model_len = 100 is more than the pool holds, so one of them may need all of it."""
    assert admissions(made(GuaranteedNoEvict, 28, *(Request(i, 0, 4, 2) for i in range(3)))) == {0: 0, 1: 2, 2: 4}


LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40), st.none() | st.integers(1, 60)), min_size=1,
                   max_size=20)  # fmt: skip


@settings(max_examples=cases(150), deadline=None, derandomize=True)
@given(LENGTHS, st.sampled_from([1, 4, 16]), st.booleans(), st.booleans(), st.integers(1, 20))
def test_nobody_is_ever_preempted(
    lengths: list[tuple[int, int, int | None]], block_size: int, caching: bool, chunked: bool, budget: int
) -> None:
    pool = Paged(96, 80, block_size, enable_prefix_caching=caching)
    scheduler = GuaranteedNoEvict(pool, on_demand, max_model_len=80, max_num_seqs=16, chunked_prefill=chunked,
                                  max_num_batched_tokens=budget if chunked else 100)  # fmt: skip
    requests = [Request(i, 15 * i, p, o, cap, token_ids=list(range(p))) for i, (p, o, cap) in enumerate(lengths)]
    served = serve(scheduler, requests)
    assert len(served.finished) == len(lengths)
    assert served.preemptions == 0


@settings(max_examples=cases(60), deadline=None, derandomize=True)
@given(LENGTHS, st.sampled_from([1, 4, 16]))
def test_a_promise_that_is_counted_admits_whom_one_that_is_taken_does(
    lengths: list[tuple[int, int, int | None]], block_size: int
) -> None:
    """The same requests in the same steps as with the reservation max_tokens, though the slots stay free."""
    requests = [Request(i, 0, p, o, cap or 50) for i, (p, o, cap) in enumerate(lengths)]
    counted = GuaranteedNoEvict(Paged(200, 80, block_size), on_demand, max_model_len=80, max_num_batched_tokens=999)
    taken = Continuous(Paged(200, 80, block_size), conformance.RESERVATIONS["max_tokens"], max_model_len=80,
                       max_num_batched_tokens=999)  # fmt: skip
    for request in requests:
        assert counted.add(request) is None
        assert taken.add(request) is None
    assert admissions(counted) == admissions(taken)


# ---- max_utilization


@settings(max_examples=cases(100), deadline=None, derandomize=True)
@given(LENGTHS, st.booleans(), st.sampled_from(["fcfs", "longest_prefix"]))
def test_in_order_of_arrival_it_is_continuous_batching_without_a_watermark(
    lengths: list[tuple[int, int, int | None]], chunked: bool, policy: str
) -> None:
    told = []
    for cls in (MaxUtilization, Continuous):
        requests = [Request(i, 0, p, o, cap) for i, (p, o, cap) in enumerate(lengths)]
        more: dict[str, Any] = {"chunked_prefill": chunked, "policy": policy, "watermark": 0.0}
        scheduler = made(cls, 96, *requests, max_model_len=80, max_num_batched_tokens=80, **more)
        told.append([(ids(batch.seqs), batch.counts, ids(batch.preempted)) for batch in conformance.finish(scheduler)])
    assert told[0] == told[1]


@settings(max_examples=cases(100), deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40), st.integers(0, 2), st.integers(0, 90)), min_size=1,
                max_size=14), st.booleans(), st.integers(1, 6))  # fmt: skip
def test_with_priorities_whoever_runs_comes_before_whoever_waits(
    rows: list[tuple[int, int, int, int]], chunked: bool, lanes: int
) -> None:
    """Unless the step's tokens ran out; and all are served, so nobody livelocks."""
    requests, now = list[Request](), 0
    for number, (prompt, output, priority, gap) in enumerate(rows):
        now += gap
        requests.append(Request(number, now, prompt, output, priority=priority))
    scheduler = Ordered(Paged(96, 80, 4), on_demand, max_model_len=80, max_num_seqs=lanes, policy="priority",
                        chunked_prefill=chunked, max_num_batched_tokens=80)  # fmt: skip
    assert len(serve(scheduler, requests).finished) == len(rows)


class Ordered(MaxUtilization):
    """Sees to it after each step that nobody waits whose place a later one has."""

    def schedule(self, now: int) -> Batch:
        batch = super().schedule(now)
        assert self.running == sorted(self.running, key=by_priority)
        full = self.max_num_batched_tokens - batch.num_tokens  # a prompt may not have fitted the rest
        if self.waiting and self.running and self.waiting[0].num_tokens <= full:
            assert by_priority(self.running[-1]) < by_priority(self.waiting[0])
        return batch


def test_one_that_waits_pauses_those_behind_it_for_their_slots() -> None:
    """3 blocks. 0 and 1 run, of lower priority; 2 comes first and needs two: 1 is paused, 0 goes on."""
    requests = [Request(i, 0, 4, 4, priority=1) for i in range(2)]
    for cls, paused, admitted in ((MaxUtilization, [1], [2]), (Continuous, [], [])):
        scheduler = made(cls, 12, *requests, policy="priority", watermark=0.0)
        if cls is MaxUtilization:
            assert ids(step(scheduler).admitted) == [0, 1]
        else:
            scheduler.schedule(0)
        scheduler.add(Request(2, 0, 8, 1, priority=0))
        batch = scheduler.schedule(0)
        assert (ids(batch.preempted)[:1], ids(batch.admitted)) == (paused, admitted)


def test_one_that_waits_pauses_the_last_for_its_place() -> None:
    scheduler = made(MaxUtilization, 100, Request(0, 0, 4, 9), Request(1, 0, 4, 8), policy="shortest_first",
                     max_num_seqs=2)  # fmt: skip
    assert ids(step(scheduler).seqs) == [1, 0]
    scheduler.add(Request(2, 0, 4, 2))
    batch = step(scheduler)
    assert (ids(batch.preempted), ids(batch.seqs)) == ([0], [2, 1])
    step(scheduler)
    assert ids(step(scheduler).seqs) == [1, 0]  # back at its old place


def test_nobody_behind_a_paused_one_starts_in_that_step() -> None:
    """Of 3 blocks, 0 needs one of the two that 1 holds; a third sequence would fit what is left, but comes after 1."""
    scheduler = made(MaxUtilization, 12, Request(0, 0, 4, 9, priority=0), Request(1, 0, 8, 5, priority=1),
                     policy="priority")  # fmt: skip
    step(scheduler)
    scheduler.add(Request(2, 0, 1, 1, priority=2))
    batch = step(scheduler)
    assert (ids(batch.preempted), ids(batch.seqs), batch.admitted) == ([1], [0], [])
    assert ids(scheduler.waiting) == [1, 2]


# ---- past_future


def test_the_peak_of_the_future_decides() -> None:
    """Answers are told to be 10 tokens: with prompts of 4, two peak at 2 x 13 slots, three at 39."""
    requests = [Request(i, 0, 4, 10) for i in range(3)]
    for slots, joined in ((26, [0, 1]), (38, [0, 1]), (39, [0, 1, 2])):
        scheduler = made(PastFuture, slots, *requests, block_size=1, length_predictor="noisy:0", reserved=0.0)
        assert ids(step(scheduler).admitted) == joined


def test_a_reserved_share_is_not_counted_on() -> None:
    requests = [Request(i, 0, 4, 10) for i in range(3)]
    scheduler = made(PastFuture, 40, *requests, block_size=1, length_predictor="noisy:0", reserved=0.05)
    assert ids(step(scheduler).admitted) == [0, 1]  # 38 of 40


def test_a_short_history_lets_more_in_than_a_long_one() -> None:
    requests = [Request(i, 0, 4, 10, 60) for i in range(8)]
    joined = [len(step(made(PastFuture, 200, *requests, initial_output_len=told)).admitted) for told in (4, 50)]
    assert joined[0] > joined[1] >= 1


@settings(max_examples=cases(60), deadline=None, derandomize=True)
@given(LENGTHS, st.sampled_from([1, 4]))
def test_with_the_truth_nobody_is_preempted_and_with_nothing_reserved_it_is_the_ideal(
    lengths: list[tuple[int, int, int | None]], block_size: int
) -> None:
    told = []
    for cls, more in ((PastFuture, {"length_predictor": "oracle", "reserved": 0.0}), (Ideal, {}),
                      (PastFuture, {"length_predictor": "oracle", "reserved": 0.1})):  # fmt: skip
        requests = [Request(i, 0, p, o, cap) for i, (p, o, cap) in enumerate(lengths)]
        batches = conformance.finish(made(cls, 96, *requests, block_size=block_size, max_model_len=80, **more))
        told.append([(ids(batch.seqs), batch.counts) for batch in batches])
        assert not any(batch.preempted for batch in batches)
    assert told[0] == told[1]


def test_the_same_seed_draws_the_same_futures() -> None:
    def told(seed: int) -> dict[int, int]:
        return admissions(made(PastFuture, 120, *(Request(i, 0, 4, 5 + 3 * (i % 7), 60) for i in range(40)),
                               initial_output_len=20, seed=seed))  # fmt: skip

    assert told(1) == told(1)
    assert told(1) != told(2)


def test_lengths_are_drawn_from_those_longer_than_what_there_is() -> None:
    """Known are 10, 20 and 30. Who has 15 ends between 15, 20, 30 and its cap of 50, a third each."""
    window = Window(size=3, initial=10)
    window.observe(20)
    window.observe(30)
    draws = np.array([[0.0], [1 / 6], [1 / 3], [1 / 2], [2 / 3], [5 / 6], [0.999999]])
    drawn = window.sample(np.array([15]), np.array([50]), draws)
    assert drawn[:, 0].tolist() == [16, 18, 20, 25, 30, 40, 50]  # at least one token is still to come


def test_the_oldest_answers_are_forgotten() -> None:
    window = Window(size=2, initial=10)
    for length in (20, 30):
        window.observe(length)
    assert window.sample(np.array([0]), np.array([30]), np.array([[1 / 3], [2 / 3]])).ravel().tolist() == [20, 30]


@pytest.mark.parametrize(
    ("cls", "wrong", "names"),
    [
        (GuaranteedNoEvict, {"promise": "on_demand"}, "promise"),
        (MaxUtilization, {"prefill_first": True}, "prefill_first"),
        (PastFuture, {"reserved": 1.0}, "reserved"),
        (PastFuture, {"samples": 0}, "samples"),
        (PastFuture, {"window": 0}, "window"),
    ],
)
def test_what_makes_no_sense_is_an_error(cls: type[Scheduler], wrong: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        made(cls, 40, **wrong)
