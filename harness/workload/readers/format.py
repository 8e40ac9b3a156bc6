"""What a trace format is: the names of its columns and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

NANOSECOND, MILLISECOND, SECOND = 1, 1_000_000, 1_000_000_000
ABSENT = type("Absent", (), {"__repr__": lambda self: "missing"})()  # the key is not there; null is None

Columns = dict[str, list[Any]]


@dataclass(slots=True)
class Chunk:
    """Consecutive rows of a file, as found.

    Attributes:
        lines: line number of each row, from 1.
        columns: column name → one raw value per row (str from CSV, anything JSON has, or ABSENT).
        broken: row index → why the row as such cannot be read; its values are ABSENT.
    """

    lines: list[int]
    columns: Columns
    broken: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What a format may ask when it derives columns: the run's seed, the chosen sample, how many rows came before."""

    seed: int = 0
    sample: int | None = None
    rows_before: int = 0


@dataclass(frozen=True)
class Format:
    """One family's layout. A file is of the format whose `required` names it has all, the longest list first.

    Attributes:
        name: what messages call it.
        required: column names (CSV) or keys (JSON) that tell the format.
        prompt, output: columns of the two lengths, tokens.
        times: (column, nanoseconds per unit) of the arrival time, the first that exists.
        dates: the time may be a calendar date (ISO 8601).
        keep_origin: time 0 is the start of the replay as it stands; otherwise the earliest row arrives at 0.
        untimed: rows may all lack the time (then the file has no arrivals); otherwise a missing time is a fault.
        session, hash_ids, token_ids, max_tokens, priority, n, use_beam_search: optional columns.
        block, default_block: column that says how many tokens a hash id stands for, and the value without it.
        derive: computes columns (lengths, ids) that the file has only indirectly, from the columns `inputs` names.
        note: said in the workload's notes when this format is read.
    """

    name: str
    required: tuple[str, ...]
    prompt: str
    output: str
    times: tuple[tuple[str, int], ...] = ()
    dates: bool = False
    keep_origin: bool = False
    untimed: bool = True
    session: str | None = None
    hash_ids: str | None = None
    block: str | None = None
    default_block: int = 0
    token_ids: str | None = None
    max_tokens: str | None = None
    priority: str | None = None
    n: str | None = None
    use_beam_search: str | None = None
    derive: Callable[[Columns, Choice], Columns] | None = None
    inputs: Callable[[Sequence[str]], list[str]] | None = None
    note: str = ""

    def names(self, header: Sequence[str], kind: str) -> list[str]:
        """Every column to extract from a file with this header ("csv": only what it has; JSON rows may vary)."""
        if self.inputs is not None:
            return self.inputs(header)
        optional = (self.session, self.hash_ids, self.block, self.token_ids, self.max_tokens, self.priority, self.n,
                    self.use_beam_search)  # fmt: skip
        names = [self.prompt, self.output, *(name for name, _ in self.times), *(name for name in optional if name)]
        return [name for name in names if name in header or kind != "csv"]
