"""Fig. 13 of the PagedAttention paper: the number of requests in the batch, beside the paper's bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.published import load
from harness.report.figures import Pair
from harness.report.looks import system_looks
from harness.report.style import frame, new_figure, whisker
from harness.report.sweep import Sweep

THEIRS = "#9a9a9a"


def measure(row: dict[str, Any]) -> str:
    """The metric for a row's batch: its mean while requests waited for memory, or over the run if none did."""
    full = row["saturated_mean_batch_size"]
    return "saturated_mean_batch_size" if full == full else "mean_batch_size"


def batch(row: dict[str, Any]) -> float:
    """Requests in the batch on average."""
    return float(row[measure(row)])


def draw(sweep: Sweep) -> Figure | None:
    """A panel for each workload; None when no job finished."""
    done = sweep.done
    if done.empty:
        return None
    style = system_looks(sweep.groups)
    workloads = list(dict.fromkeys(done["workload"]))
    fig = new_figure(4.2 + 4.2 * len(workloads), 4.9)
    for ax, workload in zip(fig.subplots(1, len(workloads), squeeze=False)[0], workloads, strict=True):
        theirs = load("fig13")["values"].get(workload, {})
        rows = records(done[done["workload"] == workload])
        for x, row in enumerate(rows):
            look = style[row["system"]]
            bars = [(x - 0.2, batch(row), look.color, look.hatch)]
            if row["system"] in theirs:
                bars.append((x + 0.2, theirs[row["system"]], THEIRS, ""))
            whisker(ax, row, measure(row), x - 0.3)
            for at, value, color, hatch in bars:
                ax.bar(at, value, 0.36, color=color, hatch=hatch, edgecolor="white", linewidth=0)
                ax.annotate(f"{value:.1f}", (at, value), xytext=(0, 3), textcoords="offset points", ha="center", size=9)
        ax.set_xticks(range(len(rows)), [row["system"] for row in rows])
        ax.tick_params(axis="x", length=0)
        ax.grid(axis="y")
        ax.set(title=f"{workload}, {_arrivals(rows[0])}", ylabel="requests in the batch, mean")
    handles = [Patch(color=THEIRS, label="the paper, Fig. 13")]
    return frame(fig, _title(done), sweep.what_ran, "Means over the time in which requests waited for memory.", handles)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Every bar that the paper prints."""
    for row in records(sweep.done):
        theirs = load("fig13")["values"].get(row["workload"], {})
        if row["system"] in theirs:
            at = f"{row['workload']}, {theirs['rate']} req/s"
            yield Pair("batch", "requests", row["system"], at, theirs[row["system"]], batch(row))


def why(sweep: Sweep) -> list[str]:
    """What limits each bar."""
    found = [
        "Orca (Max) is exact: 15,728 slots hold 7 chunks of 2,048. The other Orca batches vary with the seed (± 0.4 "
        "ShareGPT, ± 4 Alpaca over seeds of a run of this length)."
    ]
    for row in records(sweep.done[sweep.done["system"] == "vLLM"]):
        theirs, used = load("fig13")["values"].get(row["workload"], {}).get("vLLM"), row["saturated_kv_used_pct"]
        if not theirs or used != used:
            continue
        text = f"vLLM on {row['workload']}: {batch(row):.1f} here, with {used:.0f} % of the pool in use"
        if used < 85:
            text += (f"; memory refuses somebody now and then, but arrivals limit the batch. The paper's "
                     f"{theirs} is higher because its server is nearer to its knee (1.9 in Fig. 12).")  # fmt: skip
        else:
            text += (f": memory limits it. The paper's {theirs} would fill {theirs / batch(row) * used:.0f} % of the "
                     "pool, so something else limited it there")  # fmt: skip
            if row["workload"] == "alpaca":
                text += (" (with the step times of its Fig. 1 that many make 27.6 requests/s, about its knee in "
                         "Fig. 12, so a full server had no more)")  # fmt: skip
            text += ". The paper does not say what."
        found.append(text)
    return found


def _arrivals(row: dict[str, Any]) -> str:
    rate = row["offered_rate"]
    return f"{rate:.3g} requests/s arrive" if rate == rate else "all at once"


def _title(done: pd.DataFrame) -> str:
    """The ratio of vLLM's batch to Orca (Oracle)'s, by workload."""
    found = []
    for workload, rows in done.groupby("workload", sort=False):
        batches = {row["system"]: batch(row) for row in records(rows)}
        if {"vLLM", "Orca (Oracle)"} <= batches.keys():
            found.append(f"{batches['vLLM'] / batches['Orca (Oracle)']:.1f} times ({workload})")
    if not found:
        return "How many requests run at once, when more arrive than can be served?"
    return f"vLLM runs {' and '.join(found)} as many requests at once as Orca (Oracle)"
