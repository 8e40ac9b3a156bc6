"""What a latency model is: the work of a step in, nanoseconds out."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from schedulers.request import Batch, Work

FEW = 48  # steps; for fewer a loop is faster than arrays


class LatencyModel(ABC):
    """A model whose step time is a line in the context of its decodes: everything else stays as it is in a jump.

    One step and many decode steps are the same expression of the same whole numbers (float64, rounded half to even), so
    a jump's times are those of its steps to the last digit.
    """

    @abstractmethod
    def line(self, work: Work) -> tuple[float, float]:
        """(ns without decode context, ns per token of decode context) of the step; must not look at the context."""

    def step_ns(self, batch: Batch) -> int:
        """How long the step takes, in nanoseconds."""
        work = batch.work
        base, slope = self.line(work)
        return round(base + slope * work.context)

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: how long each further step takes if every sequence of `batch` goes on to decode."""
        work = batch.work.after(1)
        base, slope = self.line(work)
        context, more = work.context, work.decodes
        if not slope:
            return [round(base)] * steps
        if steps <= FEW:
            return [round(base + slope * tokens) for tokens in range(context, context + steps * more, more)]
        contexts = context + more * np.arange(steps)
        times: list[int] = np.rint(base + slope * contexts).astype(np.int64).tolist()
        return times
