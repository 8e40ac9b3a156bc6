"""Repeats of a measurement: the only place that turns them into mean, spread, interval and verdict.

For fewer than three repeats there is only the mean. A ratio is the mean of the ratios of runs that share a seed, so the
luck of a seed, or a busy moment of the machine, cancels out.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from harness.files import records
from harness.metrics.spread import LEAST, NOT_TOLD_APART, SAME, difference, half_of
from harness.naming.identity import short
from harness.report.comparison import swept_columns

METRIC = "output_throughput"  # the metric by which systems are told apart
RATIOS = {"output_throughput_x": METRIC, "e2e_mean_x": "e2e_mean_ms"}
ENDS = ("sd", "low", "high")
INSIGNIFICANT = (NOT_TOLD_APART, SAME)
Row = dict[str, Any]


def aggregate(table: pd.DataFrame, baseline: str = "") -> pd.DataFrame:
    """One row per identity (and label, if its repeats have several), with the means over its finished repeats.

    Adds to each metric `NAME_sd` (standard deviation) and `NAME_low`, `NAME_high` (ends of the 95 % interval of the
    mean, Student's t), empty below three repeats; `label` (system and swept values), `repeats` (how many finished),
    `dirs` (their folders) and `told_apart` (from the baseline by output throughput: a verdict of `Difference`).

    Args:
        table: a comparison.
        baseline: label of the system that ratios are against; default the first row's.
    """
    swept = swept_columns(table)
    numbers = [name for name in table.columns if pd.api.types.is_numeric_dtype(table[name])]
    metrics = [name for name in numbers if name not in (*swept, *RATIOS, "repeat")]
    rows: list[Row] = []
    for _, group in table.groupby(["system", "identity", *swept], sort=False, dropna=False):
        done = group[group["status"] == "finished"]
        row: Row = {**records(group.head(1))[0]} | {"repeats": len(done), "dirs": done["dir"].tolist()}
        row["label"] = " · ".join([str(row["system"]), *(f"{short(n, swept)} {_short(row[n])}" for n in swept)])
        if len(group) > 1 and len(done) < len(group):
            row["status"] = f"{len(done)} of {len(group)} finished"
            row["error"] = next(iter(group["error"].dropna()), None)
        rows.append({**row, **means((done if len(done) else group)[metrics].astype("float64"))})
    for one in rows:
        one |= _beside(one, _reference(rows, one, baseline, swept), table)
    ends = [f"{name}_{end}" for name in (*metrics, *RATIOS) for end in ENDS]
    return pd.DataFrame(rows, columns=[*table.columns, "label", "repeats", "dirs", "told_apart", *ends])


def insignificant(table: pd.DataFrame, groups: pd.DataFrame) -> list[str]:
    """A sentence that lists neighbours in throughput that are not told apart; none with fewer than three repeats.

    Neighbours are compared in pairs of runs with the same seed, if they share seeds.
    """
    values = {group["label"]: by_seed(table, group["dirs"], METRIC) for group in records(groups)}
    values = {label: runs for label, runs in values.items() if len(runs) >= LEAST}
    order = sorted(values, key=lambda label: sum(values[label].values()) / len(values[label]))
    alike = [f"{one} and {two}" for one, two in pairwise(order)
             if difference(values[one], values[two]).verdict in INSIGNIFICANT]  # fmt: skip
    if not alike:
        return []
    return [f"Not told apart by output throughput (the 95 % interval of the difference holds 0): {'; '.join(alike)}."]


def what_repeats(table: pd.DataFrame, groups: pd.DataFrame) -> str:
    """``mean of 5 repeats (seeds 0 – 4), ±, whiskers: 95 % interval``; nothing where there is one run of each."""
    most = int(groups["repeats"].max()) if len(groups) else 0
    if most < 2:
        return ""
    done = table[table["status"] == "finished"]
    seeds = sorted(set(done["seed"].dropna())) if "seed" in done else []
    followed = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    text = f"{seeds[0]} – {seeds[-1]}" if followed else ", ".join(map(str, seeds[:8]))
    whose = f" ({'seed' if len(seeds) == 1 else 'seeds'} {text})" if 0 < len(seeds) <= 8 or followed else ""
    spread = "±, whiskers: 95 % interval" if most >= LEAST else "too few for an interval"
    return f"mean of {'up to ' if groups['repeats'].nunique() > 1 else ''}{most} repeats{whose}, {spread}"


def by_seed(table: pd.DataFrame, dirs: list[str], metric: str) -> dict[Any, float]:
    """The metric by seed; if seeds repeat, by the repeat's number, or else by position."""
    rows = table[table["dir"].isin(dirs) & table[metric].notna()]
    keys = next((rows[name] for name in ("seed", "repeat") if name in rows and rows[name].is_unique), None)
    names = list(range(len(rows))) if keys is None else keys.tolist()
    return dict(zip(names, rows[metric].astype(float).tolist(), strict=True))


def means(values: pd.DataFrame) -> Row:
    """The mean of each column, and for three or more values its spread and interval."""
    mean = values.mean()
    found: Row = {str(name): value for name, value in mean.items()}
    if len(values) >= LEAST:
        count = values.count()
        sd = values.std().where(count >= LEAST)
        half = sd * count.map(half_of)
        for end, column in zip(ENDS, (sd, mean - half, mean + half), strict=True):
            found |= {f"{name}_{end}": value for name, value in column.items()}
    return found


def _reference(rows: list[Row], row: Row, baseline: str, swept: list[str]) -> Row | None:
    """The baseline's row at the same swept values, or its only row; in a sweep of one system the first row."""
    name = baseline or rows[0]["system"]
    theirs = [other for other in rows if other["system"] == name and other["repeats"]]
    if len({other["system"] for other in rows}) == 1 or len(theirs) == 1:
        return next(iter(theirs), None)
    return next((other for other in theirs if all(str(other[key]) == str(row[key]) for key in swept)), None)


def _beside(row: Row, reference: Row | None, table: pd.DataFrame) -> Row:
    """The ratios against the baseline, paired by shared seeds, and whether throughput is told apart."""
    found: Row = {"told_apart": ""} | dict.fromkeys(RATIOS, math.nan)
    if reference is None or not row["repeats"]:
        return found
    for ratio, metric in RATIOS.items():
        mine, theirs = by_seed(table, row["dirs"], metric), by_seed(table, reference["dirs"], metric)
        if not mine or not theirs:
            continue
        if reference is row:
            found[ratio] = 1.0
            continue
        shared = [key for key in mine if theirs.get(key)]
        pairs = pd.DataFrame({ratio: [mine[key] / theirs[key] for key in shared]}, dtype=float)
        found |= means(pairs) if shared else {ratio: np.mean([*mine.values()]) / np.mean([*theirs.values()])}
        if metric == METRIC:
            found["told_apart"] = difference(theirs, mine).verdict if min(len(mine), len(theirs)) >= LEAST else ""
    return found


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
