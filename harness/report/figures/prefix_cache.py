"""Prefix caching over the size of the pool: hit rate, time to the first token and throughput."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from harness.files import records
from harness.report.figures import Pair
from harness.report.looks import system_looks
from harness.report.style import band, frame, new_figure, plain_log
from harness.report.sweep import Sweep

SLOTS = "kv_slots"
PANELS = (
    ("prefix_hit_pct", "Prompt tokens found in the pool", "% of all prompt tokens"),
    ("ttft_p50_ms", "Time to first token, median", "s"),
    ("total_token_throughput", "Prompt and output tokens served", "tokens per second"),
)


def draw(sweep: Sweep) -> Figure | None:
    """Hit rate, time to the first token and throughput over `kv_slots`; None without such a sweep or without hits."""
    done = sweep.done
    if done.empty or SLOTS not in done or done["prefix_hit_pct"].isna().all():
        return None
    style = system_looks(done)
    fig = new_figure(13, 5)
    axes = fig.subplots(1, len(PANELS))
    for ax, (metric, title, unit) in zip(axes, PANELS, strict=True):
        for name, rows in done.dropna(subset=[metric]).groupby("system", sort=False):
            rows = rows.sort_values(SLOTS)
            values = rows[metric] / (1e3 if metric.endswith("_ms") else 1)
            ax.plot(rows[SLOTS], values, color=style[str(name)].color, marker=style[str(name)].marker, markersize=5,
                    linewidth=1.8, linestyle=style[str(name)].dash, label=str(name))  # fmt: skip
            band(ax, rows, SLOTS, metric, style[str(name)].color, 1e-3 if metric.endswith("_ms") else 1)
        ax.set_xscale("log", base=2)
        ticks = sorted(done[SLOTS].unique())
        ax.set_xticks(ticks, [f"{tick / 1024:g}k" for tick in ticks])
        ax.set(title=title, ylabel=unit, xlabel="size of the KV pool in slots (k = 1,024; log scale)")
        ax.grid()
    bound = most(sweep)
    if bound is not None:
        axes[0].axhline(100 * bound, color="#888888", linewidth=1, linestyle=(0, (1, 2)))
        axes[0].text(0.01, 100 * bound, "a cache that never forgets", color="#666666", fontsize=8.5, va="bottom",
                     transform=axes[0].get_yaxis_transform())  # fmt: skip
    axes[0].set_ylim(0, 1.15 * max(100 * (bound or 0), done["prefix_hit_pct"].max()))
    spread = done["ttft_p50_ms"].max() / done["ttft_p50_ms"].min()
    if spread > 20:
        plain_log(axes[1], spread, "y")
        axes[1].set_ylabel("s (log scale)")
    for ax in axes[2 if spread > 20 else 1 :]:
        ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
    best = records(done.nlargest(1, "prefix_hit_pct"))[0]
    title = f"{best['prefix_hit_pct']:.1f} % of the prompts' tokens need not be computed with {best[SLOTS]:,.0f} slots"
    caption = "Hits are counted at the first admission of each request; the last token of a prompt is always computed."
    handles: list[Artist] = list(axes[1].get_lines())
    return frame(fig, title, sweep.what_ran, caption, handles, ncols=3)


def most(sweep: Sweep) -> float | None:
    """The hit rate (0 ... 1) of a cache that never evicts, for the requests of the first job that finished."""
    from harness.workload import unbounded_hit_rate
    from harness.workload.build import make_requests
    from harness.workload.readers import read_trace

    rows = read_trace(sweep.folder / sweep.done["dirs"].iloc[0][0] / "workload.jsonl").rows
    return unbounded_hit_rate(make_requests(rows, np.zeros(len(rows), dtype=np.int64), rows.output_len))


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: these traces were not published with such a curve."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """What the hit rates depend on."""
    return [
        "A hash id says nothing of single tokens: two prompts that differ within a piece share none of it, so the "
        "radix tree gains over blocks only at the end of a prompt, in its last piece and its last block.",
        "Simulated answers belong to their request: a conversation's next turn finds an answer only where the trace "
        "gives it ids as a part of that prompt, after somebody has computed it as one.",
        "Running requests come first: what they leave of the pool is the cache.",
    ]
