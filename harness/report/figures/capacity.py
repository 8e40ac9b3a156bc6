"""The capacity of each system as a bar, and how close it comes to the ideal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from harness.files import records
from harness.report.figures import Pair
from harness.report.ideal import IDEAL
from harness.report.looks import row_looks
from harness.report.style import frame, label_rows, new_figure, rows_height, whisker
from harness.report.sweep import Sweep


def draw(sweep: Sweep) -> Figure | None:
    """A bar for each system; None when no search finished."""
    done = sweep.done[sweep.done["capacity_rate"].notna()] if "capacity_rate" in sweep.done else sweep.done[:0]
    if done.empty:
        return None
    style = row_looks(sweep.groups, sweep.swept)
    fig = new_figure(10, rows_height(len(done)) + 1.9)
    ax = fig.subplots()
    rows = records(done)
    for y, row in enumerate(rows):
        rate, share = row["capacity_rate"], row.get("pct_of_ideal", np.nan)
        look = style[row["label"]]
        ax.barh(y, rate, 0.66, color=look.color, hatch=look.hatch, edgecolor="white", linewidth=0)
        text = f"{rate:.3g}" + (f"   {share:.0f} % of the ideal" if share == share and row["system"] != IDEAL else "")
        high = whisker(ax, row, "capacity_rate", y, across=True)
        ax.annotate(text, (high, y), xytext=(6, 0), textcoords="offset points", va="center", size=9.5)
    label_rows(ax, done["label"].tolist(), 40)
    ax.set(xlim=(0, done["capacity_rate"].max() * 1.25), xlabel="requests per second")
    ax.grid(axis="x")
    best = max((row for row in rows if row["system"] != IDEAL), key=lambda row: row["capacity_rate"], default=rows[0])
    title = f"{best['label']} serves {best['capacity_rate']:.3g} requests per second"
    if best.get("pct_of_ideal", np.nan) == best.get("pct_of_ideal"):
        title += f", {best['pct_of_ideal']:.0f} % of what is possible"
    caption = f"The highest rate of Poisson arrivals with {_criterion(done['criterion'].iloc[0])}."
    if IDEAL in set(done["system"]):
        caption += (" Ideal: slots of one token and a scheduler that knows all lengths, first come, first served, "
                    "with the same step times.")  # fmt: skip
    return frame(fig, title, sweep.what_ran, caption)


def _criterion(text: str) -> str:
    return text.replace("normalized_latency_mean_s ≤ 0.5", "a normalized latency of at most 0.5 s per token")


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: the published curves are in `request_rate`."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """What a capacity depends on."""
    return [
        "A capacity belongs to its criterion and to the length of the trace: above what a system can sustain, the "
        "queue grows with the trace, so a shorter one gives a higher capacity to all and smaller ratios.",
        "Every probe is a row of `probes.csv` in its job's folder, with its whole configuration beside.",
    ]
