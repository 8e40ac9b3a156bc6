"""The step table: rows are collected in a chunk, then summed and written at once, so memory stays flat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from allocators.base import Books, LayoutBooks
from harness.files import named
from harness.metrics.jump import NO_JUMP, Jump

INTEGERS = (
    "start", "num_seqs", "decode_seqs", "idle_lanes", "prefill_tokens", "context_tokens", "prefill_attention",
    "waiting", "admitted", "preempted", "head_blocked", *Books._fields, "saved", "copied", "swapped",
    "produced", "finished", "schedule", "execute", "complete", "idle",
)  # fmt: skip
AT = {name: i for i, name in enumerate(INTEGERS)}
BOOKS = slice(AT["used"], AT["free"] + 1)
SPENT = slice(AT["schedule"], AT["idle"] + 1)  # ns; an idle gap is a row with no sequences
FIRST = ("prefill_tokens", "prefill_attention", "admitted", "preempted", "copied", "swapped", "schedule",
         "complete")  # fmt: skip  # 0 later in a jump
WEIGHTED = slice(1, SPENT.start)  # a mean over time of the others means nothing
HELD = AT["cached"] - AT["used"] + 1  # columns of the books before those of free slots
MORE = len(LayoutBooks._fields) - len(Books._fields)
HEADER = ["step", "start_s", *INTEGERS[1 : SPENT.start], *(f"{n}_ms" for n in INTEGERS[SPENT])]
CHUNK = 16_384
MOST = 32_768  # steps summed at once
DETAILED = 20_000  # steps with a row each in the file, jumps or not: enough for every figure
HALF = 20  # bits of a duration that are multiplied apart ...
WIDE = 28  # ... and of a column that may not be wider in one piece


class Totals:
    """Sums over a span of steps, each weighted as its meaning asks; whole numbers, so that no order changes a digit."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        """`more`: columns behind `INTEGERS`."""
        self.at = {**AT, **{name: len(AT) + i for i, name in enumerate(more)}} if more else AT
        self.steps = 0
        self.ns = 0
        self.sums = np.zeros(len(self.at), dtype=np.int64)
        self.by_time = [0] * len(self.at)  # value x ns: more than 64 bits hold
        self.peaks = np.zeros(len(self.at), dtype=np.int64)

    def add(self, rows: np.ndarray) -> None:
        """Add rows ``[n, columns]``, n <= `MOST` (so that no sum overflows)."""
        if not len(rows):
            return
        duration = rows[:, SPENT].sum(axis=1)
        self.steps += len(rows)
        self.ns += int(duration.sum())
        self.sums += rows.sum(axis=0)
        for columns in (WEIGHTED, slice(len(INTEGERS), None)):
            self._weigh(np.ascontiguousarray(rows[:, columns].T), range(len(self.at))[columns], duration)
        self.peaks = np.maximum(self.peaks, rows.max(axis=0))

    def _weigh(self, columns: np.ndarray, at: range, duration: np.ndarray, shift: int = 0) -> None:
        """Add columns ``[k, n]``, each times the duration of its step and 2**shift, to those numbered `at`."""
        if columns.max(initial=0) >> WIDE:  # bytes of a pool
            self._weigh(columns >> WIDE, at, duration, shift + WIDE)
            columns = columns & ((1 << WIDE) - 1)
        high, low = columns @ (duration >> HALF), columns @ (duration & ((1 << HALF) - 1))
        for column, more, rest in zip(at, high.tolist(), low.tolist(), strict=True):
            self.by_time[column] += ((more << HALF) + rest) << shift

    def merge(self, other: Totals) -> None:
        self.steps += other.steps
        self.ns += other.ns
        self.sums += other.sums
        self.by_time = [mine + yours for mine, yours in zip(self.by_time, other.by_time, strict=True)]
        self.peaks = np.maximum(self.peaks, other.peaks)

    def sum(self, name: str) -> int:
        return int(self.sums[self.at[name]])

    def peak(self, name: str) -> int:
        return int(self.peaks[self.at[name]])

    def mean(self, name: str) -> float | None:
        """Time-weighted mean of a column; None over no time at all."""
        return self.by_time[self.at[name]] / self.ns if self.ns else None


class Pace:
    """How fast a span of steps was: few sums, so that it costs little beside the `Totals`."""

    def __init__(self) -> None:
        self.ns = self.produced = self.finished = self.lanes_ns = 0

    def add(self, rows: np.ndarray) -> None:
        """Add rows ``[n, len(INTEGERS)]``."""
        duration = rows[:, SPENT].sum(axis=1)
        self.ns += int(duration.sum())
        self.produced += int(rows[:, AT["produced"]].sum())
        self.finished += int(rows[:, AT["finished"]].sum())
        self.lanes_ns += int(rows[:, AT["num_seqs"]] @ duration)

    def merge(self, other: Pace) -> None:
        self.ns += other.ns
        self.produced += other.produced
        self.finished += other.finished
        self.lanes_ns += other.lanes_ns


class Span:
    """Sums from the first step that begins it to the last that belongs to it.

    Args:
        kind: of the sums, `Totals` or `Pace`.
    """

    def __init__(self, kind: Callable[[], Any]) -> None:
        self.kind = kind
        self.sums, self._maybe = kind(), kind()  # what came since the last that belongs to it may lie inside after all
        self._begun = False

    def add(self, rows: np.ndarray, begins: np.ndarray, belongs: np.ndarray) -> None:
        """Further steps ``[n, len(INTEGERS)]``, and which of them (``[n]``, true or not 0) begin it or belong to it."""
        first = 0
        if not self._begun:
            beginning = np.flatnonzero(begins)
            if not len(beginning):
                return
            self._begun, first = True, int(beginning[0])
        inside = np.flatnonzero(belongs[first:])
        if len(inside):
            self.sums.merge(self._maybe)
            self._maybe = self.kind()
            end = first + int(inside[-1]) + 1
            self.sums.add(rows[first:end])
            first = end
        self._maybe.add(rows[first:])


class StepLog:
    """Rows of the step table, with totals over the whole run and over two spans of it.

    The totals are over all steps. In the file, from some step on (`DETAILED`), a jump is one row: its first step, and
    in `repeat` for how many it stands.
    Saturated: from the first step whose head was refused for lack of memory to the last step with anything waiting.
    Steady: from the first step in which somebody waits and the batch has no more sequences than in the step before,
    whatever keeps it from growing (memory, places, the token budget, a batch that nobody may join), to the last step
    with anything waiting. So neither ramp nor drain is in it; a server that keeps up with its requests has none.

    Attributes:
        more: names of columns behind `INTEGERS`.
        error: why the file holds no more rows (a full disk); the replay and its totals go on.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.more: tuple[str, ...] = ()
        self._pack = Struct(f"={len(INTEGERS)}q").pack  # a third of the time of an array's
        self.error: OSError | None = None
        self.whole = Totals()
        self._saturated, self._steady = Span(Totals), Span(Pace)
        self._lanes = 0  # sequences in the last step that was summed
        self._rows = bytearray()  # of int64[rows, len(INTEGERS)]
        self._jumps: list[Jump] = []
        self._joined: list[tuple[int, int]] = []  # row, and when somebody joined the queue while it ran
        self._steps = 0
        self._written = 0

    def add_columns(self, names: Sequence[str]) -> None:
        """Rows have these besides, before there are any: `Allocator.extra_columns`."""
        if names and not self.more:
            self.more = tuple(names)
            self._pack = Struct(f"={len(INTEGERS) + len(self.more)}q").pack
            self.whole, self._saturated = Totals(self.more), Span(partial(Totals, self.more))

    def append(self, row: tuple[int, ...], further: Jump = NO_JUMP) -> None:
        """A step, and those that followed with the same batch."""
        if self._steps >= CHUNK:
            self.flush()
        self._rows += self._pack(*row)
        self._jumps.append(further)
        self._steps += 1 + len(further.ns)

    def joined(self, when: int) -> None:
        """A request joined the queue at `when` (ns), maybe within the last jump: then it waited for the rest of it."""
        if self._jumps and self._jumps[-1].ns:
            self._joined.append((len(self._jumps) - 1, when))

    def flush(self) -> None:
        """Sum and write the rows collected so far."""
        if not self._rows:
            return
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, len(INTEGERS) + len(self.more))
        steps = expand(rows, self._jumps, self._joined)
        if self.path and not self.error:
            try:
                if self._written < DETAILED:
                    self._write(steps, np.ones(len(steps), dtype=np.int64))
                else:
                    self._write(rows, np.array([1 + len(jump.ns) for jump in self._jumps]))
            except OSError as error:
                self.error = error
        self._rows = bytearray()
        self._jumps.clear()
        self._joined.clear()
        self._steps = 0
        for first in range(0, len(steps), MOST):  # the last jump may be long
            self._add(steps[first : first + MOST])

    @property
    def saturated(self) -> Totals:
        totals: Totals = self._saturated.sums
        return totals

    @property
    def steady(self) -> Pace:
        pace: Pace = self._steady.sums
        return pace

    def _add(self, rows: np.ndarray) -> None:
        self.whole.add(rows)
        lanes, waiting, blocked = (rows[:, AT[name]] for name in ("num_seqs", "waiting", "head_blocked"))
        self._saturated.add(rows, blocked, waiting + blocked)
        full = (np.diff(lanes, prepend=self._lanes) <= 0) & (lanes > 0)
        self._steady.add(rows, full & (waiting > 0), waiting)
        self._lanes = int(lanes[-1])

    def _write(self, rows: np.ndarray, repeat: np.ndarray) -> None:
        """Append rows, with the same text as pandas in 0.37 of its processor time (16,384 rows of a run)."""
        numbers = self._written + np.cumsum(repeat) - repeat
        columns = [rows[:, 0] / 1e9, *rows[:, 1 : SPENT.start].T, *(rows[:, SPENT] / 1e6).T]
        columns += [*rows[:, len(INTEGERS) :].T, repeat]
        line, told = "%d", [numbers.tolist()]
        for column in columns:
            form = "%r" if column.dtype.kind == "f" else "%d"
            if (column == column[0]).all():  # many are 0 from beginning to end, and need not be told row by row
                line += f",{form % column[0].item()}"
            else:
                line += f",{form}"
                told.append(column.tolist())
        text = "".join(map(f"{line}\n".__mod__, zip(*told, strict=True)))
        header = ",".join([*HEADER, *self.more, "repeat\n"])
        with named(self.path), open(self.path or "", "a" if self._written else "w", encoding="utf-8") as file:
            file.write(text if self._written else header + text)
        self._written += int(repeat.sum())


def expand(rows: np.ndarray, jumps: Sequence[Jump], joined: Sequence[tuple[int, int]]) -> np.ndarray:
    """Every step of every jump.

    Args:
        rows: ``[n, columns]``, the first step of each; `finished` is of its last step.
        jumps: n, what followed.
        joined: (row, ns) of each request that joined the queue while that row ran.

    Returns:
        ``[steps, columns]``.
    """
    repeat = np.array([1 + len(jump.ns) for jump in jumps])
    steps = np.repeat(rows.T, repeat, axis=1).T  # each column in one piece: all below goes by columns
    if len(steps) == len(rows):
        return steps
    first = np.cumsum(repeat) - repeat
    after = np.arange(len(steps)) - np.repeat(first, repeat)  # steps since the first of its jump
    later = np.flatnonzero(after)
    steps[later, AT["execute"]] = np.fromiter(chain.from_iterable([jump.ns for jump in jumps]), np.int64)
    asked = np.repeat(np.array([jump.asked for jump in jumps]), repeat)
    _books(steps, first, repeat, after, later, jumps, asked)
    steps[:, AT["context_tokens"]] += after * steps[:, AT["num_seqs"]]
    steps[:, AT["decode_seqs"]] = np.where(after, steps[:, AT["num_seqs"]], steps[:, AT["decode_seqs"]])
    steps[:, AT["head_blocked"]] = np.where(after, asked >= 0, steps[:, AT["head_blocked"]])
    for name in FIRST:
        steps[:, AT[name]] *= after == 0
    spent = steps[:, SPENT].sum(axis=1)
    begun = np.cumsum(spent) - spent
    steps[:, AT["start"]] += begun - np.repeat(begun[first], repeat)
    last = first + repeat - 1
    steps[:, AT["finished"]] = 0
    steps[last, AT["finished"]] = rows[:, AT["finished"]]
    for row, when in joined:
        mine = slice(first[row] + 1, last[row] + 1)
        steps[mine, AT["waiting"]] += steps[mine, AT["start"]] >= when
    return steps


def _books(steps: np.ndarray, first: np.ndarray, repeat: np.ndarray, after: np.ndarray, later: np.ndarray,
           jumps: Sequence[Jump], asked: np.ndarray) -> None:  # fmt: skip
    """Write the books of every step, each from its jump's first step: one slot a lane and step goes from `reserved` to
    `used`, slots granted for a later step shift the columns from it on, and what is left follows from the rest.
    """
    books, more = steps[:, BOOKS], steps[:, len(INTEGERS) :]  # views
    layered = more[:, :MORE]  # columns of the books that only some layouts have
    capacity, lanes = books.sum(axis=1) + layered.sum(axis=1), after * steps[:, AT["num_seqs"]]
    number = np.array([len(jump.shifts) for jump in jumps])
    width = 1 + HELD + more.shape[1]
    packed = b"".join(starmap(Struct(f"={width}q").pack, chain.from_iterable([jump.shifts for jump in jumps])))
    shifts = np.frombuffer(packed, dtype=np.int64).reshape(-1, width)
    at = np.repeat(first + 1, number) + shifts[:, 0]
    within = at < np.repeat(first + repeat, number)  # not for the step that was refused
    at, shifts = at[within], shifts[within, 1:]
    for column in np.flatnonzero(shifts.any(axis=0)).tolist():
        moved = np.zeros(len(steps), dtype=np.int64)
        np.add.at(moved, at, shifts[:, column])
        moved = np.cumsum(moved)
        into = books[:, column] if column < HELD else more[:, column - HELD]
        into += moved - np.repeat(moved[first], repeat)
    books[:, 0] += lanes
    books[:, 2] -= lanes
    cached, unheld = books[:, HELD - 1], capacity - books[:, : HELD - 1].sum(axis=1) - layered.sum(axis=1)
    fits = unheld >= asked
    cases = (asked >= 0) & fits, (asked >= 0) & ~fits, asked < 0
    for column, case in enumerate(cases, HELD):
        books[later, column] = ((unheld - cached) * case)[later]
