"""`device.latency=operators`: a latency model over composed operator tables."""

from __future__ import annotations

from harness.operators.costs import Costs, step_ns
from schedulers.request import Batch, BatchStats


class OperatorLatency:
    """Step times of composed operators (see `compose`). Idle lanes of a static batch count as decodes.

    Attributes:
        said: the sources of the times, as text: tables, versions, constants.
    """

    def __init__(self, costs: Costs, said: str = "") -> None:
        self.costs, self.said = costs, said

    def step_ns(self, batch: Batch) -> int:
        """The step's time in nanoseconds."""
        return self._ns(batch.stats)

    def estimate(self, batch: Batch) -> int:
        """The same, since it is known in advance."""
        return self._ns(batch.stats)

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: ns of each further step if every sequence of `batch` continues to decode."""
        stats, times = batch.stats.after(1), []
        for _ in range(steps):
            times.append(self._ns(stats))
            stats = stats.after(1)
        return times

    def _ns(self, stats: BatchStats) -> int:
        return round(step_ns(self.costs, stats.lanes, float(stats.context), stats.prompts, stats.prompt_tokens,
                             stats.prompt_context, float(stats.pairs)))  # fmt: skip
