"""What does a block table cost the decode kernel? The same kernel over blocks and over extents, as in Fig. 18a."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from omegaconf import DictConfig

from harness.devices import must_run_here
from harness.files import write_table
from harness.report.drawing import draw_all
from harness.report.looks import ramp
from harness.report.style import frame, new_figure

# Fig. 18a of the PagedAttention paper (arXiv 2309.06180), read off the figure: µs of a decode kernel by context length,
# vLLM's paged kernel and FasterTransformer's contiguous one, OPT-13B's heads on an A100.
PAPER = pd.DataFrame(
    [(8, 64, 31.5, 21.9), (8, 128, 43.6, 34.9), (8, 256, 84.3, 62.3),
     (32, 64, 77.1, 61.4), (32, 128, 127.1, 106.7), (32, 256, 235.3, 194.5)],
    columns=["batch", "context", "paged_us", "extent_us"],
)  # fmt: skip


def measure(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any], progress: object) -> dict[str, Any]:
    """The task of `experiment=paging_overhead`: writes `paging_overhead.csv` and its figure.

    Sequences lie at random places of the pool. Blocks and extents are timed in turn, and the overhead is the median of
    the ratios of neighbours in time, so that a machine that slows down slows both.

    Raises:
        HarnessError: a simulated device, which has no kernels.
    """
    from harness.runner.device import load

    must_run_here(cfg, "experiment=paging_overhead times kernels")
    device = load(cfg)
    facts |= device.facts
    overhead = cfg.overhead
    rows = []
    for batch in overhead.batches:
        for context in overhead.contexts:
            paged, extent = _timed(device, batch, context, overhead)
            ratios = paged / extent
            rows.append({
                "batch": batch, "context": context, "block_size": overhead.block_size,
                "paged_us": float(np.median(paged)), "extent_us": float(np.median(extent)),
                "overhead_pct": 100 * (float(np.median(ratios)) - 1),
                "overhead_p25_pct": 100 * (float(np.percentile(ratios, 25)) - 1),
                "overhead_p75_pct": 100 * (float(np.percentile(ratios, 75)) - 1),
            })  # fmt: skip
    table = pd.DataFrame(rows)
    write_table(folder / "paging_overhead.csv", table)
    what = f"{overhead.heads} query and {overhead.kv_heads} KV heads of {overhead.head_dim}  ·  {facts['dtype']}  ·  "
    warnings: list[str] = []
    what += f"{facts['kernels']} kernel  ·  {facts['device']}"
    draw_all(folder, {"paging_overhead": lambda: draw(table, what)}, warnings)
    print(table.round(1).to_string(index=False))
    median = float(table["overhead_pct"].median())
    return {"device": facts["device"], "overhead_pct_median": median, "warnings": warnings}


def draw(table: pd.DataFrame, what: str) -> Figure:
    """Overhead of blocks over extents by context: ours with the middle half of the ratios, the paper's dashed."""
    batches = sorted(set(table["batch"]) | set(PAPER["batch"]))
    color = dict(zip(batches, ramp(len(batches)), strict=True))
    fig = new_figure(8.5, 4.8)
    ax = fig.subplots()
    for batch, rows in table.groupby("batch"):
        low, high = rows["overhead_pct"] - rows["overhead_p25_pct"], rows["overhead_p75_pct"] - rows["overhead_pct"]
        ax.errorbar(rows["context"], rows["overhead_pct"], yerr=[low, high], marker="o", capsize=3,
                    color=color[batch], label=f"here, {batch} sequences")  # fmt: skip
    for batch, rows in PAPER.groupby("batch"):
        ax.plot(rows["context"], 100 * (rows["paged_us"] / rows["extent_us"] - 1), marker="s", linestyle="--",
                alpha=0.6, color=color[batch], label=f"paper, {batch} sequences")  # fmt: skip
    ax.axhline(0, color="#888888", linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sorted(set(table["context"])), [f"{context:,}" for context in sorted(set(table["context"]))])
    ax.set(xlabel="tokens of context of each sequence", ylabel="time over blocks against extents, %")
    ax.grid()
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    median = table["overhead_pct"].median()
    caption = (
        "Decode attention of one layer. Bars: the middle half of the ratios of neighbouring measurements. Paper: Fig. "
        "18a of arXiv 2309.06180, vLLM's paged kernel against FasterTransformer's contiguous one on an A100; here both "
        "placements run the same kernel, so the table look-up is all that differs."
    )
    return frame(fig, f"Blocks cost the decode kernel {median:+.1f} % against extents (median)", what, caption)


def _timed(device: Any, batch: int, context: int, overhead: DictConfig) -> tuple[np.ndarray, np.ndarray]:
    """``[repeats]`` each: µs over blocks and over extents, measured in turn."""
    import torch
    from kvlab_kernels.addresses import Addresses

    size, heads, dim = overhead.block_size, overhead.kv_heads, overhead.head_dim
    blocks = -(-context // size)
    capacity = batch * blocks * size
    options: dict[str, Any] = {"dtype": device.dtype, "device": device.device}
    generator = torch.Generator(device=device.device).manual_seed(0)
    k, v = (torch.randn(capacity, heads, dim, generator=generator, **options) for _ in range(2))
    q = torch.randn(batch, overhead.heads, dim, generator=generator, **options)
    order = np.random.default_rng(0).permutation(batch * blocks).astype(np.int32).reshape(batch, blocks)
    starts = (np.random.default_rng(1).permutation(batch).astype(np.int32) * blocks * size)[:, None]
    rows = torch.arange(batch, dtype=torch.int32, device=device.device)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device.device)
    run, out = device.backend.decode_attention, torch.empty_like(q)
    placements = ((order, size), (np.ascontiguousarray(starts), 0))
    addresses = [
        Addresses(torch.from_numpy(table).to(device.device), rows, lengths, block_size)
        for table, block_size in placements
    ]
    calls = [_call(run, q, k, v, where, dim**-0.5, out, context) for where in addresses]
    for call in calls * 3:
        call()
    spent = np.array([[_microseconds(call, device.device) for call in calls] for _ in range(overhead.repeats)])
    return spent[:, 0], spent[:, 1]


def _call(run: Callable[..., Any], q: Any, k: Any, v: Any, addresses: Any, scale: float, out: Any,
          context: int) -> Callable[[], Any]:  # fmt: skip
    return lambda: run(q, k, v, addresses, scale, out=out, max_length=context)


def _microseconds(call: Callable[[], Any], device: Any) -> float:
    """Time of one call: by events on a GPU, by the clock on a CPU."""
    if device.type != "cuda":
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e3
    import torch

    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1e3
