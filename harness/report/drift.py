"""How steady a machine was over time, drawn."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.report.style import frame, new_figure
from harness.runner.latency.drift import FEWEST, spread_of


def draw_drift(runs: pd.DataFrame, path: Path) -> None:
    """Draw `drift` over time, a colour for each run."""
    fig = new_figure(10, 4.4)
    ax = fig.subplots()
    for name, rows in runs.groupby("run", sort=False):
        line = ax.plot(rows["time_s"], rows["slower_pct"], marker="o", markersize=3, linewidth=1)[0]
        ax.annotate(str(name).partition("_")[0], (rows["time_s"].mean(), rows["slower_pct"].max()), fontsize=8,
                    color=line.get_color(), xytext=(0, 4), textcoords="offset points", ha="center")  # fmt: skip
    ax.axhline(0, color="#222222", linewidth=0.8)
    ax.set(xlabel="time, s", ylabel="steps took longer than the model says, %")
    ax.margins(y=0.25)
    ax.grid()
    spread = spread_of(runs)
    title = (
        f"At one pace of the machine the model misses a step by {spread['error_within_piece_pct']:.1f} % (median); "
        f"runs were {spread['drift_fastest_pct']:+.0f} to {spread['drift_slowest_pct']:+.0f} % slower than it says"
    )
    caption = (
        f"A line is a run, its number the requests in flight; a point is a tenth of it, at least {FEWEST} steps where "
        f"it has so many. With one pace for a whole run: {spread['error_within_run_pct']:.1f} %."
    )
    frame(fig, title, "", caption).savefig(path)
