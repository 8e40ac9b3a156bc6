"""The columns of the short table: what heads them, how their numbers read, and what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from harness.report.repeats import UNTOLD

DASH = "–"
APART = 0.01  # relative: a window is shown beside the whole run where any row differs by more


class Column(NamedTuple):
    """A number of the short table.

    Attributes:
        header: with a line break where a terminal wants one.
        name: key of a summary.
        form: of the number.
        definition: what it is, in a clause.
        scale: from the summary's unit to the header's.
        whole: where it is of a window, the same of the whole run; it is left out where no row differs.
    """

    header: str
    name: str
    form: str
    definition: str
    scale: float = 1.0
    whole: str = ""

    @property
    def head(self) -> str:
        """The header in one line."""
        return one_line(self.header)

    def cell(self, row: Mapping[str, Any]) -> str:
        """``6,857.1 ± 12.3``, and in a second line the standard deviation over repeats, or that nobody can tell."""
        value = row[self.name]
        if pd.isna(value):
            return DASH
        text = self.form.format(float(value) * self.scale)
        spread = row.get(f"{self.name}_sd")
        if spread is None or pd.isna(spread) or not (spread or self.name == RATIO):
            return text
        plain, half = self.form.lstrip("×"), float(row[f"{self.name}_high"]) - float(value)
        untold = self.name == RATIO and row["told_apart"] in UNTOLD
        below = row["told_apart"] if untold else f"sd {plain.format(float(spread) * self.scale)}"
        return f"{text} ± {plain.format(half * self.scale)}\n{below}"


def one_line(header: str) -> str:
    """A header without its line breaks."""
    return header.replace("-\n", "").replace("\n", " ")


RATIO = "output_throughput_x"
STEADY = "while anybody waited, without ramp and drain"
COLUMNS = (
    Column("output\ntok/s", "output_throughput", "{:,.1f}", "tokens produced / time to the last token (whole run)"),
    Column("steady\ntok/s", "steady_output_throughput", "{:,.1f}", f"the same {STEADY}", whole="output_throughput"),
    Column("ratio", RATIO, "×{:.2f}", "output tok/s over the baseline's"),
    Column("mean\nbatch", "mean_batch_size", "{:.1f}", "sequences in a step, mean over the time of steps (whole run)"),
    Column("steady\nbatch", "steady_mean_batch_size", "{:.1f}", f"the same {STEADY}", whole="mean_batch_size"),
    Column("KV used\n%", "kv_used_pct", "{:.1f}", "by slots: those that hold a token in use (whole run)"),
    Column("saturated\nKV used %", "saturated_kv_used_pct", "{:.1f}",
           "the same while requests waited for memory (–: none ever did)"),
    Column("KV held\n%", "saturated_kv_held_pct", "{:.1f}",
           "by blocks: slots that somebody holds, used or not, while requests waited for memory"),
    Column("recom-\nputed %", "recomputed_pct", "{:.1f}", "share of all tokens computed that were computed before"),
    Column("TTFT\np50 s", "ttft_p50_ms", "{:.2f}", "first token − scheduled arrival, median of the requests", 1e-3),
    Column("TPOT\nmean ms", "tpot_mean_ms", "{:.1f}",
           "(last − first token) / (tokens − 1) of a request, mean over the requests"),
    Column("TPOT\ntotal ms", "tpot_total_ms", "{:.1f}", "both summed over requests, then divided"),
    Column("e2e\np99 s", "e2e_p99_ms", "{:.1f}", "last token − scheduled arrival, 99th percentile", 1e-3),
    Column("hits, %\nof lookups", "prefix_lookup_hit_pct", "{:.1f}",
           "tokens found in the pool, of all that were looked for, also after preemptions"),
    Column("hits, %\nof prompts", "prefix_prompt_hit_pct", "{:.1f}",
           "the same of the tokens of all prompts admitted: one preempted counts its hits again"),
    Column("hits, %\nonce", "prefix_hit_pct", "{:.1f}", "found at a request's first admission, of its prompt's tokens"),
    Column("capacity\nreq/s", "capacity_rate", "{:.3g}", "highest rate of arrivals that met the criterion"),
    Column("% of\nideal", "pct_of_ideal", "{:.1f}", "of the capacity (else of the output tok/s) of the row Ideal"),
    Column("goodput\nreq/s", "goodput", "{:.3g}", "requests within every limit / time to the last token"),
    Column("$ per\nM tokens", "cost_per_million_output_tokens", "{:.3g}", "price_per_hour for a million output tokens"),
)  # fmt: skip


def shown(groups: pd.DataFrame) -> Iterator[Column]:
    """The columns that say something: of which anything is known, and, of a window, that differ from the whole run."""
    for column in COLUMNS:
        if (
            column.name in groups
            and groups[column.name].notna().any()
            and (not column.whole or _differs(groups, column))
        ):
            yield column


def definitions(groups: pd.DataFrame) -> list[tuple[str, str]]:
    """(header, what it is) of the columns shown; what stands in a cell below the mean, where anything does."""
    found = [(column.head, column.definition) for column in shown(groups)]
    if len(groups) and (groups["repeats"] > 2).any():
        found.append(("±", "half of the 95 % interval of the mean (Student's t); sd: standard deviation over repeats; "
                      "of a ratio over pairs of runs with one seed"))  # fmt: skip
    return found


def _differs(groups: pd.DataFrame, column: Column) -> bool:
    window, whole = groups[column.name].astype("float64"), groups[column.whole].astype("float64")
    return bool((window / whole - 1).abs().gt(APART).any())
