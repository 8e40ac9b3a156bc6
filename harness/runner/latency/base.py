"""What a latency model is: the sums of a batch in, nanoseconds out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from schedulers.request import Batch, BatchStats

FEW = 48  # steps; for fewer a loop is faster than arrays


class Latency(Protocol):
    """All that a latency model must have. `LatencyModel` is a base for most.

    Two methods more may be there:

    `estimate(batch) -> int`: how long a step of `batch` would take, in ns, as far as that can be told before, for
    schedulers. It may be asked any number of times and changes nothing.

    `further_ns(batch, steps) -> list[int]`: how long each of so many steps takes in which every sequence of `batch`
    goes on to decode, in ns and to the last digit as `step_ns` would say it, for simulations that take steps together.
    It is asked only if no class below the one that defines it replaces anything of that class (see
    `schedulers.quiet.vouched`): whoever changes a model and says nothing of jumps has every step timed by itself.
    """

    def step_ns(self, batch: Batch) -> int:
        """How long the step takes, in nanoseconds. Asked once for each step, in their order."""


class LatencyModel(ABC):
    """A model whose step time is a line in the context of its decodes.

    One step and many decode steps are the same expression of the same whole numbers (float64, rounded half to even). So
    a model whose line says the same of the same sums can have steps taken together:

        def further_ns(self, batch, steps):
            return self.along_line(batch, steps)
    """

    @abstractmethod
    def line(self, stats: BatchStats) -> tuple[float, float]:
        """(ns without decode context, ns per token of decode context) of the step; must not look at the context."""

    def step_ns(self, batch: Batch) -> int:
        """How long the step takes, in nanoseconds."""
        return self.estimate(batch)

    def estimate(self, batch: Batch) -> int:
        """How long a step would take, in nanoseconds."""
        stats = batch.stats
        base, slope = self.line(stats)
        return round(base + slope * stats.context)

    def along_line(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: how long each further step takes if every sequence of `batch` goes on to decode."""
        stats = batch.stats.after(1)
        base, slope = self.line(stats)
        context, more = stats.context, stats.decodes
        if not slope:
            return [round(base)] * steps
        if steps <= FEW:
            return [round(base + slope * tokens) for tokens in range(context, context + steps * more, more)]
        contexts = context + more * np.arange(steps)
        times: list[int] = np.rint(base + slope * contexts).astype(np.int64).tolist()
        return times
