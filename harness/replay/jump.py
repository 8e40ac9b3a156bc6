"""Decode steps that only repeat the step before are taken together: faster simulation with the same results."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from allocators.checker import Checked
from harness.metrics.jump import NO_JUMP, Jump
from harness.runner.base import Runner
from schedulers.base import Scheduler
from schedulers.quiet import vouched
from schedulers.request import Batch


def can_jump(scheduler: Scheduler, runner: Runner) -> bool:
    """Whether runner, scheduler and allocator can each take many steps at once, and none has step-by-step overrides."""
    allocator: object = scheduler.allocator
    if isinstance(allocator, Checked):
        allocator = allocator.allocator
    foretold = vouched(runner, "further_ns") and runner.predicts_further  # type: ignore[attr-defined]
    return bool(foretold) and vouched(scheduler, "quiet") and vouched(allocator, "extend")


def jump(scheduler: Scheduler, runner: Runner, batch: Batch, ready: int, arrival: int | None,
         stop_at_arrival: bool = False) -> Jump:  # fmt: skip
    """Take the steps after `batch` (not completed yet, ready at `ready`) that only decode the same sequences.

    The steps end before the first step that is refused room or needs moves, with the first step in which a sequence
    finishes, and with the first step that ends at or after the time of another event: the scheduler's wake-up, the end
    of its `quiet` time (`Scheduler.quiet`), or an arrival that the scheduler would react to. Then the next step is
    scheduled as usual.

    Args:
        arrival: when (ns) the next request arrives; None = never.
        stop_at_arrival: end the steps at an arrival even if the scheduler would not react to it, because a router
            might: it hears of requests that were rejected.
    """
    due = scheduler.wake_at()
    if due is not None and due <= ready:
        return NO_JUMP
    quiet = scheduler.quiet(batch)
    if quiet is None:
        return NO_JUMP
    if quiet.until is not None and (due is None or quiet.until < due):
        due = quiet.until
    if arrival is not None and (stop_at_arrival or quiet.arrivals) and (due is None or arrival < due):
        due = arrival
    if due is not None and due <= ready:
        return NO_JUMP
    rounds = batch.seqs[0].end_tokens
    for seq in batch.seqs:  # quicker than `min`
        left = seq.end_tokens - seq.stored - 1
        if left < rounds:
            rounds = left
    if rounds < 1:
        return NO_JUMP
    ns = runner.further_ns(batch, rounds)  # type: ignore[attr-defined]
    if due is not None and ready + sum(ns) > due:
        ends = list(accumulate(ns, initial=ready))
        ns = ns[: bisect_left(ends, due)]
    rounds, shifts = scheduler.allocator.extend(batch.seqs, len(ns))
    if not rounds:
        return NO_JUMP
    refused = quiet.blocked
    return Jump(ns[:rounds], shifts, scheduler.allocator.asked(refused) if refused else -1)
