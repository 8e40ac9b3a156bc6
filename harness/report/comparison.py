"""The comparison: one row per job, the same columns in the same order for every sweep; missing values are empty."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from allocators.base import Books
from harness.errors import HarnessError
from harness.files import records
from harness.report.naming import WHO, axes, name_rows
from harness.report.rows import parse_overrides, read_rows

LATENCIES = [f"{name}_{key}_ms" for name in ("ttft", "tpot", "itl", "e2e") for key in ("mean", "p50", "p90", "p99")]
KV = [f"kv_{column}_pct" for column in Books._fields]
FIRST = [
    "system", "allocator", "reservation", "scheduler", "status", "finished", "rejected", "duration_s",
    "request_throughput", "output_throughput", "total_token_throughput", *LATENCIES, "normalized_latency_mean_s",
    "mean_batch_size", "useful_lane_pct", "busy_fraction", "preemptions", "recomputed_pct", "waiting_age_max_s",
    "waiting_age_mean_s",
    *KV, *(f"saturated_{column}" for column in KV),
]  # fmt: skip
AFTER_SWEPT = ["output_throughput_x", "e2e_mean_x", "repeat", "error"]


def read_jobs(folder: Path) -> pd.DataFrame:
    """One row per job: every key of its `summary.json`, and `dir`, its folder's name.

    Args:
        folder: a sweep's folder, or that of a single job. Where there is a plan, the rows are its jobs, in its order.
    """
    rows = read_rows(folder)
    _name_after_siblings(rows)
    name_rows(folder, rows)
    jobs = pd.DataFrame(rows, columns=list(dict.fromkeys(key for row in rows for key in row)) or FIRST, dtype=object)
    return jobs.reindex(columns=list(dict.fromkeys([*WHO, "identity", "status", "overrides", *jobs.columns])))


def comparison(jobs: pd.DataFrame, baseline: str | None = None) -> pd.DataFrame:
    """The table of `comparison.csv`.

    Columns: `FIRST`; the overrides that differ between jobs; ratios against the baseline at the same values of these
    overrides (or against its only row); repeat; error; every other key. Repeats stay rows of their own.

    Args:
        jobs: what `read_jobs` returned.
        baseline: a system's label or its name in the `system` group; None = the first row's system.

    Raises:
        HarnessError: there is no such system.
    """
    swept = _swept(jobs)
    rest = [name for name in jobs.columns if name not in {*FIRST, *AFTER_SWEPT, *swept.columns, "overrides", "dir"}]
    table = jobs.drop(columns=[name for name in swept if name in jobs]).join(swept)
    table = table.reindex(columns=[*FIRST, *swept.columns, *AFTER_SWEPT, *rest, "dir"])
    for name in table.columns:
        table[name] = _typed(table[name])
    if len(table):
        reference = _reference(table, find_baseline(jobs, baseline))
        for ratio, metric in (("output_throughput_x", "output_throughput"), ("e2e_mean_x", "e2e_mean_ms")):
            there = table["status"] == "finished"
            table[ratio] = (table[metric] / reference[metric]).where(there).astype("float64")
    return table


def swept_columns(table: pd.DataFrame) -> list[str]:
    """The swept overrides among the columns of a comparison: those between `FIRST` and the ratios."""
    columns = list(table.columns)
    return columns[columns.index(FIRST[-1]) + 1 : columns.index(AFTER_SWEPT[0])]


def find_baseline(jobs: pd.DataFrame, baseline: str | None) -> str:
    """The label of the system that ratios are against.

    Raises:
        HarnessError: no system has that name, or several have.
    """
    labels = jobs["system"].astype(str).tolist()
    if baseline is None:
        return labels[0]
    asked = [parse_overrides(overrides).get("system", "") for overrides in jobs["overrides"]]
    for named in (labels, [name.partition(" [")[0] for name in labels], asked):
        fits = dict.fromkeys(
            label for label, name in zip(labels, named, strict=True) if name.lower() == baseline.lower()
        )
        if len(fits) > 1:
            raise HarnessError(f"several systems are called {baseline!r}: {'; '.join(fits)}; baseline=NAME takes one")
        if fits:
            return next(iter(fits))
    raise HarnessError(f"no system {baseline!r} to compare with; there are {', '.join(dict.fromkeys(labels))}")


def _name_after_siblings(rows: list[dict[str, Any]]) -> None:
    """Give a job that never ran, and has no name from a plan, the names of its repeats."""

    def point(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        asked = parse_overrides(row.get("overrides"))
        return tuple((key, value) for key, value in asked.items() if key not in ("repeat", "seed"))

    known = {point(row): row for row in reversed(rows) if "allocator" in row}
    for row in rows:
        sibling = known.get(point(row)) if "allocator" not in row else None
        if sibling and point(row):
            row.update({key: sibling[key] for key in (*WHO, "identity") if key in sibling})


def _swept(jobs: pd.DataFrame) -> pd.DataFrame:
    """A column for each override whose value differs between jobs; numbers where all of them are."""
    return pd.DataFrame(axes(records(jobs)), index=jobs.index).apply(_number)


def _reference(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The baseline's median for each row of the table, at the row's swept values if the baseline has them."""
    swept, metrics = swept_columns(table), ["output_throughput", "e2e_mean_ms"]
    rows = table[(table["system"] == baseline) & (table["status"] == "finished")]
    points = rows[swept].drop_duplicates() if swept else rows.head(1)
    if swept and table["system"].nunique() == 1:  # a sweep of one system: against its first point
        points = points.head(1)
        rows = rows.merge(points, on=swept)
    if len(points) <= 1:
        return pd.DataFrame({name: [rows[name].median()] * len(table) for name in metrics}, index=table.index)
    medians = rows.groupby(swept, dropna=False)[metrics].median().reset_index()
    return table[swept].merge(medians, on=swept, how="left").set_index(table.index)[metrics]


def _typed(column: pd.Series) -> pd.Series:
    """Integers stay integers beside missing values, lists and mappings become text, missing values stay empty."""
    there = column.dropna()
    if column.dtype != object:
        return column
    if not len(there):
        return column.astype("float64")
    if all(type(value) is int for value in there):
        return column.astype("UInt64" if there.max() >= 2**63 else "Int64")  # a seed may have 64 bits
    if all(type(value) in (int, float) for value in there):
        return column.astype("float64")
    return column.map(_text)


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(map(str, value)) or None
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _number(column: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if (numbers.isna() == column.isna()).all() else column


def names(values: Iterable[Any], limit: int = 4) -> str:
    """``a, b, c and 5 more``."""
    items = list(dict.fromkeys(map(str, values)))
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")
