"""A runner that computes nothing: a step takes what a latency model predicts."""

from __future__ import annotations

from typing import Protocol

from harness.runner.base import StepResult
from schedulers.request import Batch


class Latency(Protocol):
    """A latency model."""

    def step_ns(self, batch: Batch) -> int:
        """How long the step takes, in nanoseconds."""


class SimulatedModelRunner:
    """Same batches in, predicted times out; no tokens."""

    def __init__(self, latency: Latency) -> None:
        self.latency = latency

    def execute(self, batch: Batch) -> StepResult:
        return StepResult(tokens=None, ns=self.latency.step_ns(batch))
