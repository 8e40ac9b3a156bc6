"""The contract of a model runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schedulers.group import Branch
from schedulers.request import Batch


@dataclass(slots=True)
class StepResult:
    """The result of a step.

    Attributes:
        tokens: the sampled tokens of those sequences of the batch that had one due, in order, groups excluded; None =
            simulated.
        branches: by request id, how the sequences of each group with a token due go on; a simulated group without an
            entry goes on with every sequence.
        ns: duration of a simulated step; that of a real step is measured by the clock.
    """

    tokens: list[int] | None
    ns: int = 0
    branches: dict[int, list[Branch]] | None = None


class Runner(Protocol):
    """Computes one step of a batch, its moves included."""

    def execute(self, batch: Batch) -> StepResult: ...
