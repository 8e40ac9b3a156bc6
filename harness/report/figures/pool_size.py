"""The size of the KV pool that an engine prints at start-up, beside the tokens that a workload has in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.report.figures import Pair
from harness.report.repeats import means
from harness.report.style import frame, label_rows, new_figure, rows_height, times, whisker
from harness.report.sweep import Sweep

PRINTED, HELD = "#999999", "#0072B2"


def draw(sweep: Sweep) -> Figure | None:
    """Two bars a model: tokens as printed, and tokens in the pool while requests wait for memory."""
    rows = _rows(sweep)
    if not rows:
        return None
    fig = new_figure(11, rows_height(len(rows), 0.72) + 2.0)
    ax = fig.subplots()
    most = max(max(row["printed_kv_tokens"], row["held"]) for row in rows)
    for y, row in enumerate(rows):
        for shift, tokens, color in ((-0.2, row["printed_kv_tokens"], PRINTED), (0.2, row["held"], HELD)):
            ax.barh(y + shift, tokens, 0.38, color=color)
        end = whisker(ax, row, "held", y + 0.2, across=True)
        printed = f"{row['printed_kv_tokens']:,.0f}: {row['printed_concurrency']:.1f} requests of {row['longest']:,}"
        held = f"{row['held']:,.0f}: {row['requests']:.0f} requests of {row['held'] / row['requests']:,.0f} by then"
        for shift, tokens, text in ((-0.2, row["printed_kv_tokens"], printed), (0.2, end, held)):
            ax.text(tokens + most / 100, y + shift, text, va="center", size=9)
    label_rows(ax, [str(row["model"]) for row in rows])
    ax.set(xlim=(0, most * 1.35), xlabel="tokens")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.grid(axis="x")
    handles = [Patch(color=PRINTED, label="printed at the start: “GPU KV cache size”"),
               Patch(color=HELD, label="really in the pool while requests waited for memory")]  # fmt: skip
    odd = max(rows, key=lambda row: abs(np.log(row["held"] / row["printed_kv_tokens"])))
    title = (f"The tokens that an engine prints of its pool are no property of it: {odd['model']} holds "
             f"{times(odd['held'] / odd['printed_kv_tokens'])} of them")  # fmt: skip
    caption = "Printed: num_blocks / blocks of one request of max_model_len tokens * max_model_len, as vLLM 0.33 does."
    return frame(fig, title, sweep.what_ran, caption, handles)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: figures that engines printed elsewhere belong to other pools; `tests/geometry` holds those."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """Why the two numbers differ."""
    told = [
        f"{row['model']}: {row['num_blocks']:,.0f} blocks of {row['block_size']:,.0f} tokens or a state; a request of "
        f"max_model_len wastes {row['padding_at_max_len_pct']:.1f} % of what it holds as padding."
        for row in _rows(sweep)
    ]
    return [
        "The engine asks how many requests of exactly max_model_len tokens fit, each with a window full of tokens in "
        "flight (2 x max_num_batched_tokens), and multiplies by max_model_len. Only where every layer keeps all "
        "tokens is that the size of the pool.",
        "A window or a state costs a request the same however short it is. Requests shorter than max_model_len have "
        "more of them for each token, so fewer tokens fit than printed; where pieces of prompts in flight are smaller "
        "than assumed, more do.",
        *told,
    ]


def _rows(sweep: Sweep) -> list[dict[str, Any]]:
    """A row for each model whose pool was full at some time, with its mean tokens in the pool."""
    if "printed_kv_tokens" not in sweep.done:
        return []
    rows = []
    for row in records(sweep.done[sweep.done["saturated_kv_used_pct"].notna()]):
        held = means(pd.DataFrame({"held": [_tokens(sweep, job) for job in row["dirs"]]}))
        rows.append(row | held | {"requests": row["saturated_mean_batch_size"],
                           "longest": int(row["max_model_len"])})  # fmt: skip
    return rows


def _tokens(sweep: Sweep, job: str) -> float:
    """Tokens of running requests in a job's pool: mean over the time in which a request was refused memory."""
    steps = pd.read_csv(sweep.folder / job / "steps.csv", usecols=["start_s", "context_tokens", "waiting",
                                                                   "head_blocked"])  # fmt: skip
    full = np.flatnonzero(steps["head_blocked"].to_numpy() > 0)
    waits = np.flatnonzero(steps["waiting"].to_numpy() > 0)
    if not len(full):
        return float("nan")
    some = steps.iloc[full[0] : waits[-1] + 2]
    spans = np.diff(some["start_s"].to_numpy())
    return float(np.average(some["context_tokens"].to_numpy()[: len(spans)], weights=spans)) if spans.sum() else np.nan
