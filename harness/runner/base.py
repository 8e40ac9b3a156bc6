"""What the replayer asks of a model runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schedulers.group import Branch
from schedulers.request import Batch


@dataclass(slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        tokens: the sampled token of each sequence of the batch for which one was due, in order, less those of groups;
            None = simulated.
        branches: by request id, how the answers of each group go on that had a token due; a simulated group that is
            left out goes on with every answer.
        ns: how long a simulated step takes; a real one is measured by the clock.
    """

    tokens: list[int] | None
    ns: int = 0
    branches: dict[int, list[Branch]] | None = None


class Runner(Protocol):
    """Computes one step of a batch, its moves included."""

    def execute(self, batch: Batch) -> StepResult: ...
