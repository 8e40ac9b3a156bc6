"""Everything that one run measured: a line for each kind of number, with its definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.files import records
from harness.report.numbers import KINDS, POOL
from harness.report.repeats import aggregate
from harness.report.table import notes

RARE = ("saved by sharing", "moved")  # left out if all are 0


def lines(row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(kind, its numbers, their definitions); kinds that were not measured are left out."""
    for kind in (*KINDS, *POOL):
        there = [f"{number.name} {_figures(row[number.key])}".strip() for number in kind.numbers
                 if pd.notna(row.get(number.key))]  # fmt: skip
        idle = kind.name in RARE and not any(row.get(number.key) for number in kind.numbers)
        if there and not idle:
            yield kind.name, f"{', '.join(there)} {kind.unit}".strip(), kind.definitions


def print_job(table: pd.DataFrame, console: Console, what_ran: str = "") -> None:
    """Print what one job measured."""
    (row,) = records(table)
    view = Table(box=None, padding=(0, 2, 0, 0), show_header=False, title=Text(str(row["system"])),
                 title_justify="left")  # fmt: skip
    for name, numbers, definition in lines(row):
        view.add_row(name, Text(numbers), Text(definition, style="dim"))
    console.print(view)
    console.print(Text(what_ran, style="dim"))
    for note in notes(table, aggregate(table)):
        console.print(Text(note, style="dim"))


def _figures(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
