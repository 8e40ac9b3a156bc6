"""The columns of the short table: their headers, and the format of their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from harness.report.numbers import definition
from harness.report.repeats import INSIGNIFICANT

DASH = "–"
APART = 0.01  # relative: a window is shown beside the whole run where any row differs by more


class Column(NamedTuple):
    """A number of the short table.

    Attributes:
        header: may have a line break, for terminals.
        name: key of a summary.
        form: format of the number.
        scale: factor from the summary's unit to the header's.
        whole: for a number of a window, the key of the same number over the whole run; if no row differs, the column
            is left out.
        said: definition of a number that only a comparison has (a ratio).
    """

    header: str
    name: str
    form: str
    scale: float = 1.0
    whole: str = ""
    said: str = ""

    @property
    def head(self) -> str:
        """The header in one line."""
        return one_line(self.header)

    @property
    def definition(self) -> str:
        """What it is, in a clause."""
        return self.said or definition(self.name)

    def cell(self, row: Mapping[str, Any]) -> str:
        """``6,857.1 ± 12.3``, and in a second line the standard deviation over repeats, or "not told apart"."""
        value = row[self.name]
        if pd.isna(value):
            return DASH
        text = self.form.format(float(value) * self.scale)
        spread = row.get(f"{self.name}_sd")
        if spread is None or pd.isna(spread) or not (spread or self.name == RATIO):
            return text
        plain, half = self.form.lstrip("×"), float(row[f"{self.name}_high"]) - float(value)
        untold = self.name == RATIO and row["told_apart"] in INSIGNIFICANT
        below = row["told_apart"] if untold else f"sd {plain.format(float(spread) * self.scale)}"
        return f"{text} ± {plain.format(half * self.scale)}\n{below}"


def one_line(header: str) -> str:
    """A header without its line breaks."""
    return header.replace("-\n", "").replace("\n", " ")


RATIO = "output_throughput_x"
COLUMNS = (
    Column("output\ntok/s", "output_throughput", "{:,.1f}"),
    Column("steady\ntok/s", "steady_output_throughput", "{:,.1f}", whole="output_throughput"),
    Column("ratio", RATIO, "×{:.2f}", said="output tok/s over the baseline's"),
    Column("mean\nbatch", "mean_batch_size", "{:.1f}"),
    Column("steady\nbatch", "steady_mean_batch_size", "{:.1f}", whole="mean_batch_size"),
    Column("KV used\n%", "kv_used_pct", "{:.1f}"),
    Column("saturated\nKV used %", "saturated_kv_used_pct", "{:.1f}"),
    Column("KV held\n%", "saturated_kv_held_pct", "{:.1f}"),
    Column("recom-\nputed %", "recomputed_pct", "{:.1f}"),
    Column("TTFT\np50 s", "ttft_p50_ms", "{:.2f}", 1e-3),
    Column("TPOT\nmean ms", "tpot_mean_ms", "{:.1f}"),
    Column("TPOT\ntotal ms", "tpot_total_ms", "{:.1f}"),
    Column("e2e\np99 s", "e2e_p99_ms", "{:.1f}", 1e-3),
    Column("hits, %\nof lookups", "prefix_lookup_hit_pct", "{:.1f}"),
    Column("hits, %\nof prompts", "prefix_prompt_hit_pct", "{:.1f}"),
    Column("hits, %\nonce", "prefix_hit_pct", "{:.1f}"),
    Column("capacity\nreq/s", "capacity_rate", "{:.3g}"),
    Column("% of\nideal", "pct_of_ideal", "{:.1f}", said="of the capacity (else of the output tok/s) of the row Ideal"),
    Column("goodput\nreq/s", "goodput", "{:.3g}"),
    Column("$ per\nM tokens", "cost_per_million_output_tokens", "{:.3g}"),
)


def shown(groups: pd.DataFrame) -> Iterator[Column]:
    """The columns to show: those with any value; a window's only if it differs from the whole run."""
    for column in COLUMNS:
        if (
            column.name in groups
            and groups[column.name].notna().any()
            and (not column.whole or _differs(groups, column))
        ):
            yield column


def definitions(groups: pd.DataFrame) -> list[tuple[str, str]]:
    """(header, definition) of the columns shown; also of the second line of cells, if there is one."""
    found = [(column.head, column.definition) for column in shown(groups)]
    if len(groups) and (groups["repeats"] > 2).any():
        found.append(("±", "half of the 95 % interval of the mean (Student's t); sd: standard deviation over repeats; "
                      "of a ratio over pairs of runs with one seed"))  # fmt: skip
    return found


def _differs(groups: pd.DataFrame, column: Column) -> bool:
    window, whole = groups[column.name].astype("float64"), groups[column.whole].astype("float64")
    return bool((window / whole - 1).abs().gt(APART).any())
