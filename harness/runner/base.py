"""What the replayer asks of a model runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schedulers.request import Batch


@dataclass(slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        tokens: the sampled token of each sequence of the batch for which one was due, in order; None = simulated.
        ns: how long a simulated step takes; a real one is measured by the clock.
    """

    tokens: list[int] | None
    ns: int = 0


class Runner(Protocol):
    """Computes one step of a batch, its moves included."""

    def execute(self, batch: Batch) -> StepResult: ...
