"""Reads a trace file of any known format into checked rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from harness.workload.errors import WorkloadError
from harness.workload.fields import FIELDS
from harness.workload.readers.clock import TimeColumn, offered_rate
from harness.workload.readers.detect import detect, no_such_column
from harness.workload.readers.format import ABSENT, Choice, Chunk, Format, Values
from harness.workload.readers.json_rows import json_chunks
from harness.workload.readers.rows import Checked, Rows, check_chunk, join
from harness.workload.readers.source import Source, TextSource, open_source

_SWITCH = "workload.invalid=drop leaves such rows out"
_SECOND = 1_000_000_000
_A_DATE = 10**18  # nanoseconds, 31 years: no trace is that long, so larger times count from 1970


@dataclass(slots=True)
class Trace:
    """A trace file's rows, and how they were read.

    Attributes:
        path: the file.
        layout: its format.
        rows: the valid rows, by arrival if the file has arrivals; else in the file's order, `arrival_ns` None.
        rows_read: rows read, faulty ones included.
        dropped: rule → rows left out for breaking it (`invalid="drop"`).
        first_fault: the first of them, with its place and value.
        out_of_order: rows that came after a later one and were sorted.
        skipped: rows that arrive before `skip_s`.
        notices: sentences for readers of the results.
        read_as: column → the field of a request that was read from it.
        time_unit: of the arrivals, as text.
        unread: columns that are not read.
    """

    path: str
    layout: Format
    rows: Rows
    rows_read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    first_fault: str = ""
    out_of_order: int = 0
    skipped: int = 0
    notices: list[str] = field(default_factory=list)
    read_as: dict[str, str] = field(default_factory=dict)
    time_unit: str = ""
    unread: list[str] = field(default_factory=list)

    def where(self, line: int) -> str:
        """The place of a row, for messages."""
        return f"{self.path}:{self.layout.place and self.layout.place + ' '}{line}"


@dataclass(frozen=True)
class Reading:
    """How to read a trace; see also the keys of `Settings` with the same names.

    Attributes:
        invalid: "error" stops at the first faulty row, "drop" leaves such rows out and counts them.
        limit: stop after this many valid rows (with `skip_s`: this many of the remaining ones).
        times: False = the file's arrival times will be replaced, so they are neither read nor checked.
        seed, sample: which of several recorded outputs a row gets (castillo), or which run of a benchmark is read.
        columns: field of a request, or "arrival", "arrival_s" ... → its column.
        time_unit: s, ms, us or ns; None = from the format or the column's name.
        skip_s: leave out the rows of this many seconds, from the trace's time 0.
    """

    invalid: str = "error"
    limit: int | None = None
    times: bool = True
    seed: int = 0
    sample: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    skip_s: float | None = None


def read_trace(path: str | Path, how: Reading = Reading()) -> Trace:
    """Reads and checks a trace, compressed or plain, chunk by chunk.

    Raises:
        WorkloadError: no known format, damaged, a faulty row, or no valid row; the message names file and line.
    """
    with open_source(path) as source:
        layout = detect(source, how.columns)
        if source.place and not layout.place:
            layout = replace(layout, place=source.place)
        reader = _Reader(Trace(source.path, layout, Rows.empty()), how)
        for chunk in _chunks(source, layout, how):
            reader.read(chunk)
            if reader.wanted == 0:
                break
    return reader.finish()


def _chunks(source: Source, layout: Format, how: Reading) -> Iterator[Chunk]:
    """The rows of a file with the columns its format reads; nested formats are unfolded first."""
    names = layout.names(source.header)
    if layout.unfold is None:
        return source.chunks(names)
    choice = Choice(source.path, how.seed, how.sample)
    values = source.objects if isinstance(source, TextSource) and source.kind == "json" else _objects(source)
    return json_chunks(layout.unfold(values, choice), names)


def _objects(source: Source) -> Values:
    """The rows of a table as objects."""
    for chunk in source.chunks(source.header):
        for line, values in zip(chunk.lines, zip(*chunk.columns.values(), strict=True), strict=True):
            yield line, dict(zip(chunk.columns, values, strict=True))


class _Reader:
    """A trace while it is read.

    A word in the time column is a fault, unless the whole column has no time: then it is a placeholder, and the file
    has no arrivals. Until the first time is found (`dated`), such rows count as valid.
    """

    def __init__(self, trace: Trace, how: Reading) -> None:
        self.trace, self.how = trace, how
        named = next((name for name in how.columns if name.startswith("arrival")), None)
        self.time = TimeColumn(trace.layout, trace.path, how.time_unit, named) if how.times else None
        self.dated = False
        self.parts: list[Rows] = []
        self.dropped: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.first_fault = ""
        self.wanted = None if how.skip_s else how.limit  # which rows are skipped is known only after sorting

    def read(self, chunk: Chunk) -> None:
        """Checks a chunk and takes its valid rows, as many as are wanted."""
        layout, how = self.trace.layout, self.how
        self.left_out.update(chunk.left_out)
        if not chunk.lines:
            return
        nothing = [ABSENT] * len(chunk.lines)
        self.trace.unread += [name for name in chunk.others if name not in self.trace.unread]
        if layout.derive is not None:
            choice = Choice(self.trace.path, how.seed, how.sample, self.trace.rows_read)
            inputs = layout.inputs(list(chunk.columns)) if layout.inputs else []
            chunk.columns |= layout.derive(dict.fromkeys(inputs, nothing) | chunk.columns, choice)
        for name in (layout.prompt, layout.output):
            chunk.columns.setdefault(name, nothing)
        time = None if self.time is None else self.time.settle(chunk)
        self._note_columns(chunk, time)
        checked = check_chunk(layout, time, self.time.per if self.time else lambda largest: 1, chunk)
        if self.time is not None:
            self.time.dates |= checked.dates
            if self.time.dates and self.time.unit is not None:
                raise WorkloadError(f"{self.trace.path}: the file as a whole has both numbers and dates in {time}")
        self._add(checked, time)

    def _note_columns(self, chunk: Chunk, time: str | None) -> None:
        if time is not None and time in chunk.columns:
            self.trace.read_as[time] = "arrival"
        for item in FIELDS:
            column = self.trace.layout.column(item.name) if item.kind != "time" else None
            if column is not None and column in chunk.columns:
                self.trace.read_as[column] = item.name

    def _add(self, checked: Checked, time: str | None) -> None:
        """Takes the valid rows of a chunk; faults after the last wanted row do not matter."""
        rows, faults = checked.rows, checked.faults
        if rows.untimed is None and self.time is not None:
            rows.arrival_ns, rows.untimed = np.zeros(len(rows), np.int64), np.ones(len(rows), np.bool_)
        if rows.untimed is not None:
            if not self.dated and ((faults.code == 0) & ~rows.untimed).any():
                self.dated = True
                self._refuse_placeholders()
            if self.dated and time is not None and rows.untimed.any():
                absent = [value is ABSENT for value in checked.raw.get(time, [ABSENT] * len(rows))]
                faults.add(rows.untimed & np.array(absent), time, "is missing")
                faults.add(rows.untimed, time, "is not a time")
        code = faults.code
        if self.wanted is not None:
            sound = np.cumsum(code == 0)
            if sound[-1] >= self.wanted:
                code = code[: int(np.searchsorted(sound, self.wanted)) + 1]
        faulty = np.flatnonzero(code)
        if len(faulty) and not self.first_fault:
            self.first_fault = _described(self.trace, checked, int(faulty[0]))
            if self.how.invalid == "error":
                raise WorkloadError(f"{self.first_fault}; {_SWITCH}")
        for number, count in Counter(code[faulty].tolist()).items():
            column, rule = faults.rules[number - 1]
            self.dropped[f"{column} {rule}" if column else "the row cannot be read"] += count
        self.trace.rows_read += len(code)
        self.parts.append(rows.take(np.flatnonzero(code == 0)))
        if self.wanted is not None:
            self.wanted -= len(self.parts[-1])

    def _refuse_placeholders(self) -> None:
        """The first time was found: placeholder rows of earlier chunks, so far taken as valid, are faulty."""
        for part in self.parts if self.how.invalid == "error" else ():
            if self.time is not None and part.untimed is not None and part.untimed.any():
                where = self.trace.where(part.lines[int(np.argmax(part.untimed))])
                raise WorkloadError(f"{where}: {self.time.column} is not a time; {_SWITCH}")

    def finish(self) -> Trace:
        """Joins the chunks, decides about placeholders, sorts and skips rows."""
        trace, time = self.trace, self.time
        trace.rows = join(self.parts) if self.parts else trace.rows
        self.parts.clear()
        trace.notices += [f"{count} rows were left out: {why}" for why, count in self.left_out.items()]
        if time is not None and len(trace.rows):
            self._settle_placeholders(time)
        trace.dropped = dict(sorted(self.dropped.items()))
        if len(trace.rows) == 0:
            why = "".join(f"; {count} rows: {rule}" for rule, count in trace.dropped.items())
            first = self.first_fault and f"; the first is {self.first_fault}"
            raise WorkloadError(f"{trace.path}: the file as a whole has no valid row{why}{first}")
        trace.first_fault = self.first_fault
        self._refuse_unseen()
        if trace.rows.arrival_ns is not None:
            _sort(trace, time is not None and time.dates)
            rate = offered_rate(trace.rows.arrival_ns)
            if time is not None:
                trace.notices += time.doubts(rate)
                trace.time_unit = time.described()
        if trace.layout.note:
            trace.notices.append(trace.layout.note)
        if self.how.skip_s:
            _skip(trace, self.how.skip_s, self.how.limit)
        return trace

    def _refuse_unseen(self) -> None:
        """Raises if no row has a column that the user named: for JSON this is known only after the last row."""
        seen = [*self.trace.read_as, *self.trace.unread]
        for name, column in self.how.columns.items():
            if column not in seen and (self.time is not None or not name.startswith("arrival")):
                raise no_such_column(self.trace.path, name, column, seen)

    def _settle_placeholders(self, time: TimeColumn) -> None:
        rows, trace = self.trace.rows, self.trace
        if not self.dated:
            time.refuse_others()
            trace.rows = replace(rows, arrival_ns=None)
            if self.how.time_unit:
                trace.notices.append("workload.time_unit has no effect: the file has no arrivals")
            why = trace.layout.without_times and f" ({trace.layout.without_times})"
            if time.column is not None or why:
                what = time.column or trace.layout.times[0][0]
                trace.notices.append(f"{what} holds no time in any row: the file has no arrivals{why}")
        elif rows.untimed is not None and rows.untimed.any():
            self.dropped[f"{time.column} is not a time"] += int(rows.untimed.sum())
            trace.rows = rows.take(~rows.untimed)


def _described(trace: Trace, checked: Checked, index: int) -> str:
    """The file, the line, the column, its rule and its value."""
    column, rule = checked.faults.rules[checked.faults.code[index] - 1]
    # A rule may also involve the prompt's length: then that value is shown beside the faulty one.
    spoken_of = [column] + [name for name in (trace.layout.prompt,) if name in rule]
    values = {name: checked.raw[name][index] for name in spoken_of if name in checked.raw}
    shown = ", ".join(f"{name} is {value!r:.60}" for name, value in values.items() if value is not ABSENT)
    what = f"{column} {rule} ({shown})" if column and shown else f"{column} {rule}".strip()
    return f"{trace.where(checked.rows.lines[index])}: {what}"


def _sort(trace: Trace, dates: bool) -> None:
    """Sorts rows by arrival (stably) and shifts times so that the first is 0.

    Times of a format whose time 0 is the start of the replay are not shifted, unless they are dates or since 1970.
    """
    rows = trace.rows
    assert rows.arrival_ns is not None
    trace.out_of_order = int((rows.arrival_ns < np.maximum.accumulate(rows.arrival_ns)).sum())
    if trace.out_of_order:
        rows = rows.take(np.argsort(rows.arrival_ns, kind="stable"))
        trace.notices.append(f"{trace.out_of_order} rows were out of order and have been sorted by arrival")
    assert rows.arrival_ns is not None
    if not trace.layout.keep_origin or dates or rows.arrival_ns[0] > _A_DATE:
        rows.arrival_ns = rows.arrival_ns - rows.arrival_ns[0]
    trace.rows = rows


def _skip(trace: Trace, seconds: float, limit: int | None) -> None:
    """Drops the rows before `seconds`, the new time 0, and keeps at most `limit` others, the first of the file."""
    rows = trace.rows
    if rows.arrival_ns is None:
        raise WorkloadError(f"workload.skip_s={seconds:g}: {trace.path} has no arrival times to skip by")
    start = round(seconds * _SECOND)
    later = rows.arrival_ns >= start
    if not later.any():
        last = rows.arrival_ns[-1] / _SECOND
        raise WorkloadError(f"workload.skip_s={seconds:g}: the last request of {trace.path} arrives at {last:,.3f} s")
    trace.skipped = int((~later).sum())
    rows = rows.take(later)
    if limit is not None and limit < len(rows):
        rows = rows.take(np.sort(np.argsort(rows.lines, kind="stable")[:limit]))
    assert rows.arrival_ns is not None
    rows.arrival_ns = rows.arrival_ns - start
    trace.rows = rows
