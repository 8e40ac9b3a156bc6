"""Makes a case smaller as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .cases import Case, Row
from .play import Outcome, examine

NEEDED = ("kv_slots", "max_model_len")
MOST_TRIES = 3000


def shrink(case: Case, outcome: Outcome) -> Case:
    """The smallest case that was found to fail as `case` did."""
    tries, again = 0, True
    while again and tries < MOST_TRIES:
        again = False
        for smaller in _smaller(case):
            tries += 1
            if _alike(examine(smaller), outcome):
                case, again = smaller, True
                break
            if tries >= MOST_TRIES:
                break
    return case


def _alike(one: Outcome, other: Outcome) -> bool:
    return one.kind == other.kind and one.like[:60] == other.like[:60]


def _smaller(case: Case) -> Iterator[Case]:
    """Fewer requests first, then fewer keys, then less of each."""
    rows = case.rows
    for size in (len(rows) // 2, 1) if len(rows) > 1 else ():
        for start in range(0, len(rows), size):
            yield replace(case, rows=rows[:start] + rows[start + size :])
    for key, value in case.keys:
        if key not in NEEDED:
            yield case.without(key)
        elif int(value) > 2:
            yield case.having(key, int(value) // 2)
    for at, row in enumerate(rows):
        for less in _lesser(row):
            yield replace(case, rows=(*rows[:at], less, *rows[at + 1 :]))


def _lesser(row: Row) -> Iterator[Row]:
    for at in range(len(row.more)):
        yield replace(row, more=row.more[:at] + row.more[at + 1 :])
    if row.arrival_ns:
        yield replace(row, arrival_ns=0)
    for name in ("prompt_len", "output_len"):
        value = getattr(row, name)
        if value > 1:
            yield replace(row, **{name: 1})
            yield replace(row, **{name: value // 2})
