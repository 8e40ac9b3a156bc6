"""One engine: a scheduler, its runner and its recorder, and the steps that are under way."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate

from allocators.base import Ask
from harness.errors import HarnessError
from harness.metrics.jump import NO_JUMP, Jump
from harness.metrics.recorder import Recorder
from harness.replay.clock import Clock
from harness.replay.jump import can_jump, jump
from harness.runner.base import Runner, StepResult
from schedulers.base import Scheduler
from schedulers.request import Batch, Rejection, Request, Sequence

MAX_REPEATS = MAX_WAKEUPS = 100_000


NO_REQUESTS: list[Request] = []


class StalledError(HarnessError):
    """Work waits, nothing is due, and the scheduler schedules nothing (or only repeats old work)."""


# A step under way, a plain tuple because an object takes more time: when the last of the steps taken together lands and
# when the tokens of the first are there (ns); the batch and what the runner returned; ns of scheduling and of executing
# it; the further steps taken with it; and, with a depth above 1, what `_promise` returned.
Promise = tuple[list[Sequence], list[Sequence]]
Step = tuple[int, int, Batch, StepResult, int, int, Jump, Promise | None]


class Engine:
    """A scheduler and a runner at work, step by step.

    With `depth` 1 a step is scheduled when the step before it is completed. With 2 the next step is scheduled while a
    step runs, as if every token that is due were known (vLLM's asynchronous scheduling). The result of a step is then
    seen only after the next step was handed to the runner: a request that arrives during step k first runs in step
    k + 2, and the memory of a request that finished in step k can be handed out from step k + 2 on.

    Args:
        depth: most steps that are handed to the runner and not completed. More than 1 needs simulated steps, whose
            tokens need not be known.

    Raises:
        HarnessError: a scheduler that would schedule a sequence beyond its last token, with a depth above 1.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, recorder: Recorder, depth: int = 1) -> None:
        if depth > 1 and not scheduler.async_scheduling:
            raise HarnessError(f"simulation.async_scheduling: {type(scheduler).__name__} can't schedule one step ahead")
        self.scheduler, self.runner, self.recorder, self.depth = scheduler, runner, recorder, depth
        self.under_way: deque[Step] = deque()
        self.arrived = self.ended = 0  # requests
        recorder.watch(scheduler.allocator)
        scheduler.predict = getattr(runner, "estimate", None)
        self._jumping = depth == 1 and can_jump(scheduler, runner)
        self._busy_until = 0  # when the runner is through with all that it was handed (ns)
        self._idle_since = -1  # ns; -1 = it is not idle
        self._blocked: Ask | None = None  # what the queue's head was refused when the engine became idle
        self._last: tuple[int, Jump] | None = None  # when the last step was ready, if further steps were taken with it
        self._repeats = self._wakeups = 0  # steps in a row that only recompute, wake-ups in a row without a step

    def add(self, request: Request, now: int) -> Rejection | None:
        """Hand a request that has arrived to the scheduler at `now` (ns), while no step is being taken.

        If several steps were taken together, the request is recorded as seen at the end of the step it arrived in.
        """
        if self._idle_since >= 0:
            self._end_idle(now)
        self.arrived += 1
        self._wakeups = 0
        rejection = self.scheduler.add(request)
        self.recorder.arrived(request, now if self._last is None else self._seen(request, now), rejection)
        if rejection:
            self.ended += 1
        return rejection

    def start(self, clock: Clock, arrival: int | None, stop_at_arrival: bool = False) -> int | None:
        """Schedule steps and hand them to the runner, up to `depth`.

        Args:
            arrival: no request arrives before this time (ns); None = no more requests arrive.
            stop_at_arrival: see `jump`.

        Returns:
            When the oldest step under way lands (ns); None if there is nothing to run.

        Raises:
            StalledError: the scheduler lost a request, or makes no progress.
        """
        scheduler, under_way = self.scheduler, self.under_way
        if self._idle_since >= 0:
            self._end_idle(clock.now)
        while len(under_way) < self.depth:
            now, mark = clock.now, clock.tick()
            batch = scheduler.schedule(now)
            schedule_ns = clock.charge(mark)
            queued = scheduler.num_requests
            if self.arrived != self.ended + queued:
                raise StalledError(f"{self.arrived} requests arrived, {self.ended} are over and {queued} are queued")
            if batch.seqs:
                under_way.append(self._hand_over(batch, now, schedule_ns, clock, arrival, stop_at_arrival))
                continue
            if not under_way:
                self._begin_idle(batch, now)
                return None
            break
        return under_way[0][0]

    def land(self, clock: Clock) -> tuple[int, list[Request]]:
        """Complete the oldest step under way; returns (tokens it produced, requests that finished)."""
        _, ready, batch, result, schedule_ns, execute_ns, further, promised = self.under_way.popleft()
        complete_ns = 0
        if promised is None:
            mark = clock.tick()
            produced, finished = self.scheduler.complete(batch, result.tokens, result.branches)
            complete_ns = clock.charge(mark)
        else:
            produced, finished = promised
            _finish(self.scheduler, finished)
        self.recorder.completed(batch, produced, finished, ready, (schedule_ns, execute_ns, complete_ns), further)
        self.ended += len(finished)
        self._last = (ready, further) if further.ns else None
        requests = [seq.request for seq in finished] if finished else NO_REQUESTS
        return len(produced) * (1 + len(further.ns)), requests

    def wake_at(self, now: int) -> int | None:
        """When (ns) the scheduler wants to be woken; None if never, or if that time is past."""
        wake = self.scheduler.wake_at() if self.scheduler.num_requests else None
        return None if wake is None or wake <= now else wake

    def close(self, now: int) -> None:
        """The replay is over at `now` (ns)."""
        self._end_idle(now)

    def stalled(self) -> str:
        """What is left in the scheduler, as a message."""
        waiting, running = self.scheduler.waiting, self.scheduler.running
        head = f"; the queue's head is {waiting[0].name}" if waiting else ""
        return f"the scheduler schedules nothing although {len(waiting)} requests wait and {len(running)} run{head}"

    def _seen(self, request: Request, now: int) -> int:
        """When (ns) a request was seen; of steps taken together, when it would have been seen step by step."""
        assert self._last
        ready, further = self._last
        ends = list(accumulate(further.ns, initial=ready))
        return now if request.arrival_ns >= ends[-1] else ends[bisect_left(ends, request.arrival_ns)]

    def _hand_over(self, batch: Batch, now: int, schedule_ns: int, clock: Clock, arrival: int | None,
                   stop_at_arrival: bool) -> Step:  # fmt: skip
        scheduler = self.scheduler
        runs = now if now > self._busy_until else self._busy_until  # quicker than `max`
        books = scheduler.allocator.memory(batch.blocked)
        self.recorder.scheduled(batch, now, scheduler.num_waiting, books, runs)
        first = batch.seqs[0]
        if first.stored > first.computed_before:  # almost always true, and checking all sequences costs more
            self._repeats = self._wakeups = 0
        else:
            self._count(batch)
        mark = clock.tick()
        result = self.runner.execute(batch)
        execute_ns = clock.charge(mark, result.ns)
        ready = self._busy_until = lands = clock.ends(runs, execute_ns)
        further = NO_JUMP
        if self._jumping:
            further = jump(scheduler, self.runner, batch, ready, arrival, stop_at_arrival)
            if further.ns:
                self._busy_until = lands = ready + sum(further.ns)
        promised = _promise(batch) if self.depth > 1 else None
        return lands, ready, batch, result, schedule_ns, execute_ns, further, promised

    def _count(self, batch: Batch) -> None:
        """Count steps in a row in which no token is computed for the first time.

        Raises:
            StalledError: there were too many.
        """
        self._wakeups = 0
        self._repeats = 0 if any(seq.stored > seq.computed_before for seq in batch.seqs) else self._repeats + 1
        if self._repeats > MAX_REPEATS:
            raise StalledError(f"{self._repeats} steps only repeated old work. {self.stalled()}")

    def _begin_idle(self, batch: Batch, now: int) -> None:
        """Note that nothing can run from `now` on.

        Raises:
            StalledError: the scheduler was woken too often without a step.
        """
        self._idle_since, self._blocked = now, batch.blocked
        if self.scheduler.num_requests:
            self._wakeups += 1
            if self._wakeups > MAX_WAKEUPS:
                raise StalledError(f"{self._wakeups} times the scheduler was woken in vain. {self.stalled()}")

    def _end_idle(self, now: int) -> None:
        """Record the idle time that ends at `now`, if the engine was idle."""
        if self._idle_since >= 0:
            since, self._idle_since = self._idle_since, -1
            if now > since:
                waiting, books = self.scheduler.num_waiting, self.scheduler.allocator.memory(self._blocked)
                self.recorder.idle(since, now, waiting, books)


def _promise(batch: Batch) -> Promise:
    """Count the tokens that a scheduled step will produce: (sequences that get a token, those that get their last one).

    A sequence's last token is not counted before the step is completed. Until then the sequence has nothing left to
    compute, so the scheduler passes over it.
    """
    produced, finished = [], []
    for seq in batch.seqs:
        if seq.stored >= seq.num_tokens:
            produced.append(seq)
            if seq.stored + 1 >= seq.end_tokens:
                finished.append(seq)
            else:
                seq.num_tokens = seq.stored + 1
    return produced, finished


def _finish(scheduler: Scheduler, finished: list[Sequence]) -> None:
    """Finish sequences whose last token is there. One that the next step preempted holds nothing and waits: drop it."""
    for seq in finished:
        seq.num_tokens = seq.end_tokens
        scheduler.lengths.observe(seq.request)
        if seq.row < 0:
            scheduler.waiting.remove(seq)
    scheduler.finish([seq for seq in finished if seq.row >= 0])
