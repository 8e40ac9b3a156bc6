"""Measured beside simulated, by rate: as lines of text and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

SHOWN = ("TTFT mean, ms", "TPOT mean, ms", "E2E mean, ms", "output tokens/s")
MEASURED, SIMULATED = "#0072B2", "#D55E00"


def comparison_text(table: pd.DataFrame) -> str:
    """A line for each rate and number: the median over rounds, the least and the most, and the error of the median.

    Args:
        table: `beside.csv`.
    """
    lines = [f"{'rate':>6} {'':18} {'measured':>26} {'simulated':>12} {'error':>8}"]
    for row in medians(table).to_dict("records"):
        span = f"{row['measured']:,.1f} ({row['least']:,.1f}–{row['most']:,.1f})"
        lines.append(f"{row['rate']:>6g} {row['number']:18} {span:>26} {row['simulated']:>12,.1f} "
                     f"{row['error_pct']:>+7.1f} %{' fitted' if row['fitted'] else ''}")  # fmt: skip
    return "\n".join(lines)


def medians(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each rate and number: medians over rounds, `least` and `most` measured, and the medians' error."""
    rows = table.groupby(["rate", "fitted", "number"], sort=False).agg(
        measured=("measured", "median"), least=("measured", "min"), most=("measured", "max"),
        simulated=("simulated", "median"),
    ).reset_index()  # fmt: skip
    return rows.assign(error_pct=100 * (rows["simulated"] / rows["measured"] - 1))


def draw(table: pd.DataFrame, about: str, path: Path) -> None:
    """Four panels over the rate; bars from the least to the most of the rounds; filled = the model was fitted there."""
    from harness.report.style import frame, new_figure

    fig = new_figure(11, 6.4)
    axes = fig.subplots(2, 2, sharex=True).ravel()
    for ax, number in zip(axes, SHOWN, strict=True):
        rows = table[table["number"] == number]
        for key, color in (("measured", MEASURED), ("simulated", SIMULATED)):
            by = rows.groupby("rate")[key]
            middle, low, high = by.median(), by.min(), by.max()
            ax.errorbar(middle.index, middle, [middle - low, high - middle], color=color, marker="o", capsize=3,
                        markerfacecolor="white", linewidth=1.4)  # fmt: skip
            fitted = rows[rows["fitted"]].groupby("rate")[key].median()
            ax.plot(fitted.index, fitted, "o", color=color, zorder=4)
        ax.margins(y=0.2)
        ax.set(title=number, ylim=(0, None))
        ax.grid()
    for ax in axes[2:]:
        ax.set_xlabel("requests per second")
    middles = medians(table)
    new = middles[~middles["fitted"] & middles["number"].isin(SHOWN)]
    worst: dict[Any, Any] = {}
    if len(new):
        worst = new.iloc[int(new["error_pct"].abs().to_numpy().argmax())].to_dict()
    title = "The server beside its simulation" if not worst else (
        f"Rates that were not fitted are predicted within {new['error_pct'].abs().median():.0f} % (median); they part "
        f"most in {worst['number'].rpartition(',')[0] or worst['number']} at {worst['rate']:g} requests/s "
        f"({worst['error_pct']:+.0f} %)")  # fmt: skip
    handles = [Line2D([], [], color=color, marker="o", markerfacecolor="white", label=label)
               for label, color in (("measured", MEASURED), ("simulated", SIMULATED))]  # fmt: skip
    caption = (
        "Points: medians over rounds; bars: from the least to the most. Filled: the model was fitted at this rate."
    )
    frame(fig, title, about, caption, handles).savefig(path)
