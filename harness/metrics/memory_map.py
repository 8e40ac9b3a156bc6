"""Which request holds which slots, step by step, and what is moved: for pictures of small pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from allocators.base import Allocator, Books, LayoutBooks
from harness.metrics.recorder import Recorder
from schedulers.request import Batch

RUNS = ["start_s", "request", "first", "slots", "used"]
MOVES = ["start_s", "kind", "source", "target", "slots"]


class MappedRecorder(Recorder):
    """A recorder that also notes the runs of slots that every sequence holds in each step.

    Args:
        allocator: whose sequences are noted.
    """

    def __init__(self, allocator: Allocator, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allocator = allocator
        self._runs: list[tuple[float, int, int, int, int]] = []
        self._moves: list[tuple[float, str, int, int, int]] = []

    def scheduled(
        self, batch: Batch, start: int, waiting: int, books: Books | LayoutBooks, runs: int | None = None
    ) -> None:
        super().scheduled(batch, start, waiting, books, runs)
        for holder in self.allocator.holders:
            stored, request = holder.stored, holder.request.id  # type: ignore[attr-defined]
            for first, slots in joined(self.allocator.spans(holder)):
                self._runs.append((start / 1e9, request, first, slots, min(stored, slots)))
                stored -= min(stored, slots)
        self._moves += [(start / 1e9, move.kind, move.source, move.target, move.length) for move in batch.moves]

    def write(self, folder: Path) -> None:
        """Write `memory_map.csv` (a row for each run of slots and step) and `moves.csv` (one for each move)."""
        pd.DataFrame(self._runs, columns=RUNS).to_csv(folder / "memory_map.csv", index=False)
        pd.DataFrame(self._moves, columns=MOVES).to_csv(folder / "moves.csv", index=False)


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of slots, in token order, those that follow one another taken together."""
    runs: list[tuple[int, int]] = []
    for first, slots in spans:
        if runs and sum(runs[-1]) == first:
            runs[-1] = runs[-1][0], runs[-1][1] + slots
        else:
            runs.append((first, slots))
    return runs
