"""Checked rows of a trace, stored as columns, so that a million of them stay small."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.workload.fields import BY_NAME, OPTIONAL, Field
from harness.workload.readers.checks import (
    Faults,
    Integers,
    Times,
    check_flags,
    check_ids,
    check_length,
    check_limits,
    check_times,
    check_whole,
)
from harness.workload.readers.format import ABSENT, Chunk, Columns, Format

_SIXTY_FOUR_BITS = (1 << 64) - 1


@dataclass(slots=True)
class Rows:
    """Columns of equal length.

    Attributes:
        lines: number of each row in its file, from 1.
        prompt_len, output_len: tokens.
        arrival_ns: nanoseconds as in the file, None without arrivals.
        untimed: rows whose time is a placeholder.
        more: columns of the other fields of a request, by name, as `Field.column` makes them; only of fields that some
            row has.
    """

    lines: Integers
    prompt_len: Integers
    output_len: Integers
    arrival_ns: Integers | None = None
    untimed: npt.NDArray[np.bool_] | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> Rows:
        """No rows."""
        return cls(*(np.zeros(0, dtype=np.int64),) * 3)

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str) -> Any:
        """The column of an optional field; added as blanks if no row has it."""
        return self.more.setdefault(name, BY_NAME[name].column(len(self)))

    def take(self, which: npt.NDArray[Any]) -> Rows:
        """The rows at these indices in that order, or those where this mask is true."""
        index = np.flatnonzero(which) if which.dtype == np.bool_ else which
        core: dict[str, Any] = {name: column[index] for name in _CORE if (column := getattr(self, name)) is not None}
        more = {
            name: column[index] if isinstance(column, np.ndarray) else [column[place] for place in index.tolist()]
            for name, column in self.more.items()
        }
        return Rows(**core, more=more)


_CORE = ("lines", "prompt_len", "output_len", "arrival_ns", "untimed")


def join(parts: Sequence[Rows]) -> Rows:
    """All rows of all parts (either all parts have arrivals or none); a column that a part lacks is blank there."""
    core: dict[str, Any] = {}
    for name in _CORE:
        columns = [getattr(part, name) for part in parts]
        if columns[0] is not None:
            core[name] = np.concatenate(columns)
    more: dict[str, Any] = {}
    for item in OPTIONAL:
        if any(item.name in part.more for part in parts):
            columns = [part.column(item.name) for part in parts]
            listed = isinstance(columns[0], list)
            more[item.name] = [value for column in columns for value in column] if listed else np.concatenate(columns)
    return Rows(**core, more=more)


@dataclass(slots=True)
class Checked:
    """A chunk after the rules: its rows, faulty ones included, and the faults."""

    rows: Rows
    faults: Faults
    raw: Columns = field(default_factory=dict)
    dates: bool = False


def check_chunk(layout: Format, time: str | None, unit: Callable[[float], int], chunk: Chunk) -> Checked:
    """Applies every rule to a chunk. Of the rules that a row breaks the first is reported.

    Args:
        time: the column of the arrival time; None = there is none, or it does not matter.
        unit: see `check_times`.
    """
    lines, columns = chunk.lines, chunk.columns
    faults = Faults(np.zeros(len(lines), dtype=np.int16))
    for index, why in chunk.broken.items():
        mask = np.zeros(len(lines), dtype=np.bool_)
        mask[index] = True
        faults.add(mask, "", why)
    times: Times | None = None
    if time is not None:
        times = check_times(columns.get(time, [ABSENT] * len(lines)), time, unit, layout.untimed, faults)
    prompt_len = check_length(columns[layout.prompt], layout.prompt, faults)
    output_len = check_length(columns[layout.output], layout.output, faults)
    rows = Rows(np.array(lines, dtype=np.int64), prompt_len, output_len)
    if times is not None:
        rows.arrival_ns, rows.untimed = times.ns, times.placeholder
    for item in OPTIONAL:
        column = layout.column(item.name)
        if column is not None and column in columns and item.kind != "ids" and item.name != "hash_block":
            rows.more[item.name] = _checked(item, columns[column], column, faults)
    for name, check in (("token_ids", _token_ids), ("hash_ids", _hash_ids)):
        column = layout.column(name)
        if column is not None and column in columns:
            check(layout, column, columns, rows, faults)
    if "use_beam_search" in rows.more:
        alone = rows.more["use_beam_search"] & (rows.column("n") < 2)
        faults.add(alone, layout.columns["use_beam_search"], "needs n of at least 2")
    return Checked(rows, faults, columns, times is not None and times.dates)


def _checked(item: Field, values: list[Any], column: str, faults: Faults) -> Any:
    if item.kind == "text":
        texts = ("" if value is ABSENT or value is None else str(value) for value in values)
        names = [intern(text) for text in texts]  # many rows, few names
        damaged = {name for name in set(names) if "\ufffd" in name}
        if damaged:  # names that differ only in damaged bytes would look equal
            faults.add(np.array([name in damaged for name in names]), column, "has a byte that is no UTF-8")
        return names
    if item.kind == "limit":
        return check_limits(values, column, faults)
    if item.kind == "flag":
        return check_flags(values, column, faults)
    return _whole_or_none(values, column, item.least, item.blank, faults)


def _token_ids(layout: Format, column: str, columns: Columns, rows: Rows, faults: Faults) -> None:
    rule = f"must have {layout.prompt} entries"
    lists = check_ids(columns[column], column, rows.prompt_len, rule, 0, BY_NAME["token_ids"].most, faults)
    rows.more["token_ids"] = _arrays(lists, "token_ids", faults)


def _hash_ids(layout: Format, column: str, columns: Columns, rows: Rows, faults: Faults) -> None:
    tokens = layout.column("hash_block")
    if tokens is not None and tokens in columns:
        block = _whole_or_none(columns[tokens], tokens, 1, layout.default_block, faults)
    else:
        block = np.full(len(rows), layout.default_block, dtype=np.int64)
    size, field = np.maximum(block, 1), BY_NAME["hash_ids"]
    expected = -(-rows.prompt_len // size)
    rule = f"must have ceil({layout.prompt} / block size {size[0] if (size == size[0]).all() else ''}) entries"
    lists = check_ids(columns[column], column, expected, rule, field.least, field.most, faults)
    ids = _arrays(lists, "hash_ids", faults)
    absent = np.array([found is None for found in ids], dtype=np.bool_)
    faults.add(~absent & (block == 0), column, f"comes without {tokens or 'hash_block'}")
    rows.more["hash_ids"], rows.more["hash_block"] = ids, np.where(absent, 0, block)


def _arrays(lists: list[list[int] | None], name: str, faults: Faults) -> list[array[int] | None]:
    """Compact ids of the rows without a fault. Signed ids, which some hashers print, become unsigned by their bits."""
    code, sound = BY_NAME[name].code, (faults.code == 0).tolist()
    if code == "Q":
        return [
            array(code, [value & _SIXTY_FOUR_BITS for value in ids]) if ids is not None and good else None
            for ids, good in zip(lists, sound, strict=True)
        ]
    return [array(code, ids) if ids is not None and good else None for ids, good in zip(lists, sound, strict=True)]


def _whole_or_none(values: list[Any], column: str, least: int, default: int, faults: Faults) -> Integers:
    """Whole numbers >= `least`; a missing key, null and an empty cell mean `default`."""
    missing = np.fromiter((v is ABSENT or v is None or v == "" for v in values), dtype=np.bool_, count=len(values))
    if missing.all():
        return np.full(len(values), default, dtype=np.int64)
    filled = [max(least, 1) if gone else value for value, gone in zip(values, missing.tolist(), strict=True)]
    return np.where(missing, default, check_whole(filled, column, least, 2**31 - 1, faults))
