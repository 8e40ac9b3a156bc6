"""The effect of three knobs of a server: `max_num_seqs`, the pool's share of memory, and prefix caching."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.files import records
from harness.report.figures import Pair
from harness.report.looks import ramp
from harness.report.style import band, frame, new_figure, plain_log
from harness.report.sweep import Sweep

SEQS, MEMORY, CACHING = "scheduler.max_num_seqs", "gpu_memory_utilization", "allocator.enable_prefix_caching"
PANELS = (
    ("normalized_latency_mean_s", "End-to-end time per output token", "mean over requests, s (log scale)"),
    ("tpot_p50_ms", "Time per further token, median", "ms"),
    ("saturated_kv_used_pct", "KV pool in use while requests wait for it", "% of slots"),
)


def draw(sweep: Sweep) -> Figure | None:
    """Latency, pace and memory against `max_num_seqs`; None without the three axes."""
    done = sweep.done
    if done.empty or not {SEQS, MEMORY, CACHING} <= set(done):
        return None
    done = done.assign(cached=done[CACHING].astype(str).str.lower() == "true")
    shares = sorted(done[MEMORY].unique())
    style = dict(zip(shares, ramp(len(shares)), strict=True))
    fig = new_figure(13, 5.2)
    axes = fig.subplots(1, len(PANELS))
    for ax, (metric, title, unit) in zip(axes, PANELS, strict=True):
        for (share, cached), rows in done.groupby([MEMORY, "cached"], sort=True):
            rows = rows.sort_values(SEQS)
            ax.plot(rows[SEQS], rows[metric], color=style[share], marker="o" if cached else "s",
                    linestyle="-" if cached else (0, (4, 2)), linewidth=1.8, markersize=5,
                    markerfacecolor=style[share] if cached else "white")  # fmt: skip
            band(ax, rows, SEQS, metric, style[share])
        ax.set_xscale("log", base=2)
        ticks = sorted(done[SEQS].unique())
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.set(title=title, ylabel=unit, xlabel="max_num_seqs (log scale)")
        ax.grid()
    plain_log(axes[0], 50, "y")
    axes[1].set_ylim(0)
    axes[2].set_ylim(0, 102)
    handles = [Line2D([], [], color=color, linewidth=2.2, label=f"gpu_memory_utilization {share:g}")
               for share, color in style.items()]  # fmt: skip
    handles += [Line2D([], [], color="#444444", marker="o", label="prefix caching"),
                Line2D([], [], color="#444444", marker="s", markerfacecolor="white", linestyle=(0, (4, 2)),
                       label="no prefix caching")]  # fmt: skip
    best = records(done.nsmallest(1, "normalized_latency_mean_s"))[0]
    title = (f"Best of these: {best[SEQS]:g} sequences, {100 * best[MEMORY]:g} % of the memory, prefix caching "
             f"{'on' if best['cached'] else 'off'}")  # fmt: skip
    caption = ("More sequences wait less and decode more slowly; more memory preempts less; prefix caching spares "
               "the prompts' computing and shares their slots. No point: memory never refused a request.")  # fmt: skip
    return frame(fig, title, sweep.what_ran, caption, handles, ncols=5)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: this grid was not published."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """What the best point depends on."""
    return [
        "The best point belongs to this trace, model and device: conversations that repeat their history favour "
        "prefix caching, and a GPU whose pool is small favours memory over sequences.",
        "gpu_memory_utilization counts weights and the pool; activations take nothing in the simulation.",
    ]
