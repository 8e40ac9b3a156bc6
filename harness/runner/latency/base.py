"""The contract of a latency model: a batch in, nanoseconds out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from schedulers.request import Batch, BatchStats

FEW = 48  # steps; up to so many, a loop is faster than arrays


class Latency(Protocol):
    """What a latency model must have. `LatencyModel` is a base class for most.

    Two more methods are optional:

    `estimate(batch) -> int`: a prediction, in ns, of how long a step of `batch` would take, for schedulers. It may be
    called any number of times and changes nothing.

    `further_ns(batch, steps) -> list[int]`: durations, in ns, of the next `steps` steps if every sequence of `batch`
    decodes, exactly as `step_ns` would return them. With it, a simulation takes many steps at once. It is not called if
    a subclass of the class that defines it overrides anything else of that class (see `schedulers.quiet.vouched`): then
    every step is timed by itself.
    """

    def step_ns(self, batch: Batch) -> int:
        """The duration of the step in nanoseconds. Called once for each step, in order."""


class LatencyModel(ABC):
    """A model whose step time is linear in the context of the decodes.

    Single steps and many decode steps evaluate the same expression of the same integers (float64, rounded half to
    even). So a model whose `line` depends on its argument alone can let steps be taken together:

        def further_ns(self, batch, steps):
            return self.along_line(batch, steps)
    """

    @abstractmethod
    def line(self, stats: BatchStats) -> tuple[float, float]:
        """(ns without decode context, ns per token of decode context) of a step; must not depend on the context."""

    def step_ns(self, batch: Batch) -> int:
        """The duration of the step in nanoseconds."""
        return self.estimate(batch)

    def estimate(self, batch: Batch) -> int:
        """The predicted duration of a step in nanoseconds."""
        stats = batch.stats
        base, slope = self.line(stats)
        return round(base + slope * stats.context)

    def along_line(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: durations of the next steps, in ns, if every sequence of `batch` decodes."""
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
