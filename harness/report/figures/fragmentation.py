"""Fragmented free slots: a picture of the pool over time for each strategy, and the cost of each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.metrics.memory_map import FILE
from harness.report.figures import Pair
from harness.report.looks import PALETTE
from harness.report.style import frame, new_figure
from harness.report.sweep import Sweep

STRATEGIES = {
    "wait": "until a hole is long enough",
    "move": "slide extents together (compaction)",
    "copy": "start small, copy into a longer hole (realloc)",
    "reserve": "a lane for the longest possible request",
    "rebuild": "take everybody's slots and compute all again",
    "page": "no request needs slots side by side",
}
PALE = 0.72  # how far towards white the colour of a held, empty slot is
BINS = 600
NAMES = "ABCDEFGH"


def strategy(row: dict[str, Any]) -> str:
    """How a system deals with holes."""
    if row["scheduler"] == "rebuild":
        return "rebuild"
    if "growing" in row["allocator"]:
        return "copy"
    if "compacting" in row["allocator"]:
        return "move"
    if not pd.isna(row["block_size"]):
        return "page"
    return "reserve" if row["reservation"] == "max_model_len" else "wait"


def costs(sweep: Sweep) -> pd.DataFrame:
    """The rows of `strategies.csv`: one for each case and system."""
    rows = []
    for row in records(sweep.done):
        folder = sweep.folder / row["dirs"][0]
        requests, moves = pd.read_csv(folder / "requests.csv"), pd.read_csv(folder / "moves.csv")
        rows.append({
            "case": row["workload"],
            "strategy": strategy(row),
            "system": row["system"],
            "copied_slots": int(moves["slots"].sum()),
            "recomputed_tokens": int(requests["recomputed_tokens"].sum()),
            "longest_wait_s": requests["queueing_ms"].max() / 1e3,
            "makespan_s": row["duration_s"],
            "used_pct": row["kv_used_pct"],
            "wasted_pct": 100 - row["kv_used_pct"] - row["kv_free_pct"],
        })  # fmt: skip
    return pd.DataFrame(rows)


def draw(sweep: Sweep) -> Figure | None:
    """A row for each system, a column for each case; None when no job wrote where its sequences lay."""
    done = sweep.done[[all((sweep.folder / d / FILE).exists() for d in dirs) for dirs in sweep.done["dirs"]]]
    if done.empty:
        return None
    cases, systems = list(dict.fromkeys(done["workload"])), list(dict.fromkeys(done["system"]))
    fig = new_figure(5.6 * len(cases) + 2.6, 1.12 * len(systems) + 2.1)
    axes = fig.subplots(len(systems), len(cases), squeeze=False, sharex="col", sharey="col")
    told, most = costs(sweep).set_index(["case", "system"]), 0
    for row in records(done):
        ax = axes[systems.index(row["system"]), cases.index(row["workload"])]
        most = max(most, _pool(ax, sweep, row))
        cost = told.loc[(row["workload"], row["system"])]
        ax.set_title(f"waits {cost['longest_wait_s']:.2f} s · {cost['copied_slots']:,.0f} slots copied · "
                     f"{cost['recomputed_tokens']:,.0f} tokens recomputed · done after {cost['makespan_s']:.2f} s",
                     size=8.5, weight="normal", pad=3)  # fmt: skip
        if not cases.index(row["workload"]):
            name = f"{strategy(row)}\n" + textwrap.fill(row["system"].replace("(", " ("), 26)
            ax.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=8)
    for ax, case in zip(axes[-1], cases, strict=True):
        ax.set_xlabel(f"time, s (case {case})")
    handles = [Patch(color=PALETTE[i], label=f"request {NAMES[i]}") for i in range(min(most, len(NAMES)))]
    handles += [Patch(color=(0.6, 0.6, 0.6), label="dark: holds a token"),
                Patch(color=_pale((0.6, 0.6, 0.6)), label="pale: held, empty"),
                Patch(facecolor="white", edgecolor="#888888", label="free")]  # fmt: skip
    caption = "Every pool from its first slot (bottom) to its last (top), over time. Arrows: extents that are moved."
    caption += " The first repeat of each." if done["repeats"].max() > 1 else ""
    return frame(fig, _title(costs(sweep)), sweep.what_ran, caption, handles, ncols=8)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: these are textbook examples."""
    return iter(())


def files(sweep: Sweep) -> dict[str, str]:
    """`strategies.csv`."""
    return {"strategies.csv": costs(sweep).to_csv(index=False)}


def why(sweep: Sweep) -> list[str]:
    """What each strategy costs, and how to read it."""
    lines = [
        f"{row['case']}, {row['strategy']} ({row['system']}): the longest wait is {row['longest_wait_s']:.2f} s, "
        f"{row['copied_slots']:,} slots copied, {row['recomputed_tokens']:,} tokens recomputed, all done after "
        f"{row['makespan_s']:.2f} s; {row['used_pct']:.1f} % of the pool in use and {row['wasted_pct']:.1f} % held or "
        "blocked without use, over the whole run."
        for row in records(costs(sweep))
    ]
    lines += [f"{name}: {text}." for name, text in STRATEGIES.items()]
    return lines


def _title(told: pd.DataFrame) -> str:
    """The costs of waiting, moving and paging in the first case."""
    first = told[told["case"] == told["case"].iloc[0]].drop_duplicates("strategy").set_index("strategy")
    texts = {
        "wait": "waiting for a hole takes {longest_wait_s:.1f} s",
        "move": "making one copies {copied_slots:,} slots",
        "rebuild": "starting over recomputes {recomputed_tokens:,} tokens",
        "page": "paging needs none",
    }
    said = [text.format(**first.loc[name].to_dict()) for name, text in texts.items() if name in first.index]
    return f"Free slots in pieces: {', '.join(said)}" if said else "Free slots in pieces"


def _pool(ax: Axes, sweep: Sweep, row: dict[str, Any]) -> int:
    """Draw the slots of a job over time. Returns how many requests it had."""
    job = row["dirs"][0]
    runs, moves = pd.read_parquet(sweep.folder / job / FILE), pd.read_csv(sweep.folder / job / "moves.csv")
    runs = runs[runs["request"] >= 0]
    steps, capacity = sweep.steps(job), int(row["capacity"])
    starts = steps["start_s"].to_numpy()
    ends = starts + steps[["schedule_ms", "execute_ms", "complete_ms", "idle_ms"]].sum(axis=1).to_numpy() / 1e3
    end_of, last = dict(zip(starts, ends, strict=True)), float(ends[-1])
    image, scale = np.ones((capacity, BINS, 3)), BINS / last
    for run in records(runs):
        left, right = int(run["start_s"] * scale), int(end_of[run["start_s"]] * scale)
        first, when, color = run["first"], slice(left, max(right, left + 1)), to_rgb(PALETTE[run["request"] % 8])
        image[first : first + run["slots"], when] = color if run["kind"] == "used" else _pale(color)
    ax.imshow(image, extent=(0, last, 0, capacity), origin="lower", aspect="auto", interpolation="nearest")
    for move in records(moves):
        at, middle = move["start_s"], move["slots"] / 2
        ax.annotate("", (at, move["target"] + middle), xytext=(at, move["source"] + middle),
                    arrowprops={"arrowstyle": "->", "color": "#222222", "linewidth": 0.9})  # fmt: skip
    ax.set(yticks=[0, capacity], ylim=(0, capacity))
    ax.set_xlim(0, max(last, ax.get_xlim()[1]))
    for spine in ("top", "right"):
        ax.spines[spine].set_visible(False)
    return int(runs["request"].max()) + 1


def _pale(color: tuple[float, float, float]) -> tuple[float, float, float]:
    red, green, blue = (part + (1 - part) * PALE for part in color)
    return red, green, blue
