"""The replay of an engine that schedules one step ahead (vLLM's asynchronous scheduling).

While a step runs, the next one is scheduled already, as if every token that is due were known. So what a step gives
is seen when the step after it has been handed over: a request that arrives during step k first runs in step k + 2, and
what a request held that finished in step k can be handed out from step k + 2 on. How a batch is formed, and how long it
takes, stay the scheduler's and the runner's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from harness.clock import Clock
from harness.errors import HarnessError
from harness.metrics.recorder import Recorder
from harness.replayer import Source, StalledError, WorkloadLike, next_event, stalled
from harness.runner.base import Runner
from schedulers.base import Scheduler
from schedulers.request import Batch, Sequence

DEPTH = 2  # steps handed over and not finished: one runs, one waits


class Step(NamedTuple):
    """A step on its way.

    Attributes:
        batch: what it computes.
        ready, ns: when it is finished (ns), and how long it takes.
        produced: sequences that get a token from it.
        finished: those of them for which it is the last one.
    """

    batch: Batch
    ready: int
    ns: int
    produced: list[Sequence]
    finished: list[Sequence]


def replay_ahead(workload: WorkloadLike, scheduler: Scheduler, runner: Runner, clock: Clock, recorder: Recorder,
                 on_progress: Callable[[int, int], None] | None = None) -> None:  # fmt: skip
    """As `harness.replayer.replay`, one step ahead. For simulated steps: their tokens need not be known.

    Raises:
        StalledError: a scheduler that makes no progress though work waits.
        HarnessError: a scheduler that would schedule a sequence beyond its last token.
    """
    if not scheduler.ahead:
        raise HarnessError(f"simulation.async_scheduling: {type(scheduler).__name__} can't schedule one step ahead")
    source, allocator = Source(workload), scheduler.allocator
    recorder.watch(allocator)
    under_way: deque[Step] = deque()
    over = tokens = busy_until = 0
    while True:
        for request in source.due(clock.now):
            rejection = scheduler.add(request)
            recorder.arrived(request, clock.now, rejection)
            if rejection:
                over += 1
                source.over(1, clock.now)
        now = clock.now
        batch = scheduler.schedule(now)
        queued = scheduler.num_requests
        if source.injected != over + queued:
            raise StalledError(f"{source.injected} requests arrived, {over} are over and {queued} are queued")
        if batch.seqs:
            busy_until = max(busy_until, now)
            recorder.scheduled(batch, now, scheduler.num_waiting, allocator.memory(batch.blocked), busy_until)
            ns = runner.execute(batch).ns
            busy_until += ns
            under_way.append(Step(batch, busy_until, ns, *promise(batch)))
            if len(under_way) < DEPTH:
                continue
        if under_way:
            step = under_way.popleft()
            clock.wait_until(step.ready)
            land(scheduler, step.finished)
            recorder.completed(step.batch, step.produced, step.finished, step.ready, (0, step.ns, 0))
            over += len(step.finished)
            tokens += len(step.produced)
            source.over(len(step.finished), clock.now)
            if on_progress:
                on_progress(over, tokens)
            continue
        due = next_event(source, scheduler, now)
        if due is None:
            if queued or source.pending:
                raise StalledError(stalled(scheduler, source))
            return
        clock.wait_until(due)
        recorder.idle(now, clock.now, scheduler.num_waiting, allocator.memory(batch.blocked))


def promise(batch: Batch) -> tuple[list[Sequence], list[Sequence]]:
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


def land(scheduler: Scheduler, finished: list[Sequence]) -> None:
    """The last token of these is there: free what they hold. One may have lost it, preempted by the next step."""
    for seq in finished:
        seq.num_tokens = seq.end_tokens
        scheduler.lengths.observe(seq.request)
        if seq.row < 0:
            scheduler.waiting.remove(seq)
    scheduler.finish([seq for seq in finished if seq.row >= 0])
