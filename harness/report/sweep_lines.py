"""Throughput, latency and pool usage over a number that the sweep varied, one line per system."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from harness.naming.identity import short
from harness.report.looks import row_looks
from harness.report.style import band, frame, new_figure, plain_log
from harness.report.sweep import Sweep

PANELS = (
    ("output_throughput", "Output throughput", "tokens per second"),
    ("normalized_latency_mean_s", "End-to-end time per output token", "mean over requests, s"),
    ("kv_used_pct", "KV pool in use", "% of slots, mean over the run"),
)
NAMES = {
    "rate": ("arrival rate", ", requests per second"),
    "block_size": ("block size", ", slots"),
    "kv_slots": ("size of the KV pool", ", slots"),
    "watermark": ("watermark", ", share of the pool kept free on admission"),
    "max_num_seqs": ("largest batch", ", sequences"),
    "max_num_batched_tokens": ("token budget", ", tokens per step"),
    "max_model_len": ("longest sequence", ", tokens"),
    "num_requests": ("number of requests", ""),
}


def axes_of(sweep: Sweep) -> list[str]:
    """The swept overrides that are numbers with at least three values."""
    return [n for n in sweep.swept if pd.api.types.is_numeric_dtype(sweep.done[n]) and sweep.done[n].nunique() > 2]


def draw(sweep: Sweep, key: str) -> Figure | None:
    """Draw lines over the override `key`; None when there is nothing to draw."""
    done = sweep.done.dropna(subset=[key, "output_throughput"])
    if done.empty:
        return None
    others = [name for name in sweep.swept if name != key]
    line = done["system"].astype(str)
    for name in others:
        line = line + f" · {short(name, others)} " + done[name].astype(str)
    style = row_looks(done.assign(label=line), others)
    words, unit_x = NAMES.get(key.split(".")[-1], (key.split(".")[-1].replace("_", " "), ""))
    fig = new_figure(13, 5.3 if len(style) < 13 else 6.4)
    for ax, (name, title, unit) in zip(fig.subplots(1, 3), PANELS, strict=True):
        for label, rows in done.groupby(line, sort=False):
            rows = rows.sort_values(key)
            look = style[str(label)]
            ax.plot(rows[key], rows[name], marker=look.marker, markersize=4.5, color=look.color, linestyle=look.dash,
                    linewidth=1.8, label=label)  # fmt: skip
            band(ax, rows, key, name, look.color)
        values = done[name].astype("float64")
        ax.set(title=title, xlabel=words + unit_x + (" (log scale)" if _is_log(done[key]) else ""), ylabel=unit)
        if _is_log(done[key]):
            ax.set_xscale("log", base=2)
            ticks = sorted(done[key].unique())
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        if name == "normalized_latency_mean_s" and values.max() > 20 * values[values > 0].min():
            plain_log(ax, values.max() / values[values > 0].min(), "y")
        else:
            ax.set_ylim(0, 102 if name == "kv_used_pct" else None)
        ax.grid()
    caption = " ".join(sweep.insignificant)
    title = f"Throughput, latency and memory against the {words}"
    return frame(fig, title, sweep.what_ran, caption, fig.axes[0].get_lines())


def _is_log(values: pd.Series) -> bool:
    return bool(values.min() > 0 and values.max() / values.min() >= 8)
