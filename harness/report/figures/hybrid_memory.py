"""Where the memory of models with windows and states goes, and how many requests each allocator holds in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.report.figures import Pair
from harness.report.memory_breakdown import stack
from harness.report.style import COLUMNS, fill, frame, label_rows, new_figure, rows_height, times, whisker, with_half
from harness.report.sweep import Sweep

WHO = {
    "paged": "paged: every layer keeps every token",
    "dual_pool": "dual_pool: memory split beforehand (SGLang)",
    "vllm_hybrid": "vllm_hybrid: groups share blocks (vLLM)",
    "jenga": "jenga: small pages in large ones",
    "split": "split: one placement a group, each its share",
}


def draw(sweep: Sweep) -> Figure | None:
    """For each model a bar per allocator: its pool while requests wait, and the requests that it holds."""
    done = sweep.done[sweep.done["saturated_kv_used_pct"].notna()]
    if done.empty:
        return None
    models = list(dict.fromkeys(done["model"]))
    rows = [records(done[done["model"] == model]) for model in models]
    fig = new_figure(11, sum(rows_height(len(some), 0.5) + 0.55 for some in rows) + 1.9)
    axes = fig.subplots(len(models), 1, squeeze=False, sharex=True,
                        gridspec_kw={"height_ratios": [len(some) for some in rows]})[:, 0]  # fmt: skip
    for ax, model, some in zip(axes, models, rows, strict=True):
        for y, row in enumerate(some):
            stack(ax, y, {name: row.get(f"saturated_kv_{name}_pct", 0) for name in COLUMNS}, False)
            whisker(ax, row, "saturated_kv_used_pct", y, across=True)
            ax.text(
                101,
                y,
                f"{with_half(row, 'saturated_mean_batch_size', '{:,.0f}')} requests",
                va="center",
                size=9.5,
                weight="bold",
            )
        label_rows(ax, [WHO.get(row["allocator"], row["label"]) for row in some], 26)
        ax.set(title=model, xlim=(0, 100))
    axes[-1].set_xlabel("share of the KV pool's bytes, % (mean over the time in which requests waited for memory)")
    shown = [name for name in COLUMNS if any(_share(row, name) > 0.05 for some in rows for row in some)]
    handles = [Patch(**fill(name), label=COLUMNS[name][1]) for name in shown]
    return frame(fig, _title(models, rows), sweep.what_ran, "On the right: requests in the batch, mean over that time.",
                 handles, ncols=2)  # fmt: skip


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: the published set-ups are others (see `why`)."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """What the columns mean, and what was published about other set-ups."""
    return [
        "The pool is the same number of bytes for every allocator. `paged` keeps every token in every layer, as an "
        "engine does whose hybrid manager is off; what its windows no longer read is “outside every window”. States "
        "have no place in its slots: room for those of `max_num_seqs` sequences is set aside.",
        "`dual_pool` is cut beforehand by the ratio that SGLang has by default (0.8 tokens of a window's pool for each "
        "of the full layers'), whatever the requests turn out to be: long ones leave the windows' pool empty.",
        "`vllm_hybrid` needs pages of one size, so it pads those of states and of short groups, and raises the block "
        "until a page holds a state. `jenga` pads nothing, but a large page is one group's until all in it is free.",
        "Published: Jenga (arXiv 2503.18292) tells up to 79.6 % more memory in use than vLLM before it had a hybrid "
        "manager, on other models, lengths and GPUs. " + _told(sweep),
    ]


def _told(sweep: Sweep) -> str:
    """Our gain of Jenga's pages, as a sentence."""
    done = sweep.done
    told = []
    for model in dict.fromkeys(done["model"]):
        held = done[done["model"] == model].drop_duplicates("allocator").set_index("allocator")
        if {"paged", "jenga"} <= set(held.index):
            column = held["saturated_mean_batch_size"]
            told.append(f"{model}: {100 * (column['jenga'] / column['paged'] - 1):+.0f} % requests")
    return f"Here Jenga's pages hold against `paged`: {'; '.join(told)}." if told else "Nothing here compares with it."


def _share(row: dict[str, Any], name: str) -> float:
    share = row.get(f"saturated_kv_{name}_pct", 0)
    return 0.0 if share is None or pd.isna(share) else float(share)


def _title(models: list[str], rows: list[list[dict[str, Any]]]) -> str:
    told = []
    for model, some in zip(models, rows, strict=True):
        most = max(some, key=lambda row: row["saturated_mean_batch_size"])
        least = min(some, key=lambda row: row["saturated_mean_batch_size"])
        ratio = most["saturated_mean_batch_size"] / least["saturated_mean_batch_size"]
        told.append(f"{model.split(' ')[0]}: {most['allocator']} holds {times(ratio)} the requests of "
                    f"{least['allocator']}")  # fmt: skip
    return "; ".join(told)
