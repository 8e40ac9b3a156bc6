"""Who of those that wait is admitted first: the named orders, and others' own."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.paged import Paged
from allocators.radix import Radix
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.max_utilization import MaxUtilization
from schedulers.orders import ORDERS, EarliestDeadline, Fcfs, LongestPrefix, Order, Priority, QueueOrder, ShortestFirst
from schedulers.request import Batch, Request, Sequence
from schedulers.reservation import on_demand
from schedulers.static import Static
from schedulers.vllm_v1 import VllmV1
from tests.conformance.jumps import LATENCIES, assert_jumps_are_steps
from tests.conformance.scheduler import SchedulerConformance, serve


class Aging(Order):
    """Priority that goes down by one for every 100 ns of waiting: it changes with time, and so does who is first."""

    def key(self, seq: Sequence, now: int) -> Any:
        return seq.request.priority - (now - seq.request.arrival_ns) // 100, seq.request.id


class Backwards(Order):
    """The last to come first; what is said of the keys is true."""

    fixed = True

    def key(self, seq: Sequence, now: int) -> Any:
        return -seq.request.id


class StillAging(ShortestFirst):
    """A named order with keys of another kind, and nothing said of them."""

    def key(self, seq: Sequence, now: int) -> Any:
        return Aging().key(seq, now)


class NoLongerFirst(Fcfs):
    def key(self, seq: Sequence, now: int) -> Any:
        return -seq.request.id


def one_at_a_time(policy: Any, requests: list[Request], cls: type[Scheduler] = Continuous, **more: Any) -> list[int]:
    """In which order they finish, over a pool that holds them all, of 10 ns steps."""
    limits = {"max_model_len": 60, "max_num_seqs": 1, "policy": policy} | more
    scheduler = cls(Paged(400, 60), on_demand, **limits)
    return [seq.request.id for seq in serve(scheduler, requests).finished]


PRIORITIES = [Request(0, 0, 4, 6), Request(1, 0, 4, 6, priority=4), Request(2, 10, 4, 6, priority=2),
              Request(3, 290, 4, 6, priority=0)]  # fmt: skip
LONG = [Request(4, 20, 4, 40, priority=3)]


@pytest.mark.parametrize("cls", [Continuous, VllmV1, Static])
def test_keys_that_change_are_asked_anew_at_each_admission(cls: type[Scheduler]) -> None:
    """0 runs until 60; of 1 (4), 2 (2) and 4 (3), 2 is next, until 120; then 4 until 520, when 1 has waited longest."""
    assert one_at_a_time(Aging(), [*PRIORITIES[:3], *LONG], cls) == [0, 2, 4, 1]
    late = [PRIORITIES[1], *LONG, PRIORITIES[3]]  # 1 until 60, 4 until 460: it is 2.6 there against 0 - 1.7
    assert one_at_a_time(Aging(), late, cls) == [1, 4, 3]


def test_a_pass_in_an_order_that_changes_pauses_whoever_is_last_by_now() -> None:
    """1 takes the place of 0 at 60 ns, and gives it back at 100, when 0 is as urgent as all and came first."""

    class Impatient(Order):
        def key(self, seq: Sequence, now: int) -> Any:
            return 0 if now - seq.request.arrival_ns >= 100 else seq.request.priority, seq.request.id

    requests = [Request(0, 0, 4, 30, priority=1), Request(1, 60, 4, 9, priority=0), Request(2, 70, 4, 5, priority=0)]
    assert one_at_a_time(Impatient(), requests, MaxUtilization) == [0, 1, 2]
    assert one_at_a_time("priority", requests, MaxUtilization) == [1, 2, 0]


@pytest.mark.parametrize("cls", [Continuous, VllmV1, MaxUtilization, Static])
@pytest.mark.parametrize("order", [Aging, Backwards, StillAging, NoLongerFirst, EarliestDeadline])
def test_jumps_are_steps_in_any_order(cls: type[Scheduler], order: type[Order]) -> None:
    def requests(number: int) -> Request:
        limits = {"ttft_slo_ms": (number * 7 % 5) * 1e-4 or None, "deadline_ms": (number * 3 % 7) * 1e-3 or None}
        return Request(number, 33 * number, 1 + number % 4, 9 + number * 7 % 20, priority=-number % 3, **limits)

    told = assert_jumps_are_steps(
        lambda _: cls(Paged(96, 60, 4), on_demand, max_model_len=60, max_num_seqs=3, policy=order()),
        [requests(i) for i in range(14)], LATENCIES["constant"],
    )  # fmt: skip
    assert told["table"]["status"].eq("finished").all()


def test_what_is_said_of_keys_is_taken_for_those_only() -> None:
    orders = (Fcfs, Priority, Backwards, Aging, StillAging, NoLongerFirst)
    sorted_ = {order: QueueOrder(order()).sorted for order in orders}
    assert sorted_ == {Fcfs: True, Priority: True, Backwards: True, Aging: False, StillAging: False,
                       NoLongerFirst: False}  # fmt: skip
    overtakes = [QueueOrder(order()).overtakes for order in (Fcfs, NoLongerFirst, Priority)]
    assert overtakes == [False, True, True]
    assert one_at_a_time(NoLongerFirst(), [Request(i, 0, 4, 4) for i in range(4)]) == [3, 2, 1, 0]


def test_the_earliest_deadline_is_of_a_first_token_or_of_the_last() -> None:
    """In ns: 1 wants its first token at 90, 2 its last at 60, 3 anything at 110 or 70; 4 and 0 want nothing."""
    limits = [{}, {"ttft_slo_ms": 9e-5}, {"deadline_ms": 6e-5}, {"ttft_slo_ms": 1.1e-4, "deadline_ms": 7e-5}, {}]
    requests = [Request(i, 0, 4, 4, **more) for i, more in enumerate(limits)]
    assert one_at_a_time("earliest_deadline", requests) == [2, 3, 1, 0, 4]


def test_one_that_is_preempted_goes_by_its_deadline_too() -> None:
    scheduler = Continuous(Paged(64, 60, 4), on_demand, max_model_len=60, policy="earliest_deadline")
    for number, ms in enumerate([3.0, 1.0, 2.0]):
        scheduler.add(Request(number, 0, 4, 9, deadline_ms=ms))
    batch = scheduler.schedule(0)
    assert [seq.request.id for seq in batch.seqs] == [1, 2, 0]
    scheduler.preempt(batch.seqs[1], batch)
    scheduler.preempt(batch.seqs[0], batch)
    assert [seq.request.id for seq in scheduler.waiting] == [1, 2]


def test_an_order_looks_at_the_pool_of_its_own_scheduler() -> None:
    order = LongestPrefix()
    pools = [Radix(64, 60), Paged(64, 60)]
    one, other = (Continuous(pool, on_demand, max_model_len=60, policy=order).order for pool in pools)
    assert [one.allocator, other.allocator] == pools  # type: ignore[attr-defined]
    assert (one.fixed, other.fixed) == (False, True)


class Bare(Scheduler):
    """As short as can be, and it does not say what time it is."""

    def schedule(self, now: int) -> Batch:
        batch = Batch()
        for seq in list(self.running):
            if seq.row >= 0 and self.grow_or_preempt(seq, seq.num_tokens, batch):
                batch.seqs.append(seq)
                batch.counts.append(seq.num_tokens - seq.stored)
        budget = self.max_num_batched_tokens - batch.num_tokens
        while self.waiting and not batch.preempted and budget > 0 and len(self.running) < self.max_num_seqs:
            count = self.admit_head(batch, budget)
            if not count:
                break
            budget -= count
        return self.close(batch)


def test_a_scheduler_that_does_not_say_what_time_it_is_is_told_so() -> None:
    scheduler = Bare(Paged(64, 60), on_demand, max_model_len=60, policy=Aging())
    scheduler.add(Request(0, 0, 4, 4))
    with pytest.raises(TypeError, match=r"Aging goes by the time: begin each step with Batch\(now=now\)"):
        scheduler.schedule(0)
    for name in ORDERS:  # none of which does
        scheduler = Bare(Radix(64, 60), on_demand, max_model_len=60, policy=name)
        scheduler.add(Request(0, 0, 4, 4))
        assert scheduler.schedule(0).seqs


@pytest.mark.parametrize("policy", ["fsfc", 3, None, Fcfs, {"priority": 1}])
def test_what_is_no_order_is_an_error_that_names_those_there_are(policy: Any) -> None:
    with pytest.raises(ValueError, match=r"scheduler.policy must be one of fcfs, .*_target_.*, got "):
        Continuous(Paged(64, 60), on_demand, max_model_len=60, policy=policy)


class TestAging(SchedulerConformance):
    fcfs = False

    def make(self, allocator: Any, reservation: Any, **limits: Any) -> Scheduler:
        return Continuous(allocator, reservation, **limits | {"policy": Aging()})


class TestEarliestDeadlineByV1(SchedulerConformance):
    fcfs = False
    caps_length = True

    def make(self, allocator: Any, reservation: Any, **limits: Any) -> Scheduler:
        return VllmV1(allocator, reservation, **limits | {"policy": "earliest_deadline"})
