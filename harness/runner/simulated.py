"""A runner that computes nothing: a step takes what a latency model predicts."""

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
        exact_steps: take every step by itself, even where the model can tell many at once (`further_ns`).
        moves: what copies and swaps cost; None = nothing.
        seed: of the surrogate for beam searches.

    Attributes:
        foretells: whether `further_ns` may be asked.
    """

    def __init__(self, latency: Latency, exact_steps: bool = False, moves: MoveCosts | None = None,
                 seed: int = 0) -> None:  # fmt: skip
        self.latency = latency
        self.moves = moves
        self.seed = seed
        self.foretells = not exact_steps and vouched(latency, "further_ns")

    def execute(self, batch: Batch) -> StepResult:
        ns = self.latency.step_ns(batch) + batch.delay_ns
        if batch.moves and self.moves:
            ns += self.moves.ns(batch.moves)
        return StepResult(None, ns, self._searches(batch) if batch.grouped else None)

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: how long each step takes in which every sequence of `batch` goes on to decode."""
        times: list[int] = self.latency.further_ns(batch, steps)  # type: ignore[attr-defined]
        return times

    def estimate(self, batch: Batch) -> int | None:
        """How long a step of `batch` would take (ns); None where the model can't be asked before."""
        estimate = getattr(self.latency, "estimate", None)
        return None if estimate is None else estimate(batch)

    def _searches(self, batch: Batch) -> dict[int, list[Branch]]:
        """How the beam searches go on that have a token due."""
        groups = [seq.group for seq in batch.seqs if seq.group is not None and seq is seq.group.seqs[0]]
        due = [group for group in groups if group.request.use_beam_search and group.ready()]
        return {group.request.id: surrogate_beams(group, self.seed) for group in due}
