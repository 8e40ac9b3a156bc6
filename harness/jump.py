"""Decode steps that only repeat the one before, taken together: what makes a simulation fast without changing it."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from harness.runner.base import Runner
from schedulers.base import Scheduler
from schedulers.request import Batch


class Jump(NamedTuple):
    """Steps that followed a step, with one more token of each of its sequences.

    Attributes:
        ns: how long each took.
        shifts: how the books changed, see `Growth`.
        asked: slots that the queue's head was refused in each of them; -1 = nobody was.
    """

    ns: list[int]
    shifts: list[tuple[int, ...]]
    asked: int


NO_JUMP = Jump([], [], -1)


def can_jump(scheduler: Scheduler, runner: Runner) -> bool:
    """Whether steps can be foretold: by the runner, and by a scheduler whose `steady` knows its own `schedule`."""
    classes = type(scheduler).__mro__
    told, made = (next(c for c in classes if name in vars(c)) for name in ("steady", "schedule"))
    return issubclass(told, made) and getattr(runner, "further_ns", None) is not None


def jump(scheduler: Scheduler, runner: Runner, batch: Batch, ready: int, due: int | None) -> Jump:
    """Carry out the steps after `batch` (not completed yet, ready at `ready`) that only decode its sequences.

    They end before the first that is refused room, or has something to move, with the first in which a sequence
    finishes, and with the first that ends at `due` or later: where something happens, the next step is scheduled as
    usual.

    Args:
        due: when (ns) the next request arrives or the scheduler wants to be woken; None = never.
    """
    matters = due is not None and (scheduler.arrivals_matter or scheduler.lengths.learns)
    if (matters and due <= ready) or not scheduler.steady(batch):  # type: ignore[operator]
        return NO_JUMP
    rounds = batch.seqs[0].end_tokens
    for seq in batch.seqs:  # quicker than `min`
        left = seq.end_tokens - seq.stored - 1
        if left < rounds:
            rounds = left
    if rounds < 1:
        return NO_JUMP
    ns = runner.further_ns(batch, rounds)  # type: ignore[attr-defined]
    if matters and ready + sum(ns) > due:
        ends = list(accumulate(ns, initial=ready))
        ns = ns[: bisect_left(ends, due)]
    rounds, shifts = scheduler.allocator.extend(batch.seqs, len(ns))
    if not rounds:
        return NO_JUMP
    refused = batch.blocked_next or batch.blocked
    return Jump(ns[:rounds], shifts, scheduler.allocator.asked(refused) if refused else -1)
