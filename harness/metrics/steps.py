"""The step table: rows are collected in a chunk, then summed and written at once, so memory stays flat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from allocators.base import Books

INTEGERS = (
    "start", "num_seqs", "decode_seqs", "idle_lanes", "prefill_tokens", "context_tokens", "prefill_attention",
    "waiting", "admitted", "preempted", "head_blocked", *Books._fields, "produced", "finished",
    "schedule", "execute", "complete", "idle",
)  # fmt: skip
AT = {name: i for i, name in enumerate(INTEGERS)}
BOOKS = slice(AT["used"], AT["free"] + 1)
SPENT = slice(AT["schedule"], AT["idle"] + 1)  # ns; an idle gap is a row with no sequences
CHUNK = 16_384


class Totals:
    """Sums over a span of steps, each weighted as its meaning asks."""

    def __init__(self) -> None:
        self.steps = 0
        self.ns = 0
        self.sums = np.zeros(len(INTEGERS), dtype=np.int64)
        self.by_time = np.zeros(len(INTEGERS), dtype=np.float64)
        self.peaks = np.zeros(len(INTEGERS), dtype=np.int64)

    def add(self, rows: np.ndarray) -> None:
        """Add rows ``[n, len(INTEGERS)]``."""
        duration = rows[:, SPENT].sum(axis=1)
        self.steps += len(rows)
        self.ns += int(duration.sum())
        self.sums += rows.sum(axis=0)
        self.by_time += duration.astype(np.float64) @ rows
        self.peaks = np.maximum(self.peaks, rows.max(axis=0, initial=0))

    def merge(self, other: Totals) -> None:
        self.steps += other.steps
        self.ns += other.ns
        self.sums += other.sums
        self.by_time += other.by_time
        self.peaks = np.maximum(self.peaks, other.peaks)

    def sum(self, name: str) -> int:
        return int(self.sums[AT[name]])

    def peak(self, name: str) -> int:
        return int(self.peaks[AT[name]])

    def mean(self, name: str) -> float | None:
        """Time-weighted mean of a column; None over no time at all."""
        return float(self.by_time[AT[name]] / self.ns) if self.ns else None


class StepLog:
    """Rows of the step table, with totals over the whole run and over its saturated span.

    Saturated: from the first step whose head was refused for lack of memory to the last step with anything waiting.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.whole, self.saturated, self._maybe = Totals(), Totals(), Totals()
        self._rows: list[tuple[int, ...]] = []
        self._is_saturated = False
        self._written = 0

    def append(self, row: tuple[int, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Sum and write the rows collected so far."""
        if not self._rows:
            return
        rows = np.array(self._rows, dtype=np.int64)
        self._rows.clear()
        self.whole.add(rows)
        self._add_saturated(rows)
        if self.path:
            self._write(rows)

    def _add_saturated(self, rows: np.ndarray) -> None:
        first = 0
        if not self._is_saturated:
            blocked = np.flatnonzero(rows[:, AT["head_blocked"]])
            if not len(blocked):
                return
            self._is_saturated, first = True, int(blocked[0])
        waiting = np.flatnonzero(rows[first:, AT["waiting"]] + rows[first:, AT["head_blocked"]])
        if len(waiting):  # what came since the last waiting step lies inside the span after all
            self.saturated.merge(self._maybe)
            self._maybe = Totals()
            last = first + int(waiting[-1]) + 1
            self.saturated.add(rows[first:last])
            first = last
        self._maybe.add(rows[first:])

    def _write(self, rows: np.ndarray) -> None:
        frame = pd.DataFrame(rows, columns=list(INTEGERS))
        frame.insert(0, "step", np.arange(self._written, self._written + len(frame)))
        frame["start"] = frame["start"] / 1e9
        spent = list(INTEGERS[SPENT])
        frame[spent] = frame[spent] / 1e6
        names = {"start": "start_s", **{name: f"{name}_ms" for name in spent}}
        frame.rename(columns=names).to_csv(
            self.path, mode="a" if self._written else "w", header=not self._written, index=False
        )
        self._written += len(frame)
