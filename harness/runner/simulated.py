"""A runner that computes nothing: a step takes what a latency model predicts."""

from __future__ import annotations

from typing import Protocol

from harness.runner.base import StepResult
from harness.runner.latency.moves import MoveCosts
from harness.runner.surrogate import surrogate_beams
from schedulers.group import Branch
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
        moves: what copies and swaps cost; None = nothing.
        seed: of the surrogate for beam searches.
    """

    def __init__(self, latency: Latency, exact_steps: bool = False, moves: MoveCosts | None = None,
                 seed: int = 0) -> None:  # fmt: skip
        self.latency = latency
        self.moves = moves
        self.seed = seed
        self.further_ns = None if exact_steps else getattr(latency, "further_ns", None)

    def execute(self, batch: Batch) -> StepResult:
        ns = self.latency.step_ns(batch) + batch.delay_ns
        if batch.moves and self.moves:
            ns += self.moves.ns(batch.moves)
        return StepResult(None, ns, self._searches(batch) if batch.grouped else None)

    def _searches(self, batch: Batch) -> dict[int, list[Branch]]:
        """How the beam searches go on that have a token due."""
        groups = [seq.group for seq in batch.seqs if seq.group is not None and seq is seq.group.seqs[0]]
        due = [group for group in groups if group.request.use_beam_search and group.ready()]
        return {group.request.id: surrogate_beams(group, self.seed) for group in due}
