"""A runner that computes nothing: a step takes what a latency model predicts."""

from __future__ import annotations

from typing import Protocol

from harness.runner.base import StepResult
from schedulers.request import Batch


class Latency(Protocol):
    """A latency model. `LatencyModel` is a base for those whose step time is a line in the context of the decodes."""

    def step_ns(self, batch: Batch) -> int:
        """How long the step takes, in nanoseconds."""


class SimulatedModelRunner:
    """Same batches in, predicted times out; no tokens.

    Args:
        latency: the model. If it has `further_ns(batch, steps)` too, the time of each of `steps` decode steps after
            `batch`, equal to `step_ns` to the last digit, then steps that only repeat can be taken together.
        exact_steps: take every step by itself all the same.
    """

    def __init__(self, latency: Latency, exact_steps: bool = False) -> None:
        self.latency = latency
        self.further_ns = None if exact_steps else getattr(latency, "further_ns", None)

    def execute(self, batch: Batch) -> StepResult:
        return StepResult(tokens=None, ns=self.latency.step_ns(batch) + batch.delay_ns)
