"""How close each system comes to the ideal: slots of one token, and a scheduler that knows all lengths."""

from __future__ import annotations

import pandas as pd

from harness.report.comparison import swept_columns
from harness.report.sweep import Sweep

IDEAL = "Ideal"


def join(sweep: Sweep) -> Sweep:
    """The sweep with `pct_of_ideal`: capacity (or else output throughput) in % of the ideal row's at the same point.

    Unchanged if no ideal row finished. Keys of which the ideal has one value only (the block size) are not matched.
    """
    table = sweep.table
    rows = table[(table["system"] == IDEAL) & (table["status"] == "finished")]
    if rows.empty:
        return sweep
    searched = "capacity_rate" in table and rows["capacity_rate"].notna().all()
    metric = "capacity_rate" if searched else "output_throughput"
    at = [name for name in swept_columns(table) if rows[name].nunique(dropna=False) > 1]
    values = table[metric].astype("float64").where(table["status"] == "finished")
    best = pd.Series(rows[metric].median(), index=table.index)
    if at:
        bests = rows.groupby(at, dropna=False)[metric].median().rename("best").reset_index()
        best = table[at].merge(bests, on=at, how="left")["best"].set_axis(table.index)
    return sweep.join(pd.DataFrame({"pct_of_ideal": (100 * values / best).to_numpy()}, index=table["dir"]))
