"""One engine: a scheduler and its runner, the steps that are under way, and what is written down of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
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

STEPS_WITHOUT_NEW_GROUND = WAKE_UPS_IN_VAIN = 100_000


NOBODY: list[Request] = []


class StalledError(HarnessError):
    """Work waits, nothing is due, and the scheduler schedules nothing (or only repeats old work)."""


@dataclass(slots=True)
class Step:
    """A step on its way, and those it is taken together with.

    Attributes:
        batch, result: what it computes, and what the runner gave.
        ready, lands: when its tokens are there, and those of the last of the `further` steps (ns).
        spent: ns of scheduling and of executing it.
        promised: with more than one step under way, the sequences that get a token, and those for which it is the last.
    """

    batch: Batch
    result: StepResult
    ready: int
    lands: int
    spent: tuple[int, int]
    further: Jump
    promised: tuple[list[Sequence], list[Sequence]] | None


class Engine:
    """A scheduler and a runner at work, step by step.

    With `depth` 1 a step is scheduled when the one before is completed. With 2, while a step runs the next one is
    scheduled already, as if every token that is due were known (vLLM's asynchronous scheduling). So what a step gives
    is seen when the step after it has been handed over: a request that arrives during step k first runs in step k + 2,
    and what a request held that finished in step k can be handed out from step k + 2 on.

    Args:
        depth: steps handed to the runner and not completed. More than 1 is for simulated steps, whose tokens need not
            be known.

    Raises:
        HarnessError: a scheduler that would schedule a sequence beyond its last token, with a depth above 1.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, recorder: Recorder, depth: int = 1) -> None:
        if depth > 1 and not scheduler.ahead:
            raise HarnessError(f"simulation.async_scheduling: {type(scheduler).__name__} can't schedule one step ahead")
        self.scheduler, self.runner, self.recorder, self.depth = scheduler, runner, recorder, depth
        self.under_way: deque[Step] = deque()
        self.arrived = self.over = 0  # requests
        recorder.watch(scheduler.allocator)
        scheduler.predict = getattr(runner, "estimate", None)
        self._jumping = depth == 1 and can_jump(scheduler, runner)
        self._busy_until = 0  # when the runner is through with all that it was handed (ns)
        self._idle_since = -1  # ns; -1 = it is not idle
        self._blocked: Ask | None = None  # what the queue's head was refused when it became idle
        self._last: Step | None = None  # the last one that landed, if it was taken together with others
        self._barren = self._fruitless = 0  # steps that only repeated old work, wake-ups that nothing came of

    def add(self, request: Request, now: int) -> Rejection | None:
        """Take in a request that has arrived, at `now` (ns): when a step has landed, or while there is none.

        Of steps that were taken together, it joined the queue at the end of the one in which it arrived.
        """
        if self._idle_since >= 0:
            self._rouse(now)
        self.arrived += 1
        self._fruitless = 0
        rejection = self.scheduler.add(request)
        self.recorder.arrived(request, now if self._last is None else self._seen(request, now), rejection)
        if rejection:
            self.over += 1
        return rejection

    def start(self, clock: Clock, arrival: int | None, heed: bool = False) -> int | None:
        """Schedule steps and hand them to the runner, as many as may be under way.

        Args:
            arrival: before this (ns) no request can arrive; None = none will.
            heed: see `jump`.

        Returns:
            When the oldest step under way lands (ns); None = there is nothing to run.

        Raises:
            StalledError: the scheduler lost a request, or makes no progress.
        """
        scheduler, under_way = self.scheduler, self.under_way
        if self._idle_since >= 0:
            self._rouse(clock.now)
        while len(under_way) < self.depth:
            now, mark = clock.now, clock.tick()
            batch = scheduler.schedule(now)
            schedule_ns = clock.charge(mark)
            queued = scheduler.num_requests
            if self.arrived != self.over + queued:
                raise StalledError(f"{self.arrived} requests arrived, {self.over} are over and {queued} are queued")
            if batch.seqs:
                under_way.append(self._hand_over(batch, now, schedule_ns, clock, arrival, heed))
                continue
            if not under_way:
                self._rest(batch, now)
                return None
            break
        return under_way[0].lands

    def land(self, clock: Clock) -> tuple[int, list[Request]]:
        """Complete the oldest step under way, whose time has come: (tokens it produced, requests that are over)."""
        step, complete_ns = self.under_way.popleft(), 0
        if step.promised is None:
            mark = clock.tick()
            produced, finished = self.scheduler.complete(step.batch, step.result.tokens, step.result.branches)
            complete_ns = clock.charge(mark)
        else:
            produced, finished = step.promised
            _finish(self.scheduler, finished)
        self.recorder.completed(step.batch, produced, finished, step.ready, (*step.spent, complete_ns), step.further)
        self.over += len(finished)
        self._last = step if step.further.ns else None
        return len(produced) * (1 + len(step.further.ns)), [seq.request for seq in finished] if finished else NOBODY

    def wake_at(self, now: int) -> int | None:
        """When (ns) the scheduler wants to be woken; None = never, or it would have no effect."""
        wake = self.scheduler.wake_at() if self.scheduler.num_requests else None
        return None if wake is None or wake <= now else wake

    def close(self, now: int) -> None:
        """The replay is over at `now` (ns)."""
        self._rouse(now)

    def stalled(self) -> str:
        """Who is left when nothing is due any more."""
        waiting, running = self.scheduler.waiting, self.scheduler.running
        head = f"; the queue's head is {waiting[0].name}" if waiting else ""
        return f"the scheduler schedules nothing although {len(waiting)} requests wait and {len(running)} run{head}"

    def _seen(self, request: Request, now: int) -> int:
        """When (ns) a request was seen, or would have been had every step been taken by itself."""
        assert self._last
        if request.arrival_ns >= self._last.lands:
            return now
        ends = list(accumulate(self._last.further.ns, initial=self._last.ready))
        return ends[bisect_left(ends, request.arrival_ns)]

    def _hand_over(self, batch: Batch, now: int, schedule_ns: int, clock: Clock, arrival: int | None,
                   heed: bool) -> Step:  # fmt: skip
        scheduler = self.scheduler
        runs = max(now, self._busy_until)
        books = scheduler.allocator.memory(batch.blocked)
        self.recorder.scheduled(batch, now, scheduler.num_waiting, books, runs)
        first = batch.seqs[0]
        if first.stored > first.computed_before:  # most often it is, and asking all costs more
            self._barren = self._fruitless = 0
        else:
            self._count(batch)
        mark = clock.tick()
        result = self.runner.execute(batch)
        execute_ns = clock.charge(mark, result.ns)
        ready = self._busy_until = lands = clock.ends(runs, execute_ns)
        further = NO_JUMP
        if self._jumping:
            further = jump(scheduler, self.runner, batch, ready, arrival, heed)
            if further.ns:
                self._busy_until = lands = ready + sum(further.ns)
        promised = _promise(batch) if self.depth > 1 else None
        return Step(batch, result, ready, lands, (schedule_ns, execute_ns), further, promised)

    def _count(self, batch: Batch) -> None:
        """See that something is computed for the first time, now and then."""
        self._fruitless = 0
        self._barren = 0 if any(seq.stored > seq.computed_before for seq in batch.seqs) else self._barren + 1
        if self._barren > STEPS_WITHOUT_NEW_GROUND:
            raise StalledError(f"{self._barren} steps only repeated old work. {self.stalled()}")

    def _rest(self, batch: Batch, now: int) -> None:
        """Nothing can run from `now` on."""
        self._idle_since, self._blocked = now, batch.blocked
        if self.scheduler.num_requests:
            self._fruitless += 1
            if self._fruitless > WAKE_UPS_IN_VAIN:
                raise StalledError(f"{self._fruitless} times the scheduler was woken in vain. {self.stalled()}")

    def _rouse(self, now: int) -> None:
        """End the idle time, if there is any."""
        if self._idle_since >= 0:
            since, self._idle_since = self._idle_since, -1
            if now > since:
                waiting, books = self.scheduler.num_waiting, self.scheduler.allocator.memory(self._blocked)
                self.recorder.idle(since, now, waiting, books)


def _promise(batch: Batch) -> tuple[list[Sequence], list[Sequence]]:
    """Count the tokens that a scheduled step will give: (sequences that get one, those for which it is the last).

    The last one is not counted before it is there: then nothing is left to compute, and nobody schedules the sequence.
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
    """The last token of these is there: free what they hold. One may have lost it, preempted by the next step."""
    for seq in finished:
        seq.num_tokens = seq.end_tokens
        scheduler.lengths.observe(seq.request)
        if seq.row < 0:
            scheduler.waiting.remove(seq)
    scheduler.finish([seq for seq in finished if seq.row >= 0])
