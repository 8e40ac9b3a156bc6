"""Decode steps that only repeat the one before, taken together: what makes a simulation fast without changing it."""

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
    """Whether steps can be foretold by all who have a part in them, each of whom knows all that it does in a step."""
    allocator: object = scheduler.allocator
    if isinstance(allocator, Checked):
        allocator = allocator.allocator
    foretold = vouched(runner, "further_ns") and runner.foretells  # type: ignore[attr-defined]
    return bool(foretold) and vouched(scheduler, "quiet") and vouched(allocator, "extend")


def jump(scheduler: Scheduler, runner: Runner, batch: Batch, ready: int, arrival: int | None,
         heed: bool = False) -> Jump:  # fmt: skip
    """Carry out the steps after `batch` (not completed yet, ready at `ready`) that only decode its sequences.

    They end before the first that is refused room, or has something to move, with the first in which a sequence
    finishes, and with the first that ends when something else may happen, or later: the scheduler wants to be woken, it
    said so (`Scheduler.quiet`), or a request arrives that matters to it. Then the next step is scheduled as usual.

    Args:
        arrival: when (ns) the next request arrives; None = never.
        heed: whether it ends the steps even if it doesn't matter to the scheduler, since it may to others: a router
            hears of a request that was refused.
    """
    due = scheduler.wake_at()
    if due is not None and due <= ready:
        return NO_JUMP
    quiet = scheduler.quiet(batch)
    if quiet is None:
        return NO_JUMP
    if quiet.until is not None and (due is None or quiet.until < due):
        due = quiet.until
    if arrival is not None and (heed or quiet.arrivals) and (due is None or arrival < due):
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
