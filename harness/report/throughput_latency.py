"""How fast each system is: output throughput, normalized latency, TTFT and TPOT, with the spread over repeats."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.files import records
from harness.report.looks import Look, row_looks
from harness.report.repeats import INSIGNIFICANT
from harness.report.style import frame, label_rows, new_figure, plain_log, rows_height, seconds, times
from harness.report.sweep import Sweep

PANELS = (
    ("output_throughput", 1.0, "Output throughput", "output tokens per second"),
    ("normalized_latency_mean_s", 1.0, "End-to-end time per output token", "mean over requests, s"),
    ("ttft_p50_ms", 1e-3, "Time to first token, median", "from arrival, s"),
    ("tpot_p50_ms", 1.0, "Time per further token, median", "after the first, ms"),
)
LOG_FROM = 30  # a wider range is drawn as points on a log axis, where bars would have no baseline


def draw(sweep: Sweep) -> Figure | None:
    """Four panels, one row per system; None when no job finished."""
    done = sweep.done[sweep.done["output_throughput"].notna()]
    if done.empty:
        return None
    style = row_looks(sweep.groups, sweep.swept)
    fig = new_figure(14, rows_height(len(done)) + 1.9)
    for ax, (name, scale, title, unit) in zip(fig.subplots(1, 4, sharey=True), PANELS, strict=True):
        _panel(ax, done, name, scale, [style[label] for label in done["label"]])
        ax.set(title=title, xlabel=unit)
        ax.grid(axis="x")
    label_rows(fig.axes[0], done["label"].tolist())
    caption = ("Right is better in the first panel, left in the others. Times count from each request's arrival, "
               "waiting included.")  # fmt: skip
    caption += f" ×: against {sweep.baseline}." if len(done) > 1 else ""
    if _simulated(done).any():
        caption += " Diamonds: the same requests simulated with the fitted step times."
    return frame(fig, _title(done, sweep), sweep.what_ran, " ".join([caption, *sweep.insignificant]))


def _panel(ax: Axes, done: pd.DataFrame, name: str, scale: float, style: list[Look]) -> None:
    values = done[name].astype("float64").to_numpy() * scale
    low, high = (done[f"{name}_{end}"].astype("float64").to_numpy() * scale for end in ("low", "high"))
    simulated = _simulated(done) if name == "output_throughput" else np.zeros(len(done))
    positive = values[values > 0]
    log = len(positive) > 1 and positive.max() / positive.min() > LOG_FROM
    for i, value in enumerate(values):
        if value != value:
            continue
        if log:
            ax.plot(value, i, style[i].marker, color=style[i].color, markersize=8)
        else:
            ax.barh(i, value, height=0.66, color=style[i].color, hatch=style[i].hatch, edgecolor="white", linewidth=0)
        if simulated[i]:
            ax.plot(simulated[i], i, "D", color="white", markeredgecolor="#222222", markersize=5)
        if high[i] > low[i]:
            ax.plot([low[i], high[i]], [i, i], color="#222222", linewidth=1.3, marker="|", markersize=6)
        text = f"{value:,.0f}" if name == "output_throughput" and value >= 10 else f"{value:.3g}"
        if name == "output_throughput":
            ratio = done["output_throughput_x"].iloc[i]
            text += f"  {times(ratio)}" if ratio == ratio and len(done) > 1 else ""
        else:
            text = seconds(done[name].iloc[i] / 1e3 if name.endswith("_ms") else value)
        ax.annotate(
            text,
            (np.nanmax([value, high[i], simulated[i]]), i),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=8.5,
        )
    if log:
        plain_log(ax, positive.max() / positive.min())
        ax.set_xlim(positive.min() / 1.6, positive.max() * (positive.max() / positive.min()) ** 0.4)
    else:
        ax.set_xlim(0, np.nanmax([1e-9, *values, *high, *simulated]) * 1.42)


def _simulated(done: pd.DataFrame) -> np.ndarray:
    """The simulated output throughputs, 0 if there is none."""
    if "simulated_output_throughput" not in done:
        return np.zeros(len(done))
    return done["simulated_output_throughput"].fillna(0).to_numpy(np.float64)


def _title(done: pd.DataFrame, sweep: Sweep) -> str:
    ratios = done.set_index("label")["output_throughput_x"].dropna()
    if len(ratios) < 2:
        row = records(done)[0]
        return f"{row['label']}: {row['output_throughput']:,.0f} output tokens per second"
    best, most = ratios.idxmax(), float(ratios.max())
    if best in set(done.loc[done["told_apart"].isin(INSIGNIFICANT), "label"]):
        return f"How fast does each system serve the same requests? {best} is not told apart from {sweep.baseline}"
    if most < 1.005:
        return f"How fast does each system serve the same requests? None is faster than {sweep.baseline}"
    return f"{best} produces {times(most)[1:]} times the output tokens per second of {sweep.baseline}"
