"""What a trace format is: the names of its columns and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.workload.fields import LIMITS

NANOSECOND, MICROSECOND, MILLISECOND, SECOND = 1, 1_000, 1_000_000, 1_000_000_000
UNITS = {"s": SECOND, "ms": MILLISECOND, "us": MICROSECOND, "ns": NANOSECOND}
ABSENT = type("Absent", (), {"__repr__": lambda self: "missing"})()  # the key is not there; null is None

Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a row that cannot be read, or that should not be replayed."""

    why: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stands for a row that is not a request of the workload (a warm-up, say), which is not a fault."""

    why: str


@dataclass(slots=True)
class Chunk:
    """Consecutive rows of a file, as found.

    Attributes:
        lines: number of each row, from 1: its line, or its row or request number if the file has no lines.
        columns: column name → one raw value per row (str from CSV, anything JSON has, or ABSENT).
        broken: row index → why the row cannot be read; its values are ABSENT.
        others: columns that were not asked for → some of their values.
        left_out: reason → how many rows are not requests.
    """

    lines: list[int]
    columns: Columns
    broken: dict[int, str] = field(default_factory=dict)
    others: Columns = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What a format may use when it derives rows: the file, the run's seed, the chosen sample, the rows before."""

    path: str
    seed: int = 0
    sample: int | None = None
    rows_before: int = 0


Values = Iterable[tuple[int, Any]]  # (number of the row, JSON value)


@dataclass(frozen=True)
class Format:
    """The layout of one family of traces. A file is of the first format all of whose `required` names it has, formats
    with the longest list first.

    Attributes:
        name: what messages call it.
        required: column names (CSV) or keys (JSON) that tell the format.
        columns: field of a request (`harness.workload.fields`) → its column.
        times: (column, nanoseconds per unit) of the arrival time; the first that exists counts. A unit of None means
            seconds, or milli-, micro- or nanoseconds since 1970 if the numbers are too large for seconds.
        passed_over: columns that look like times and are not arrivals.
        keep_origin: the trace's time 0 is the start of the replay; otherwise the earliest row arrives at 0.
        untimed: rows may all lack the time (then the file has no arrivals); otherwise a missing time is a fault.
        default_block: tokens that a hash id stands for where no column says so.
        unfold: makes flat rows of JSON values that are nested, or hold many requests each.
        derive: computes columns (lengths, ids) that the file has only indirectly, from the columns `inputs` names.
        place: what a row's number counts in messages; "" = lines of the file.
        note: a sentence for the workload's notes when this format is read.
        without_times: a further sentence if the file has no arrivals.
        instead: set if such a file holds no requests: what to do instead.
    """

    name: str
    required: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    times: tuple[tuple[str, int | None], ...] = ()
    passed_over: tuple[str, ...] = ()
    keep_origin: bool = False
    untimed: bool = True
    default_block: int = 0
    unfold: Callable[[Values, Choice], Iterator[tuple[int, Any]]] | None = None
    derive: Callable[[Columns, Choice], Columns] | None = None
    inputs: Callable[[Sequence[str]], list[str]] | None = None
    place: str = ""
    note: str = ""
    without_times: str = ""
    instead: str = ""

    @property
    def prompt(self) -> str:
        return self.columns["prompt_len"]

    @property
    def output(self) -> str:
        return self.columns["output_len"]

    def column(self, name: str) -> str | None:
        """The column of a request's field; limits of a request have the same name in every format."""
        return self.columns.get(name, name if name in LIMITS else None)

    def names(self, header: Sequence[str]) -> list[str]:
        """Every column to extract from a file with this header; later JSON rows may have more than the first."""
        read = [*self.columns.values(), *LIMITS, *(name for name, _ in self.times)]
        inputs = [] if self.inputs is None else self.inputs(header)
        return list(dict.fromkeys([*inputs, *read]))
