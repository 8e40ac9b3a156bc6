"""The suite that every scheduler inherits.

Yours does so like this:

    class TestMine(SchedulerConformance):
        def make(self, allocator, reservation, **limits):
            return Mine(allocator, reservation, **limits)

`limits` are the keyword arguments of `Scheduler`; `max_model_len` is always among them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator
from allocators.buddy import Buddy
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.radix import Radix
from allocators.virtual import Virtual
from schedulers.base import Scheduler
from schedulers.group import Branch
from schedulers.request import Batch, Rejection, Request, Sequence
from schedulers.reservation import RESERVATIONS, Reservation, on_demand

from .effort import cases
from .jumps import any_jump_is_its_steps

STEP_NS = 10
STEPS = 10_000  # no workload here needs more


@dataclass
class Served:
    """What became of the requests of a workload."""

    finished: list[Sequence] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)  # request ids, in the order of their first admission
    preemptions: int = 0


def serve(scheduler: Scheduler, requests: Iterable[Request], closed_batches: bool = False) -> Served:
    """Run `requests` (by arrival) to the end, 10 ns a step; every rule of a step is asserted in every step."""
    served, injected, now, chance, lost = Served(), 0, 0, Random(0), 0
    pending = deque(requests)
    lanes: list[Sequence] = []
    for _ in range(STEPS):
        while pending and pending[0].arrival_ns <= now:
            injected += 1
            rejection = scheduler.add(pending.popleft())
            if rejection:
                served.rejected.append(rejection)
        running = list(scheduler.running)
        batch = scheduler.schedule(now)
        check_step(scheduler, batch)
        if closed_batches:
            lanes = check_nobody_joins(running, lanes, batch)
        over = len(served.finished) + len(served.rejected)
        assert injected == over + scheduler.num_requests, "a request got lost"
        new = [seq.request.id for seq in batch.admitted if not seq.preemptions]
        served.admitted += [number for number in new if number not in served.admitted]
        served.preemptions += len(batch.preempted)
        lost += batch.preemptions
        if batch.seqs:
            served.finished += scheduler.complete(batch, None, searches(batch, chance))[1]
            now += STEP_NS
            continue
        if not scheduler.num_requests and not pending:
            assert lost == sum(seq.preemptions for seq in served.finished), "steps and requests count other preemptions"
            return served
        wake = scheduler.wake_at() if scheduler.num_requests else None
        due = [request.arrival_ns for request in list(pending)[:1]]
        due += [wake] if wake is not None and wake > now else []
        assert due, "requests are queued and nothing will ever be scheduled"
        now = min(due)
    raise AssertionError(f"the scheduler spins: {STEPS} steps without an end")


def searches(batch: Batch, chance: Random) -> dict[int, list[Branch]]:
    """Any outcome of the beam searches that are due in `batch`."""
    due = [seq.group for seq in batch.seqs if seq.group and seq is seq.group.seqs[0] and seq.group.ready()]
    return {
        group.request.id: [Branch(chance.randrange(group.size) if group.forked else 0) for _ in group.seqs]
        for group in due
        if group.request.use_beam_search
    }


def check_step(scheduler: Scheduler, batch: Batch) -> None:
    """The rules of one step."""
    seqs, counts = batch.seqs, batch.counts
    assert len(seqs) == len(counts) == len(set(map(id, seqs))), "a sequence is scheduled twice"
    assert batch.num_tokens <= scheduler.max_num_batched_tokens
    assert max(len(seqs), len(scheduler.running)) <= scheduler.max_num_seqs
    running = set(map(id, scheduler.running))
    for seq, new in zip(seqs, counts, strict=True):
        assert id(seq) in running, f"{seq.name} is scheduled but does not run"
        assert new >= 1
        assert seq.stored <= min(seq.num_tokens, seq.room)
        whole = seq.stored == seq.num_tokens or seq.group is not None  # a group computes its prompt, then its answers
        assert scheduler.chunked_prefill or whole, f"a piece of {seq.name} is scheduled"
    for leader in [*scheduler.waiting, *scheduler.swapped]:
        for seq in leader.members:
            assert not seq.held, f"{seq.name} waits and holds slots"
    for seq in batch.preempted:
        assert (seq in scheduler.waiting) != (seq in scheduler.swapped)
        assert not any(member in seqs for member in seq.members)
    for group in {seq.group for seq in seqs if seq.group and seq.group.forked}:
        last = [seq.stored == seq.num_tokens for seq in group.seqs]
        assert all(last) or not any(last), "a group is not in step"
    waits = scheduler.waiting or scheduler.swapped
    assert batch.blocked is None or waits, "somebody was refused, but nobody waits"


def check_nobody_joins(running: list[Sequence], lanes: list[Sequence], batch: Batch) -> list[Sequence]:
    """A batch is joined only when all its other lanes are gone; returns the lanes of the batch that runs now."""
    if batch.admitted and running:
        others = [lane for lane in lanes if lane is not running[0]]
        assert others, "somebody joined a batch that has just begun"
        assert not any(lane.held for lane in others if lane not in batch.admitted), "somebody joined a running batch"
    return [*running[:1], *batch.admitted] if batch.admitted else lanes


@st.composite
def allocators(draw: st.DrawFn, capacity: int, max_model_len: int) -> Allocator:
    """Any built-in allocator."""
    kind = draw(st.sampled_from([Paged, Contiguous, Buddy, Radix, Virtual]))
    if kind is Virtual:
        return Virtual(capacity, max_model_len, page_tokens=draw(st.sampled_from([1, 3, 8])))
    if kind is Paged:
        size, caching, host = draw(st.sampled_from([1, 4, 16])), draw(st.booleans()), draw(st.sampled_from([0, 100]))
        return Paged(capacity, max_model_len, block_size=size, enable_prefix_caching=caching, host_slots=host)
    if kind is Contiguous:
        fit = draw(st.sampled_from(["slab", "first_fit", "best_fit"]))
        if fit == "slab":
            return Contiguous(capacity, max_model_len)
        compaction, growth = draw(st.sampled_from(["never", "on_refusal"])), draw(st.sampled_from([0, 3]))
        return Contiguous(capacity, max_model_len, fit=fit, compaction=compaction, growth=growth)
    if kind is Radix:
        return Radix(capacity, max_model_len, page_size=draw(st.sampled_from([1, 1, 4])))
    return Buddy(capacity, max_model_len)


@st.composite
def workloads(draw: st.DrawFn, longest: int) -> list[Request]:
    """Up to a dozen requests; some may be longer than `longest` tokens and can never be served."""
    length, requests, now = st.integers(1, max(longest * 2 // 3, 1)), list[Request](), 0
    for number in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0, 0, 5, 10, 200]))
        cap = draw(st.none() | length)
        prompt_len, token_ids = draw(length), None
        if draw(st.booleans()):  # out of two families, so that prefixes are shared
            token_ids = [100 * draw(st.integers(0, 1)) + at for at in range(prompt_len)]
        request = Request(number, now, prompt_len, draw(length), max_tokens=cap, token_ids=token_ids)
        request.n, request.use_beam_search = draw(st.sampled_from([1, 1, 2, 3])), draw(st.booleans())
        request.priority = draw(st.integers(0, 2))
        requests.append(request)
    return requests


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """Tight and loose ones."""
    return {
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([1, 2, 7, 30, 100])),
        "chunked_prefill": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.3])),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority", "shortest_first", "longest_prefix"])),
    }


class SchedulerConformance:
    """What holds for every scheduler. Override `make`.

    Attributes:
        fcfs: requests are first admitted in the order of their arrival.
        closed_batches: nobody joins a running batch.
        caps_length: a request longer than `max_model_len` is cut there, where its prompt is shorter.
        effort: how hard hypothesis tries.
        simulations: how hard where each try is two whole simulations.
    """

    fcfs = True
    closed_batches = False
    caps_length = False
    effort = settings(max_examples=cases(150), deadline=None, derandomize=True)
    simulations = settings(max_examples=cases(20), deadline=None, derandomize=True)

    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        raise NotImplementedError("override make(allocator, reservation, **limits)")

    def serve(self, allocator: Allocator, reservation: Reservation, requests: list[Request], **limits: Any) -> Served:
        """Run `requests` on a checked allocator, and see that its pool is free afterwards."""
        checked: Any = Checked(allocator)
        served = serve(self.make(checked, reservation, **limits), requests, self.closed_batches)
        assert not checked.holders, "somebody still holds slots"
        assert checked.memory().free + checked.memory().cached == allocator.capacity
        return served

    def tiny_pool(self, requests: list[Request], **limits: Any) -> Served:
        """4 blocks of 4 slots."""
        limits = {"max_model_len": 100, "watermark": 0.0, "chunked_prefill": True} | limits
        return self.serve(Paged(16, 100, block_size=4), on_demand, requests, **limits)

    def test_every_request_ends_finished_or_rejected(self) -> None:
        self.effort(given(st.data())(self.serve_something))()

    def serve_something(self, data: st.DataObject) -> None:
        """Any workload on any allocator under any limits."""
        longest, capacity = data.draw(st.integers(2, 40), "max_model_len"), data.draw(st.integers(4, 120), "capacity")
        allocator = data.draw(allocators(capacity, longest), "allocator")
        names = sorted(name for name in RESERVATIONS if allocator.grows or name != "on_demand")
        reservation = RESERVATIONS[data.draw(st.sampled_from(names), "reservation")]
        requests = data.draw(workloads(longest), "requests")
        bounds = data.draw(limits(), "limits")
        served = self.serve(allocator, reservation, requests, max_model_len=longest, **bounds)
        over = [seq.request.id for seq in served.finished] + [r.request.id for r in served.rejected]
        assert sorted(over) == [request.id for request in requests]
        for seq in served.finished:
            end = seq.request.prompt_len + seq.request.output_len
            assert seq.num_tokens == (min(end, longest) if self.caps_length else end)
        if self.fcfs and bounds["policy"] == "fcfs":
            assert served.admitted == sorted(served.admitted)

    def test_steps_taken_together_are_the_steps_taken_one_by_one(self) -> None:
        @given(st.data())
        def check(data: st.DataObject) -> None:
            any_jump_is_its_steps(data, self.make)

        self.simulations(check)()

    def test_a_pool_too_small_for_its_requests_makes_them_take_turns(self) -> None:
        """Each fits alone, no two fit to their ends: somebody is preempted or waits, and all are served."""
        served = self.tiny_pool([Request(i, 0, 4, 12) for i in range(3)])
        assert len(served.finished) == 3

    def test_what_can_never_fit_is_rejected_with_the_reason(self) -> None:
        """4 blocks of 4, prompt 8, output 12: elsewhere this is preempted and queued again for ever."""
        served = self.tiny_pool([Request(0, 0, 8, 12)])
        assert [rejection.reason for rejection in served.rejected] == ["19 tokens never fit the KV pool of 16 slots"]

    def test_what_outgrows_the_pool_is_rejected_though_its_prompt_fits(self) -> None:
        served = self.tiny_pool([Request(0, 0, 4, 14)])
        assert [rejection.reason for rejection in served.rejected] == ["17 tokens never fit the KV pool of 16 slots"]

    def test_what_fills_the_pool_to_the_last_slot_is_served(self) -> None:
        """The last token is never stored: 4 + 13 tokens need 16 slots."""
        assert len(self.tiny_pool([Request(0, 0, 4, 13)]).finished) == 1

    def test_the_watermark_does_not_keep_out_a_request_that_needs_the_whole_pool(self) -> None:
        assert len(self.tiny_pool([Request(0, 0, 4, 13), Request(1, 0, 4, 13)], watermark=0.9).finished) == 2

    def test_a_rejected_request_does_not_hold_up_the_others(self) -> None:
        served = self.tiny_pool([Request(0, 0, 4, 2), Request(1, 0, 90, 2), Request(2, 0, 4, 2)])
        assert [seq.request.id for seq in served.finished] == [0, 2]

    def test_what_is_longer_than_the_model_takes_is_rejected_with_the_reason(self) -> None:
        served = self.tiny_pool([Request(0, 0, 10 if self.caps_length else 6, 5)], max_model_len=10)
        assert "max_model_len = 10" in served.rejected[0].reason

    def test_what_a_step_can_not_hold_whole_is_rejected_with_the_reason(self) -> None:
        served = self.tiny_pool([Request(0, 0, 6, 5)], max_num_batched_tokens=9, chunked_prefill=False)
        assert "max_num_batched_tokens = 9" in served.rejected[0].reason

    def test_sampled_tokens_go_to_the_sequences_they_were_due_for(self) -> None:
        scheduler = self.make(Paged(64, 64), on_demand, max_model_len=64)
        for request in (Request(0, 0, 3, 2), Request(1, 0, 5, 2)):
            scheduler.add(request)
        tokens, sequences = iter(range(100)), list(scheduler.waiting)
        for batch in steps(scheduler, now=10**9):
            due = [seq for seq in batch.seqs if seq.stored == seq.num_tokens]
            produced, _ = scheduler.complete(batch, [next(tokens) for _ in due])
            assert produced == due
        assert sorted(token for seq in sequences for token in seq.outputs) == [0, 1, 2, 3]
        assert [len(seq.outputs) for seq in sequences] == [2, 2]

    @pytest.mark.parametrize("limit", ["max_num_seqs", "max_num_batched_tokens"])
    @pytest.mark.parametrize("value", [0, -1])
    def test_a_limit_below_one_is_an_error_that_names_it(self, limit: str, value: int) -> None:
        with pytest.raises(ValueError, match=limit):
            self.make(Paged(64, 64), on_demand, max_model_len=64, **{limit: value})

    @pytest.mark.parametrize("watermark", [-0.1, 1.0, float("nan")])
    def test_a_watermark_outside_0_to_1_is_an_error(self, watermark: float) -> None:
        with pytest.raises(ValueError, match="watermark"):
            self.make(Paged(64, 64), on_demand, max_model_len=64, watermark=watermark)


def steps(scheduler: Scheduler, now: int = 0) -> Iterator[Batch]:
    """Batches until nothing is left to schedule, all at `now`; the caller completes each."""
    while (batch := scheduler.schedule(now)).seqs:
        yield batch


def finish(scheduler: Scheduler) -> list[Batch]:
    """All batches until nothing is left to schedule, each completed."""
    batches = []
    for batch in steps(scheduler):
        scheduler.complete(batch, None)
        batches.append(batch)
    return batches
