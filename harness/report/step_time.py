"""Time of decode steps by batch size, with the fitted T(batch) for short, medium and long contexts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.report.looks import system_looks
from harness.report.prediction import StepTimes
from harness.report.style import frame, new_figure
from harness.report.sweep import Sweep

APART = 8  # more systems than this are one cloud
POINTS = 1_500  # per system; more would only overlap


def draw(sweep: Sweep, steps: pd.DataFrame, times: StepTimes) -> Figure | None:
    """Step time over batch size, of decode-only steps; None when there are none."""
    decode = steps[steps["prefill_tokens"] == 0]
    if decode.empty:
        return None
    style = system_looks(sweep.groups)
    fig = new_figure(10, 5.6)
    ax = fig.subplots()
    rng = np.random.default_rng(0)
    lanes = np.arange(decode["lanes"].min(), decode["lanes"].max() + 1)
    top = 1.1 * np.percentile(decode["step_ms"], 99.8)
    contexts = np.percentile(decode["context_tokens"] / decode["lanes"], [5, 50, 95])
    if len(style) > APART:
        ax.hexbin(decode["lanes"], decode["step_ms"], gridsize=70, bins="log", cmap="Blues", linewidths=0.1,
                  extent=(0, lanes[-1] * 1.03, 0, top))  # fmt: skip
    for system, rows in decode.groupby("system", sort=False) if len(style) <= APART else []:
        shown = rows.sample(min(POINTS, len(rows)), random_state=0)
        jitter = rng.uniform(-0.3, 0.3, len(shown))  # batch sizes are integers: points would overlap
        ax.scatter(shown["lanes"] + jitter, shown["step_ms"], s=5, alpha=0.25, linewidths=0, rasterized=True,
                   color=style[str(system)].color, label=system)  # fmt: skip
    for context, dashes in zip(contexts, (":", "-", "--"), strict=True):
        ax.plot(lanes, times.decode_ms(lanes, context), color="#222222", linewidth=1.6, linestyle=dashes,
                label=f"T(batch), {context:,.0f} tokens of context each")  # fmt: skip
    ax.set_xlim(0, lanes[-1] * 1.03)
    ax.set_ylim(0, top)
    ax.set(xlabel="sequences computed in the step (finished lanes of a static batch included)",
           ylabel="time of the step, its scheduling included, ms")  # fmt: skip
    ax.grid()
    legend = ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), markerscale=3)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    title = (
        f"A decode step takes {times.base_ms:.2g} ms, {times.per_sequence_ms:.2g} ms a sequence "
        f"and {times.per_context_us:.2g} µs a token of context"
    )
    caption = (
        "Decode step: one token for each sequence, no prompts. Lines: the fitted step time at the 5th, 50th and 95th "
        "percentile of the contexts seen. The model of step time that simulations use was fitted "
        f"to four fifths of {times.steps:,} steps, with prompts, and misses the others by {times.held_back_pct:.1f} % "
        "(median)."
    )
    return frame(fig, title, sweep.what_ran, caption)
