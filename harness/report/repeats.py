"""What repeats of a measurement say: the mean with its interval over seeds, and which systems they don't tell apart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd

from harness.metrics.spread import LEAST, difference, half_width
from harness.report.comparison import records

METRIC = "output_throughput"
MOST = 12  # systems that are named


def told(table: pd.DataFrame, groups: pd.DataFrame) -> list[str]:
    """Sentences below a table whose rows are medians of repeats; none where fewer than three finished.

    Neighbours in throughput are compared, in pairs of runs with the same seed where there are such.
    """
    values = {group["label"]: _by_seed(table, group["dirs"]) for group in records(groups)}
    values = {label: runs for label, runs in values.items() if len(runs) >= LEAST}
    if not values:
        return []
    means = {label: sum(runs.values()) / len(runs) for label, runs in values.items()}
    spread = [f"{label} {means[label]:,.1f} ± {half_width(list(values[label].values())):,.1f}"
              for label in list(values)[:MOST]]  # fmt: skip
    found = [f"Output tok/s, mean over seeds ± half of its 95 % interval (Student's t): {', '.join(spread)}."]
    order = sorted(values, key=lambda label: means[label])
    alike = [f"{one} and {two}" for one, two in pairwise(order)
             if difference(values[one], values[two]).verdict in ("not told apart", "the same")]  # fmt: skip
    if alike:
        found.append(f"Not told apart by output throughput (the 95 % interval of the difference holds 0): "
                     f"{'; '.join(alike)}.")  # fmt: skip
    return found


def _by_seed(table: pd.DataFrame, dirs: list[str]) -> dict[Any, float]:
    """By seed; where several have one, by number: the first repeat goes with the first."""
    rows = table[table["dir"].isin(dirs) & table[METRIC].notna()]
    keys = rows["seed"] if "seed" in rows and rows["seed"].is_unique else rows["repeat"]
    return dict(zip(keys.tolist(), rows[METRIC].astype(float).tolist(), strict=True))
