"""Batch size and pool usage over time: one row of small panels per system."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.report.looks import row_looks
from harness.report.style import COLUMNS, frame, new_figure, wrap
from harness.report.sweep import Sweep

MOST = 32  # rows; beyond, the figure is taller than any screen
IN_USE = ("used", "state")
HELD = ("finished_held", "reserved", "over_reserved", "rounding", "cached", "out_of_window", "padding")
HELD_COLOR = "#F2B66D"


def draw(sweep: Sweep) -> Figure | None:
    """Draw rows of two panels with shared axes; None when no job finished."""
    done = sweep.inside.head(MOST)
    if done.empty:
        return None
    style = row_looks(sweep.groups, sweep.swept)
    many = len(done) > 10
    fig = new_figure(12, (0.5 if many else 0.86) * len(done) + 2.2)
    axes = fig.subplots(len(done), 2, sharex=True, sharey="col", squeeze=False, width_ratios=(1, 1))
    idle = states = False
    for (left, right), row in zip(axes, records(done), strict=True):
        job = row["dirs"][0]
        edges, values = sweep.over_time(job, ["num_seqs", "idle_lanes", *IN_USE, *HELD])
        idle = idle or bool(values[:, 1].any())
        _batch(left, edges, values[:, 0], values[:, 1], style[row["label"]].color)
        _pool(right, edges, values[:, 2:4].sum(axis=1), values[:, 4:].sum(axis=1), sweep.capacity(job))
        states = states or bool(values[:, 3].any())
        left.set_ylabel(wrap(row["label"], 44 if many else 26), rotation=0, ha="right", va="center", labelpad=26)
        for ax in (left, right):
            ax.axvline(edges[-1], color="#222222", linewidth=0.9)
            ax.grid(axis="y")
        right.annotate(f"done after {edges[-1]:,.3g} s", (edges[-1], 50), xytext=(4, 0), size=8.5, va="center",
                       textcoords="offset points", ha="left", annotation_clip=False)  # fmt: skip
    longest = max(ax.dataLim.xmax for ax in axes[:, 1])
    axes[0, 0].set_xlim(0, longest * 1.14)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_title("Sequences in the batch")
    axes[0, 1].set_title("Share of the KV pool, %")
    axes[0, 1].set(ylim=(0, 100), yticks=[0, 50, 100])
    for ax in axes[-1]:
        ax.set_xlabel("time, s")
    what, none = ("tokens or states", "neither") if states else ("tokens", "no token")
    handles = [Patch(color=COLUMNS["used"][0], label=f"holds {what} in use"),
               Patch(color=HELD_COLOR, label=f"taken, but holds {none} in use"),
               Patch(facecolor="white", edgecolor="#888888", label="free")]  # fmt: skip
    if idle:
        handles.append(Patch(color="#dddddd", label="lanes computed for finished requests"))
    caption = "The first repeat of each system. " if done["repeats"].max() > 1 else ""
    caption += "A point is the mean over 1/300 of the run." if done["steps"].max() > 300 else "A point is one step."
    if len(sweep.done) > MOST:
        caption += f" The first {MOST} of {len(sweep.done)} systems."
    return frame(fig, "How many requests run at once, and is the KV cache full?", sweep.what_ran, caption, handles)


def _batch(ax: Axes, edges: np.ndarray, live: np.ndarray, idle: np.ndarray, color: str) -> None:
    ax.stairs(live + idle, edges, baseline=live, fill=True, color="#dddddd")
    ax.stairs(live, edges, fill=True, color=color, alpha=0.85)


def _pool(ax: Axes, edges: np.ndarray, used: np.ndarray, held: np.ndarray, capacity: int) -> None:
    used, held = 100 * used / capacity, 100 * held / capacity
    ax.stairs(used + held, edges, baseline=used, fill=True, color=HELD_COLOR)
    ax.stairs(used, edges, fill=True, color=COLUMNS["used"][0])
