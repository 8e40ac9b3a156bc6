"""Figures that belong to one experiment: a module each, named by the configuration's key `figure`.

A module draws (`draw`), may compare published numbers with ours (`published`), and explains the differences (`why`); it
may write `files` of its own. Our numbers come from the sweep's folders, published ones from `harness/published`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pandas as pd

from harness.errors import HarnessError
from harness.files import records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from harness.report.sweep import Sweep

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


class Pair(NamedTuple):
    """A published number and ours, in the same unit; None if ours was not measured."""

    quantity: str
    unit: str
    system: str
    at: str
    published: float
    ours: float | None


class Module(Protocol):
    """The interface of a figure's module."""

    def draw(self, sweep: Sweep) -> Figure | None:
        """The figure; None when there is nothing to draw."""

    def published(self, sweep: Sweep) -> Iterable[Pair]:
        """Published numbers beside ours."""

    def why(self, sweep: Sweep) -> list[str]:
        """What follows the publication, what does not, and what explains the differences."""


def load(name: str) -> Module:
    """The module of a figure. Raises HarnessError when there is no such figure."""
    if name not in NAMES:
        raise HarnessError(f"figure={name}: there are {', '.join(NAMES)}")
    module: Module = importlib.import_module(f"{__name__}.{name}")
    return module


def table(pairs: Iterable[Pair]) -> pd.DataFrame:
    """`published.csv`: the pairs and, per pair, the relative error in percent (empty where it is meaningless)."""
    rows = pd.DataFrame(list(pairs), columns=Pair._fields)
    ours, published = rows["ours"].astype("float64"), rows["published"].astype("float64")
    return rows.assign(ours=ours, error_pct=(100 * (ours / published - 1)).where(published != 0))


MOST = 15  # rows of a quantity in the report; more are summarized


def section(rows: pd.DataFrame, reasons: list[str]) -> str:
    """Markdown for below the figure: the pairs and the explanations; many pairs are summarized in a sentence."""
    lines, sums = ["", "# Beside the published numbers" if len(rows) else "# About this figure", ""], list[str]()
    if len(rows):
        lines += ["| quantity | at | system | published | ours | error |", "|---|---|---|---|---|---|"]
    for (quantity, unit), some in rows.groupby(["quantity", "unit"], sort=False):
        if len(some) > MOST:
            median, there = some["error_pct"].abs().median(), some["ours"].notna().sum()
            sums.append(f"{quantity}, {unit}: {there} of {len(some)} points measured, median |error| {median:.1f} %.")
            continue
        for row in records(some):
            points = str(unit).startswith("%")  # shares differ by points
            error = row["ours"] - row["published"] if points else row["error_pct"]
            error = "–" if pd.isna(error) else f"{error:+.1f} {'points' if points else '%'}"
            ours = "–" if pd.isna(row["ours"]) else f"{row['ours']:.4g}"
            lines.append(f"| {quantity}, {unit} | {row['at']} | {row['system']} | {row['published']:.4g} "
                         f"| {ours} | {error} |")  # fmt: skip
    if len(rows):
        lines += ["", "Every point is in `published.csv`.", ""]
    return "\n".join([*lines, *(f"- {reason}" for reason in [*sums, *reasons])]) + "\n"
