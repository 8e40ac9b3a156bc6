"""Checked rows of a trace as columns, which is how a million of them stay small."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from sys import intern
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.workload.readers.checks import (
    Faults,
    Integers,
    Times,
    check_ids,
    check_length,
    check_times,
    check_whole,
    check_yes_or_no,
)
from harness.workload.readers.format import ABSENT, Chunk, Columns, Format

_SIXTY_FOUR_BITS = (1 << 64) - 1


@dataclass(slots=True)
class Rows:
    """Columns of equal length; optional ones are None when the format lacks them.

    Attributes:
        lines: line of each row in its file, from 1.
        prompt_len, output_len: tokens.
        arrival_ns: nanoseconds as in the file, None without arrivals.
        untimed: rows whose time is a placeholder.
        max_tokens: the client's own cap, 0 = none.
        priority: lower is sooner.
        session: conversation or client, "" = none.
        hash_ids: array('Q') of content ids per row, or None.
        hash_block: tokens per hash id, 0 = no ids.
        token_ids: array('i') of the prompt's tokens per row, or None.
        n: answers wanted.
        use_beam_search: whether they are the beams of a search.
    """

    lines: Integers
    prompt_len: Integers
    output_len: Integers
    arrival_ns: Integers | None = None
    untimed: npt.NDArray[np.bool_] | None = None
    max_tokens: Integers | None = None
    priority: Integers | None = None
    session: list[str] | None = None
    hash_ids: list[array[int] | None] | None = None
    hash_block: Integers | None = None
    token_ids: list[array[int] | None] | None = None
    n: Integers | None = None
    use_beam_search: npt.NDArray[np.bool_] | None = None

    @classmethod
    def empty(cls) -> Rows:
        """No rows."""
        return cls(*(np.zeros(0, dtype=np.int64),) * 3)

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, which: npt.NDArray[Any]) -> Rows:
        """The rows at these indices (or where this mask is true), in the order given."""
        index = np.flatnonzero(which) if which.dtype == np.bool_ else which
        chosen: dict[str, Any] = {}
        for name in _COLUMNS:
            column = getattr(self, name)
            if isinstance(column, np.ndarray):
                chosen[name] = column[index]
            elif column is not None:
                chosen[name] = [column[place] for place in index.tolist()]
        return Rows(**chosen)


_COLUMNS = tuple(item.name for item in fields(Rows))


def join(parts: Sequence[Rows]) -> Rows:
    """All rows of all parts, which have the same columns."""
    joined: dict[str, Any] = {}
    for name in _COLUMNS:
        columns = [getattr(part, name) for part in parts]
        if isinstance(columns[0], np.ndarray):
            joined[name] = np.concatenate(columns)
        elif columns[0] is not None:
            joined[name] = [value for column in columns for value in column]
    return Rows(**joined)


@dataclass(slots=True)
class Checked:
    """A chunk after the rules: its rows, faulty ones included, and the faults."""

    rows: Rows
    faults: Faults
    raw: Columns = field(default_factory=dict)


def check_chunk(layout: Format, time: tuple[str, int] | None, chunk: Chunk) -> Checked:
    """Applies every rule to a chunk. The first rule that a row breaks is the one it is known for."""
    lines, columns = chunk.lines, chunk.columns
    faults = Faults(np.zeros(len(lines), dtype=np.int16))
    for index, why in chunk.broken.items():
        mask = np.zeros(len(lines), dtype=np.bool_)
        mask[index] = True
        faults.add(mask, "", why)
    times: Times | None = None
    if time is not None:
        times = check_times(columns[time[0]], time[0], time[1], layout.dates, layout.untimed, faults)
    prompt_len = check_length(columns[layout.prompt], layout.prompt, faults)
    output_len = check_length(columns[layout.output], layout.output, faults)
    rows = Rows(np.array(lines, dtype=np.int64), prompt_len, output_len)
    if times is not None:
        rows.arrival_ns, rows.untimed = times.ns, times.placeholder
    _optional_columns(layout, columns, rows, faults)
    return Checked(rows, faults, columns)


def _optional_columns(layout: Format, columns: Columns, rows: Rows, faults: Faults) -> None:
    if layout.session is not None and layout.session in columns:
        names = ("" if value is ABSENT or value is None else str(value) for value in columns[layout.session])
        rows.session = [intern(name) for name in names]  # many rows, few names
    if layout.max_tokens is not None and layout.max_tokens in columns:
        rows.max_tokens = _whole_or_none(columns[layout.max_tokens], layout.max_tokens, 1, 0, faults)
    if layout.priority is not None and layout.priority in columns:
        rows.priority = _whole_or_none(columns[layout.priority], layout.priority, -(2**31), 0, faults)
    if layout.n is not None and layout.n in columns:
        rows.n = _whole_or_none(columns[layout.n], layout.n, 1, 1, faults)
    if layout.use_beam_search is not None and layout.use_beam_search in columns:
        rows.use_beam_search = check_yes_or_no(columns[layout.use_beam_search], layout.use_beam_search, faults)
        several = np.zeros(len(rows), dtype=np.bool_) if rows.n is None else rows.n > 1
        faults.add(rows.use_beam_search & ~several, layout.use_beam_search, f"needs {layout.n} of at least 2")
    if layout.token_ids is not None and layout.token_ids in columns:
        rule = f"must have {layout.prompt} entries"
        lists = check_ids(columns[layout.token_ids], layout.token_ids, rows.prompt_len, rule, 0, 2**31 - 1, faults)
        rows.token_ids = [
            array("i", ids) if ids is not None and faults.code[index] == 0 else None for index, ids in enumerate(lists)
        ]
    if layout.hash_ids is not None and layout.hash_ids in columns:
        _hash_columns(layout, columns, rows, faults)


def _hash_columns(layout: Format, columns: Columns, rows: Rows, faults: Faults) -> None:
    assert layout.hash_ids is not None
    if layout.block is not None and layout.block in columns:
        block = _whole_or_none(columns[layout.block], layout.block, 1, layout.default_block, faults)
    else:
        block = np.full(len(rows), layout.default_block, dtype=np.int64)
    size = np.maximum(block, 1)
    expected = -(-rows.prompt_len // size)
    rule = f"must have ceil({layout.prompt} / block size {size[0] if (size == size[0]).all() else ''}) entries"
    lists = check_ids(columns[layout.hash_ids], layout.hash_ids, expected, rule, -(2**63), _SIXTY_FOUR_BITS, faults)
    # Some hashers print signed numbers: the same 64 bits, so the same id.
    rows.hash_ids = [
        array("Q", [value & _SIXTY_FOUR_BITS for value in ids]) if ids is not None and faults.code[index] == 0 else None
        for index, ids in enumerate(lists)
    ]
    absent = np.array([ids is None for ids in rows.hash_ids], dtype=np.bool_)
    faults.add(~absent & (block == 0), layout.hash_ids, f"comes without {layout.block}")
    rows.hash_block = np.where(absent, 0, block)


def _whole_or_none(values: list[Any], column: str, least: int, default: int, faults: Faults) -> Integers:
    """Whole numbers >= `least`; nothing, null and an empty cell mean `default`."""
    missing = np.fromiter((v is ABSENT or v is None or v == "" for v in values), dtype=np.bool_, count=len(values))
    if missing.all():
        return np.full(len(values), default, dtype=np.int64)
    filled = [max(least, 1) if gone else value for value, gone in zip(values, missing.tolist(), strict=True)]
    return np.where(missing, default, check_whole(filled, column, least, 2**31 - 1, faults))
