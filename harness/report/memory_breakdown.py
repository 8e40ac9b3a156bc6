"""What the slots of the KV pool hold, per system, beside the bars of the PagedAttention paper's Fig. 2."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.report.paper import FIG_2, fig_2_applies, other_pool
from harness.report.style import COLUMNS, DARK, fill, frame, new_figure, rows_height, whisker, wrap
from harness.report.sweep import Sweep

# The paper's fourth bucket holds buddy rounding, holes and free slots, so it takes a colour of its own.
EXTERNAL = ("#b9b3ad", "paper only: “external fragmentation & others” (rounding and free slots together)")
CAPTION = (
    "Pale bars: Fig. 2 of the PagedAttention paper (arXiv 2309.06180; OPT-13B, ShareGPT lengths, 15.7K slots), "
    "token states = in use, reservation = reserved, internal fragmentation = never used. It counts the rounding to "
    "powers of two as external fragmentation, together with free slots."
)

NEVER = "† No request ever waited for memory: mean over the whole run."


def draw(sweep: Sweep) -> Figure | None:
    """Stacked bars that sum to 100 % of the pool; None when no job finished."""
    done = sweep.inside
    if done.empty:
        return None
    saturated = bool(done["saturated_kv_used_pct"].notna().any())
    paper = saturated and fig_2_applies(done)
    labels: list[str] = []
    bars: list[tuple[dict[str, float], bool]] = []
    means: dict[int, tuple[dict[str, Any], str]] = {}  # the row of each bar, and the metric whose interval is drawn
    for row in records(done):
        whole = saturated and pd.isna(row["saturated_kv_used_pct"])
        prefix = "saturated_kv" if saturated and not whole else "kv"
        labels.append(row["label"] + ("†" if whole else ""))
        bars.append(({name: row.get(f"{prefix}_{name}_pct", 0) for name in COLUMNS}, False))
        means[len(bars) - 1] = row, f"{prefix}_used_pct"
        if paper and not sweep.swept and row["system"] in FIG_2:
            labels.append("paper, Fig. 2")
            bars.append((FIG_2[row["system"]], True))
    fig = new_figure(11, rows_height(len(bars), 0.36) + 2.9)
    ax = fig.subplots()
    y = 0.0
    ticks = []
    for number, (values, theirs) in enumerate(bars):
        y += 0.74 if theirs else 1.0  # the paper's bar sits close to ours
        ticks.append(y)
        stack(ax, y, values, theirs)
        if number in means:
            whisker(ax, *means[number], y + 0.26, across=True)  # below the numbers
    ax.set_yticks(ticks, [wrap(label, 40) for label in labels])
    ax.set_ylim(y + 0.6, 0.4)
    for text, (_, theirs) in zip(ax.get_yticklabels(), bars, strict=True):
        if theirs:
            text.set(color="#777777", size=8.5, style="italic")
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the KV pool, %" + (" (mean over the time in which requests waited for memory)"
                                                        if saturated else " (mean over the whole run)"))  # fmt: skip
    shown = [n for n in COLUMNS if any(v.get(n, 0) > 0.05 for v, theirs in bars if not theirs or n in v)]
    handles = [Patch(**fill(name), label=COLUMNS[name][1]) for name in shown]
    if any(theirs for _, theirs in bars):
        handles.append(Patch(facecolor=EXTERNAL[0], alpha=0.6, hatch="////", edgecolor="white", label=EXTERNAL[1]))
    caption = CAPTION if any(theirs for _, theirs in bars) else ""
    if caption and "capacity" in done and (pool := other_pool(done["capacity"].dropna())):
        caption += f" Here{pool}."
    if any(label.endswith("†") for label in labels):
        caption = f"{NEVER} {caption}".strip()
    return frame(fig, _title(done, "saturated_kv" if saturated else "kv"), sweep.what_ran, caption, handles, ncols=2)


def stack(ax: Axes, y: float, values: dict[str, float], theirs: bool) -> None:
    """Draw one bar; shares are printed if there is room."""
    left = 0.0
    for name, share in values.items():
        if not share or share != share:  # nothing, or never measured
            continue
        look = fill("short" if name == "external" else name, theirs)
        look |= {"facecolor": EXTERNAL[0]} if name == "external" else {}
        ax.barh(y, share, left=left, height=0.5 if theirs else 0.66, **look)
        if share >= 3:
            dark = not theirs and name in DARK and not look["hatch"]
            box = {"facecolor": "white", "alpha": 0.75, "pad": 0.8, "linewidth": 0} if look["hatch"] else None
            ax.text(left + share / 2, y, f"{share:.1f}", ha="center", va="center", size=8.5 if not theirs else 7.5,
                    color="white" if dark else "#222222", bbox=box)  # fmt: skip
        left += share


def _title(done: pd.DataFrame, prefix: str) -> str:
    """The finding, or the question if there is nothing to compare."""
    used = done.set_index("label")[f"{prefix}_used_pct"].dropna().sort_values()
    when = "" if prefix == "saturated_kv" else " (no request ever waited for memory)"
    if len(used) < 2 or used.iloc[-1] - used.iloc[0] < 1:
        return f"Where does the KV cache memory go? {used.iloc[-1]:.0f} % of it holds tokens in use{when}"
    return (f"{used.index[-1]} fills {used.iloc[-1]:.0f} % of the KV cache with tokens in use{when}, "
            f"{used.index[0]} {used.iloc[0]:.0f} %")  # fmt: skip
