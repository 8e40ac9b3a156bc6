"""The distribution of latencies over requests: cumulative curves for a few systems, quantile ranges for many."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.files import records
from harness.metrics.spread import LEAST
from harness.report.looks import Look, row_looks
from harness.report.style import frame, label_rows, new_figure, plain_log, rows_height
from harness.report.sweep import Sweep

PANELS = (
    ("ttft_ms", "Time to first token", "s from arrival"),
    ("tpot_ms", "Time per further token", "ms, mean of a request"),
    ("e2e_ms", "End to end", "s from arrival to last token"),
)
CURVES = 9  # more lines than this can't be told apart
SHARES = np.linspace(0, 100, 101)  # percentiles at which repeats are compared
POINTS = 20_000  # of a curve; no screen shows more


def draw(sweep: Sweep) -> Figure | None:
    """Three panels; None when no request finished."""
    done = sweep.done[sweep.done["finished"] > 0]
    if done.empty:
        return None
    many = len(done) > CURVES
    fig = new_figure(13, rows_height(len(done), 0.3) + 2.2 if many else 5.2)
    axes = fig.subplots(1, 3, sharey=True)
    style = row_looks(sweep.groups, [] if many else sweep.swept)
    for i, row in enumerate(records(done)):
        requests = sweep.requests(row["dirs"], [name for name, _, _ in PANELS])
        ends = sweep.quantiles(row["dirs"], [name for name, _, _ in PANELS], SHARES)
        for ax, (name, _, _) in zip(axes, PANELS, strict=True):
            values = np.sort(requests[name].dropna().to_numpy()) / (1 if name == "tpot_ms" else 1e3)
            if len(values):
                (_range if many else _curve)(ax, values, i, len(done), row["label"], style[row["label"]])
                if name in ends and not many:
                    low, high = ends[name] / (1 if name == "tpot_ms" else 1e3)
                    ax.fill_betweenx(SHARES, low, high, color=style[row["label"]].color, alpha=0.18, linewidth=0)
    for ax, (_, title, unit) in zip(axes, PANELS, strict=True):
        ax.set(title=title, xlabel=unit)
        low, high = ax.dataLim.intervalx
        if not np.isfinite(high):  # one-token answers have no further token
            ax.text(0.5, 0.5, "nothing to measure", transform=ax.transAxes, ha="center", color="#777777")
        elif low > 0 and high / low > 10:
            plain_log(ax, high / low)
        else:
            ax.set_xlim(left=0)
        ax.grid()
    if many:
        label_rows(axes[0], done["label"].tolist(), width=40)
        caption = "Thin: 5th to 99th percentile of the requests; thick: 25th to 75th; point: median. Left is better."
    else:
        axes[0].set_ylabel("requests served within this time, %")
        axes[0].set_ylim(0, 101)
        caption = "Read: the height of a curve is the share of requests that were at least that fast. Left is better."
        if done["repeats"].max() >= LEAST:
            caption += " Curves: all repeats together; bands: 95 % interval of each quantile's mean over repeats."
    lost = done[["rejected", "unfinished"]].sum(axis=1) if "unfinished" in done else done["rejected"]
    if lost.sum() > 0:
        caption += f" Up to {lost.max():.0f} rejected or unfinished requests of a system are not drawn."
    return frame(fig, "How long do requests wait for their first token, each further one, and the whole answer?",
                 sweep.what_ran, caption, [] if many or len(done) < 2 else axes[-1].get_lines())  # fmt: skip


def _curve(ax: Axes, values: np.ndarray, i: int, count: int, label: str, look: Look) -> None:
    # Later curves are thinner, so that they don't hide an earlier one that coincides.
    share = 100 * np.arange(len(values) + 1) / len(values)
    values = np.concatenate([values[:1], values])
    if len(values) > POINTS:
        shown = np.linspace(0, len(values) - 1, POINTS).astype(int)
        values, share = values[shown], share[shown]
    apart = max(len(values) // 8, 1)  # markers; those of two curves are at different heights
    ax.step(values, share, where="post", color=look.color, linestyle=look.dash, marker=look.marker, markersize=4.5,
            markevery=(apart * (i + 1) // (count + 1), apart),
            linewidth=3.2 - 1.8 * i / max(count - 1, 1), label=label)  # fmt: skip


def _range(ax: Axes, values: np.ndarray, i: int, count: int, label: str, look: Look) -> None:
    p5, p25, p50, p75, p99 = np.percentile(values, [5, 25, 50, 75, 99])
    ax.plot([p5, p99], [i, i], color=look.color, linewidth=1.2)
    ax.plot([p25, p75], [i, i], color=look.color, linewidth=5, alpha=0.6, solid_capstyle="butt")
    ax.plot(p50, i, "o", color=look.color, markersize=5, markeredgecolor="white")
