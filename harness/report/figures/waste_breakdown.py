"""Fig. 2 of the PagedAttention paper: what the KV cache memory holds, in four buckets, beside the paper's bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.published import load
from harness.report.figures import Pair
from harness.report.paper import fig_2_applies
from harness.report.style import fill, frame, new_figure, whisker
from harness.report.sweep import Sweep

BUCKETS = ("used", "reserved", "over_reserved", "short")  # whose fills the paper's four take
EXTERNAL = "#b9b3ad"


def buckets(row: dict[str, Any]) -> list[float]:
    """Our books in the paper's four buckets, % of the pool, while requests waited for memory.

    Rounding counts as external fragmentation in a buddy system (powers of two), as internal in a last block.
    """
    share = {name: row[f"saturated_kv_{name}_pct"] for name in ("used", "reserved", "over_reserved", "rounding")}
    internal = share["over_reserved"] + (share["rounding"] if row["allocator"] == "paged" else 0.0)
    return [share["used"], share["reserved"], internal, 100 - share["used"] - share["reserved"] - internal]


def draw(sweep: Sweep) -> Figure | None:
    """Two bars for each system, ours and the paper's; None when no pool was ever full."""
    done = sweep.done[sweep.done["saturated_kv_used_pct"].notna()]
    if done.empty:
        return None
    theirs = load("fig2")["values"] if fig_2_applies(done) else {}
    names = load("fig2")["buckets"]
    fig = new_figure(10, 5.2)
    ax = fig.subplots()
    rows = records(done)
    for x, row in enumerate(rows):
        known = row["system"] in theirs
        _bar(ax, x - (0.2 if known else 0.0), buckets(row))
        whisker(ax, row, "saturated_kv_used_pct", x - (0.37 if known else 0.17))
        if known:
            _bar(ax, x + 0.2, theirs[row["system"]], hatched=True)
    ax.set_xticks(range(len(rows)), [row["label"] for row in rows])
    ax.tick_params(axis="x", length=0, labelsize=10.5)
    ax.set(ylim=(0, 100), xlim=(-0.6, len(rows) - 0.4), ylabel="KV cache memory, %")
    best = max(rows, key=lambda row: row["saturated_kv_used_pct"])
    least = min(rows, key=lambda row: row["saturated_kv_used_pct"])
    title = (f"{best['label']} fills {best['saturated_kv_used_pct']:.0f} % of the KV cache with token states, "
             f"{least['label']} {least['saturated_kv_used_pct']:.0f} %")  # fmt: skip
    handles = [Patch(**_fill(bucket), label=name) for bucket, name in zip(BUCKETS, names, strict=True)]
    if theirs:
        handles.append(Patch(facecolor="#cccccc", hatch="////", edgecolor="white", label="the paper, Fig. 2"))
    caption = "Means over the time in which requests waited for memory."
    if done["repeats"].max() > 2:
        caption += " The line beside a bar: of its token states."
    return frame(fig, title, sweep.what_ran, caption, handles, ncols=5)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Each bucket of each bar, in % of the memory."""
    values, names = load("fig2")["values"], load("fig2")["buckets"]
    for row in records(sweep.done) if fig_2_applies(sweep.done) else ():
        for name, theirs, ours in zip(names, values.get(row["system"], ()), buckets(row), strict=False):
            yield Pair(name, "% of KV memory", row["system"], row["workload"], theirs, ours)


def why(sweep: Sweep) -> list[str]:
    """What differs from the paper's run."""
    return [
        "The paper states neither the rate of arrivals nor how long it ran. Here all requests arrive at once, and "
        "only the time in which some wait for memory counts; at the knee the bars depend on how often that is.",
        "Prompt and output lengths are drawn independently from the two histograms of Fig. 11; pairs longer than "
        "2,048 tokens are drawn again. Which pairs the paper kept is not said, and a filter on long prompts alone "
        "moves the token states of the Orca bars by 1 to 3 points.",
        "vLLM's small parts: in the figure reservation and internal fragmentation are equal to three digits, so they "
        "are probably one number, split. Compare their sum.",
    ]


def _bar(ax: Axes, x: float, shares: list[float], hatched: bool = False) -> None:
    foot = 0.0
    for share, bucket in zip(shares, BUCKETS, strict=True):
        look = _fill(bucket, hatched)
        ax.bar(x, share, 0.3, foot, **look)
        if share >= 3.5:
            box = {"facecolor": "white", "alpha": 0.75, "pad": 0.8, "linewidth": 0} if look["hatch"] else None
            ax.text(x, foot + share / 2, f"{share:.1f}", ha="center", va="center", size=9, bbox=box,
                    color="white" if bucket == "used" and not hatched else "#222222")  # fmt: skip
        foot += share


def _fill(bucket: str, theirs: bool = False) -> dict[str, Any]:
    return fill(bucket, theirs) | ({"facecolor": EXTERNAL} if bucket == "short" else {})
