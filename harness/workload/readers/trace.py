"""Reads a trace file of any known format into checked rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from harness.workload.errors import WorkloadError
from harness.workload.readers.detect import detect
from harness.workload.readers.format import Choice, Format
from harness.workload.readers.rows import Checked, Rows, check_chunk, join
from harness.workload.readers.source import Source, open_source

_SWITCH = "workload.invalid=drop leaves such rows out"


@dataclass(slots=True)
class Trace:
    """What a file holds.

    Attributes:
        path: the file.
        layout: its format.
        rows: the valid rows, by arrival where the file has arrivals; else in the file's order, `arrival_ns` None.
        rows_read: rows looked at, faulty ones included.
        dropped: rule → rows left out for it (`invalid="drop"`).
        out_of_order: rows that stood behind a later one and were sorted.
        notices: sentences for whoever reads the results.
    """

    path: str
    layout: Format
    rows: Rows
    rows_read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    out_of_order: int = 0
    notices: list[str] = field(default_factory=list)


def read_trace(
    path: str | Path,
    *,
    invalid: str = "error",
    limit: int | None = None,
    times: bool = True,
    seed: int = 0,
    sample: int | None = None,
) -> Trace:
    """Reads and checks a trace, gzip or plain, a chunk at a time.

    Args:
        path: the file.
        invalid: "error" stops at the first faulty row, "drop" leaves such rows out and counts them.
        limit: stop after so many valid rows.
        times: False = the file's arrival times will be replaced: they are neither read nor checked.
        seed, sample: which of several recorded outputs a row gets (castillo).

    Raises:
        WorkloadError: no known format, damaged, a faulty row, or no valid row; names the file and the line.
    """
    with open_source(path) as source:
        layout = detect(source)
        reading = _Reading(
            Trace(str(path), layout, Rows.empty()), invalid, _time_column(layout, source) if times else None
        )
        for chunk in source.chunks(layout.names(source.header, source.kind)):
            if layout.derive is not None:
                chunk.columns = layout.derive(chunk.columns, Choice(seed, sample, reading.trace.rows_read))
            checked = check_chunk(layout, reading.time, chunk)
            reading.add(checked, None if limit is None else limit - reading.kept)
            if limit is not None and reading.kept >= limit:
                break
    return reading.finish()


@dataclass(slots=True)
class _Reading:
    """A trace while it is read.

    Whether a text in the time column is a fault or a placeholder shows only later: a column without a single time
    means that the file has no arrivals. Until the first time turns up (`dated`), such rows count as sound.
    """

    trace: Trace
    invalid: str
    time: tuple[str, int] | None
    kept: int = 0
    dated: bool = False
    parts: list[Rows] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, checked: Checked, wanted: int | None) -> None:
        """Takes the sound rows of a chunk, as many as wanted; faults behind the last of them do not matter."""
        rows, faults = checked.rows, checked.faults
        if rows.untimed is not None and self.time is not None:
            if not self.dated and ((faults.code == 0) & ~rows.untimed).any():
                self.dated = True
                self._refuse_placeholders()
            if self.dated:
                faults.add(rows.untimed, self.time[0], "is not a time")
        code = faults.code
        if wanted is not None:
            sound = np.cumsum(code == 0)
            if sound[-1] >= wanted:
                code = code[: int(np.searchsorted(sound, wanted)) + 1]
        faulty = np.flatnonzero(code)
        if len(faulty) and self.invalid == "error":
            _fail(self.trace, checked, int(faulty[0]))
        for number, count in Counter(code[faulty].tolist()).items():
            column, rule = faults.rules[number - 1]
            self.dropped[f"{column} {rule}" if column else "the row cannot be read"] += count
        self.trace.rows_read += len(code)
        self.parts.append(rows.take(np.flatnonzero(code == 0)))
        self.kept += len(self.parts[-1])

    def _refuse_placeholders(self) -> None:
        """A time has turned up: rows of earlier chunks, taken on trust, were faulty."""
        if self.invalid == "error" and self.time is not None:
            for part in self.parts:
                if part.untimed is not None and part.untimed.any():
                    line = part.lines[int(np.argmax(part.untimed))]
                    raise WorkloadError(f"{self.trace.path}:{line}: {self.time[0]} is not a time; {_SWITCH}")

    def finish(self) -> Trace:
        """Joins the chunks, settles the placeholders, sorts."""
        trace = self.trace
        trace.rows = join(self.parts) if self.parts else trace.rows
        self.parts.clear()
        self._settle_placeholders()
        trace.dropped = dict(sorted(self.dropped.items()))
        if len(trace.rows) == 0:
            why = "".join(f"; {count} rows: {rule}" for rule, count in trace.dropped.items())
            raise WorkloadError(f"{trace.path}: the file as a whole has no valid row{why}")
        if trace.rows.arrival_ns is not None:
            _sort(trace)
        if trace.layout.note:
            trace.notices.append(trace.layout.note)
        return trace

    def _settle_placeholders(self) -> None:
        rows, trace = self.trace.rows, self.trace
        if rows.untimed is None or self.time is None or len(rows) == 0:
            return
        if not self.dated:
            trace.rows = replace(rows, arrival_ns=None)
            trace.notices.append(f"{self.time[0]} holds no time in any row: the file has no arrivals")
        elif rows.untimed.any():
            self.dropped[f"{self.time[0]} is not a time"] += int(rows.untimed.sum())
            trace.rows = rows.take(~rows.untimed)


def _fail(trace: Trace, checked: Checked, index: int) -> NoReturn:
    """Names the file, the line, the rule and the switch."""
    column, rule = checked.faults.rules[checked.faults.code[index] - 1]
    # A rule may speak of the prompt's length as well: then that value is shown beside the faulty one.
    spoken_of = [column] + [name for name in (trace.layout.prompt,) if name in rule]
    shown = ", ".join(f"{name} is {checked.raw[name][index]!r:.60}" for name in spoken_of if name in checked.raw)
    what = f"{column} {rule} ({shown})" if column else rule
    raise WorkloadError(f"{trace.path}:{checked.rows.lines[index]}: {what}; {_SWITCH}")


def _sort(trace: Trace) -> None:
    """Orders rows by arrival (equal times keep the file's order) and lets the first arrive at 0."""
    rows = trace.rows
    assert rows.arrival_ns is not None
    trace.out_of_order = int((rows.arrival_ns < np.maximum.accumulate(rows.arrival_ns)).sum())
    if trace.out_of_order:
        rows = rows.take(np.argsort(rows.arrival_ns, kind="stable"))
        trace.notices.append(f"{trace.out_of_order} rows were out of order and have been sorted by arrival")
    if rows.arrival_ns is not None and not trace.layout.keep_origin:
        rows.arrival_ns = rows.arrival_ns - rows.arrival_ns[0]
    trace.rows = rows


def _time_column(layout: Format, source: Source) -> tuple[str, int] | None:
    present = [column for column in layout.times if column[0] in source.header]
    if present:
        return present[0]
    # JSON rows need not have the same keys: a later one may have the time that the first lacks.
    return layout.times[0] if layout.times and source.kind != "csv" else None
