"""The loop that feeds a workload to a scheduler and a runner under a clock. The same for every system compared."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Protocol

from harness.clock import Clock
from harness.errors import HarnessError
from harness.jump import NO_JUMP, Jump, can_jump, jump
from harness.metrics.recorder import Recorder
from harness.runner.base import Runner
from schedulers.base import Scheduler
from schedulers.request import Batch, Request

STEPS_WITHOUT_NEW_GROUND = WAKE_UPS_IN_VAIN = 100_000


class StalledError(HarnessError):
    """Work waits, nothing is due, and the scheduler schedules nothing (or only repeats old work)."""


class WorkloadLike(Protocol):
    """What the replayer needs of a workload: requests by arrival, and how many are in flight in a closed loop."""

    requests: list[Request]
    concurrency: int | None


class Source:
    """Arrivals in order. In a closed loop the next request arrives when one of the `concurrency` in flight is over."""

    def __init__(self, workload: WorkloadLike) -> None:
        self.pending = deque(workload.requests)
        self.closed = workload.concurrency is not None
        self.injected = 0
        if self.closed:
            for i, request in enumerate(self.pending):
                request.arrival_ns = 0 if i < (workload.concurrency or 0) else -1

    def next_at(self) -> int | None:
        """When the next request arrives (ns); None when none is left or none arrives before another is over."""
        if self.pending and self.pending[0].arrival_ns >= 0:
            return self.pending[0].arrival_ns
        return None

    def due(self, now: int) -> Iterator[Request]:
        """Those that have arrived by `now`; one that arrives because of what is done with these follows at once."""
        while self.pending and 0 <= self.pending[0].arrival_ns <= now:
            self.injected += 1
            yield self.pending.popleft()

    def over(self, count: int, now: int) -> None:
        """`count` requests are finished or rejected."""
        if self.closed:
            waiting = (request for request in self.pending if request.arrival_ns < 0)
            for request, _ in zip(waiting, range(count), strict=False):
                request.arrival_ns = now


def replay(workload: WorkloadLike, scheduler: Scheduler, runner: Runner, clock: Clock, recorder: Recorder,
           on_progress: Callable[[int, int], None] | None = None) -> None:  # fmt: skip
    """Serve every request of `workload` and record what happened.

    Args:
        on_progress: called after each step with (requests over, tokens produced so far).

    Raises:
        StalledError: a scheduler that makes no progress though work waits.
    """
    source = Source(workload)
    allocator = scheduler.allocator
    recorder.watch(allocator)
    jumping = can_jump(scheduler, runner)
    over = tokens = barren = idle = 0
    last, begun = NO_JUMP, 0  # the last jump, and when it began
    while True:
        for request in source.due(clock.now):
            ended = _end_of_step(last, begun, request.arrival_ns)
            when = clock.now if ended is None else ended
            rejection, idle = scheduler.add(request), 0
            recorder.arrived(request, when, rejection)
            if rejection:
                over += 1
                source.over(1, when)
        start, mark = clock.now, clock.tick()
        batch = scheduler.schedule(start)
        schedule_ns = clock.charge(mark)
        queued = scheduler.num_requests
        if source.injected != over + queued:
            raise StalledError(f"{source.injected} requests arrived, {over} are over and {queued} are queued")
        if not batch.seqs:
            if not queued and not source.pending:
                return  # whenever the scheduler would be woken next
            due, idle = next_event(source, scheduler, start), idle + 1
            if due is None:
                raise StalledError(stalled(scheduler, source))
            if idle > WAKE_UPS_IN_VAIN:
                raise StalledError(f"{idle} times the scheduler was woken in vain. {stalled(scheduler, source)}")
            clock.wait_until(due)
            last = NO_JUMP
            recorder.idle(start, clock.now, scheduler.num_waiting, allocator.memory(batch.blocked))
            continue
        recorder.scheduled(batch, start, scheduler.num_waiting, allocator.memory(batch.blocked))
        barren, idle = 0 if _new_ground(batch) else barren + 1, 0
        if barren > STEPS_WITHOUT_NEW_GROUND:
            raise StalledError(f"{barren} steps only repeated old work. {stalled(scheduler, source)}")
        mark = clock.tick()
        result = runner.execute(batch)
        execute_ns = clock.charge(mark, result.ns)
        ready, mark = clock.now, clock.tick()
        further = jump(scheduler, runner, batch, ready, source.next_at()) if jumping else NO_JUMP
        produced, finished = scheduler.complete(batch, result.tokens, result.branches)
        complete_ns = clock.charge(mark)
        recorder.completed(batch, produced, finished, ready, (schedule_ns, execute_ns, complete_ns), further)
        last, begun = further, ready
        if further.ns:
            clock.wait_until(ready + sum(further.ns))
        over += len(finished)
        tokens += len(produced) * (1 + len(further.ns))
        source.over(len(finished), clock.now)
        if on_progress:
            on_progress(over, tokens)


def _new_ground(batch: Batch) -> bool:
    """Whether anything is computed for the first time."""
    first = batch.seqs[0]  # most often it is, and asking all costs more
    return first.stored > first.computed_before or any(seq.stored > seq.computed_before for seq in batch.seqs)


def _end_of_step(last: Jump, begun: int, arrival: int) -> int | None:
    """When the step of a jump ended in which a request arrived: it is delivered then. None = after the jump."""
    if not last.ns:
        return None
    ends = list(accumulate(last.ns, initial=begun))
    at = bisect_left(ends, arrival)
    return ends[at] if at < len(ends) else None


def next_event(source: Source, scheduler: Scheduler, now: int) -> int | None:
    """When (ns) a request arrives or the scheduler wants to be woken; None = never."""
    arrival, wake = source.next_at(), scheduler.wake_at()
    if wake is None or wake <= now or not scheduler.num_requests:  # the last one is past, or can't have any effect
        return arrival
    return wake if arrival is None else min(arrival, wake)


def stalled(scheduler: Scheduler, source: Source) -> str:
    head = f"; the queue's head is {scheduler.waiting[0].name}" if scheduler.waiting else ""
    return (
        f"the scheduler schedules nothing although {len(scheduler.waiting)} requests wait and {len(scheduler.running)} "
        f"run, and no arrival is due ({len(source.pending)} still to come){head}"
    )
