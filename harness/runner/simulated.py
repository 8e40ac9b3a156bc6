"""A simulated runner: a step takes as long as a latency model predicts, and computes nothing."""

from __future__ import annotations

from harness.runner.base import StepResult
from harness.runner.latency.base import Latency
from harness.runner.latency.moves import MoveCosts
from harness.runner.surrogate import surrogate_beams
from schedulers.group import Branch
from schedulers.quiet import vouched
from schedulers.request import Batch


class SimulatedModelRunner:
    """Same batches in, predicted times out; no tokens.

    Args:
        latency: the model.
        exact_steps: time every step by itself, even if the model has `further_ns`.
        moves: costs of copies and swaps; None = no cost.
        seed: seed of the surrogate for beam searches.

    Attributes:
        predicts_further: whether `further_ns` may be called.
    """

    def __init__(self, latency: Latency, exact_steps: bool = False, moves: MoveCosts | None = None,
                 seed: int = 0) -> None:  # fmt: skip
        self.latency = latency
        self.moves = moves
        self.seed = seed
        self.predicts_further = not exact_steps and vouched(latency, "further_ns")

    def execute(self, batch: Batch) -> StepResult:
        ns = self.latency.step_ns(batch) + batch.delay_ns
        if batch.moves and self.moves:
            ns += self.moves.ns(batch.moves)
        return StepResult(None, ns, self._searches(batch) if batch.grouped else None)

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: durations of the next steps, in ns, if every sequence of `batch` decodes."""
        times: list[int] = self.latency.further_ns(batch, steps)  # type: ignore[attr-defined]
        return times

    def estimate(self, batch: Batch) -> int | None:
        """The predicted duration of a step of `batch` in ns; None if the model has no `estimate`."""
        estimate = getattr(self.latency, "estimate", None)
        return None if estimate is None else estimate(batch)

    def _searches(self, batch: Batch) -> dict[int, list[Branch]]:
        """The branches of beam searches that have a token due."""
        groups = [seq.group for seq in batch.seqs if seq.group is not None and seq is seq.group.seqs[0]]
        due = [group for group in groups if group.request.use_beam_search and group.ready()]
        return {group.request.id: surrogate_beams(group, self.seed) for group in due}
