"""Policies of admission and order on one trace: throughput, first tokens, stalls, waits, preemptions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.files import records
from harness.report.figures import Pair
from harness.report.looks import ramp
from harness.report.style import frame, label_rows, new_figure, plain_log, rows_height, seconds, whisker
from harness.report.sweep import Sweep

RATE = "workload.rate"
PANELS = (
    ("output_throughput", 1.0, "Throughput", "output tokens/s", False),
    ("ttft_p50_ms", 1e-3, "First token, median", "s (log scale)", True),
    ("ttft_p99_ms", 1e-3, "First token, p99", "s (log scale)", True),
    ("itl_p99_ms", 1.0, "Between tokens, p99", "ms (log scale)", True),
    ("waiting_age_max_s", 1.0, "Longest wait to be started", "s (log scale)", True),
    ("preemptions", 1.0, "Preemptions", "in the run", False),
)


def draw(sweep: Sweep) -> Figure | None:
    """A row for each scheduler, a panel for each of `PANELS`, a colour for each rate; None without a sweep of rates."""
    done = sweep.done
    if done.empty or RATE not in done:
        return None
    done = done.assign(name=names(done))
    rows, rates = list(dict.fromkeys(done["name"])), sorted(done[RATE].unique())
    at = {name: i for i, name in enumerate(rows)}
    colors = dict(zip(rates, ramp(len(rates)), strict=True))
    fig = new_figure(16, 1.6 + rows_height(len(rows), 0.36))
    axes = fig.subplots(1, len(PANELS), sharey=True)
    for ax, (metric, scale, title, unit, log) in zip(axes, PANELS, strict=True):
        if log:
            there = done[metric].astype("float64")
            plain_log(ax, there.max() / there[there > 0].min())
        for i, rate in enumerate(rates):
            of_rate = done[done[RATE] == rate]
            values = of_rate[metric].astype("float64").to_numpy() * scale
            if log:
                values = np.where(values > 0, values, np.nan)
            heights = np.array([at[name] for name in of_rate["name"]]) + 0.18 * (i - (len(rates) - 1) / 2)
            ax.plot(values, heights, linestyle="", marker="o", markersize=6, color=colors[rate], clip_on=False)
            for row, height in zip(records(of_rate), heights, strict=True):
                whisker(ax, row, metric, height, scale, across=True, color=colors[rate])
        for y in range(len(rows)):
            ax.axhline(y, color="#eeeeee", linewidth=9, zorder=0)
        if not log:
            ax.set_xlim(0)
        ax.set(title=title, xlabel=unit)
        ax.grid(axis="x")
    label_rows(axes[0], rows, width=30)
    handles = [Line2D([], [], color=color, marker="o", linestyle="", label=f"{rate:g} requests/s")
               for rate, color in colors.items()]  # fmt: skip
    caption = ("Same trace, pool, model and step times in every row. Longest wait: from a request's arrival to its "
               "first step; waits after a preemption show between tokens. Nothing drawn: 0.")  # fmt: skip
    return frame(fig, _title(done), sweep.what_ran, caption, handles)


def names(done: pd.DataFrame) -> pd.Series:
    """The names of the schedulers, without the allocator if it is the same for all."""
    return done["scheduler"].astype(str).str.replace("_", " ")


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: these were not published side by side."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """How the policies differ, and what the comparison leaves out."""
    return [
        "guaranteed no evict counts what clients declared (max_tokens) for all that run, and never preempts; "
        "max utilization keeps nothing free and pauses whoever came last, as vllm v1 does, so they differ little; past "
        "future draws the lengths of answers from those that have ended, and from 500 of 512 tokens to begin with.",
        "sarathi is continuous batching with prompts in pieces and 512 tokens a step: decodes never wait for a prompt.",
        "Static batches take their prompts together and let nobody join: tokens follow each other fast, first tokens "
        "wait for whole batches.",
        "shortest first knows the length of an answer (oracle) or expects the mean of the session's, or of like "
        "prompts'; whoever is long waits longest. priority starts one conversation in three before the others.",
        "Throughput is over the makespan. A rate that is served in full is the throughput of all that keep up with it.",
    ]


def _title(done: pd.DataFrame) -> str:
    """The best schedulers at the highest rate, by throughput and by first tokens."""
    top = done[done[RATE] == done[RATE].max()]
    fastest = records(top.nlargest(1, "output_throughput"))[0]
    soonest = records(top.nsmallest(1, "ttft_p99_ms"))[0]
    most = (f"At {fastest[RATE]:g} requests/s, {fastest['name']} produces most "
            f"({fastest['output_throughput']:,.0f} tokens/s)")  # fmt: skip
    who = " and there" if soonest["name"] == fastest["name"] else f"; with {soonest['name']}"
    return f"{most}{who} 99 % have their first token in {seconds(soonest['ttft_p99_ms'] / 1e3)}"
