"""Fig. 19 of the PagedAttention paper: swapping a preempted sequence to the host, or recomputing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from omegaconf import DictConfig, OmegaConf

from allocators.base import Move
from harness.naming.names import model_name, workload_name
from harness.published import curve
from harness.report.figures import Pair
from harness.report.looks import looks, shaded
from harness.report.style import band, frame, new_figure, plain_log
from harness.report.sweep import Sweep
from harness.runner.simulated_device import SimulatedDevice
from schedulers.request import BatchStats

SIZE, HOW, RATE = "allocator.block_size", "scheduler.preemption", "workload.rate"
METRIC = "normalized_latency_mean_s"
VLLM = looks(["vLLM"])["vLLM"]
COLORS = {"recompute": VLLM.color, "swap": shaded(VLLM, 1, 2).color}  # one system, in two ways
THEIRS = {"recompute": "Recompute", "swap": "Swap"}  # in Fig. 19b
TIMED = "opt_13b"  # in Fig. 19a
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OTHERS = 30  # sequences in the step that a recomputed prompt joins


def draw(sweep: Sweep) -> Figure | None:
    """Times to swap and to recompute, and latencies by rate, over block size; None without a sweep of block sizes."""
    done = _swept(sweep)
    if done.empty:
        return None
    rates = list(done.groupby(_rates(done), sort=True))
    fig = new_figure(4.7 * (1 + len(rates)), 5.2)
    first, *axes = fig.subplots(1, 1 + len(rates))
    cfg = _config(sweep, done)
    _times(first, cfg)
    for ax, (rate, rows) in zip(axes, rates, strict=True):
        _latencies(ax, rows)
        ax.set_title(f"{rows['workload'].iloc[0]}, {rate:.3g} requests/s")
    axes[0].set_ylabel("normalized latency, s per token (log scale)")
    ours = times_of(cfg)
    title = (f"Swapping beats recomputing from blocks of {crossing(ours['swap'], ours['recompute']):.0f} "
             f"slots on (the paper: {crossing(_timed('Swap in + out'), _timed('Recompute')):.0f})")  # fmt: skip
    handles = [Line2D([], [], color=color, linewidth=2.2, label=how) for how, color in COLORS.items()]
    handles += [Line2D([], [], color="#444444", marker="o", markersize=4, label="simulated here"),
                Line2D([], [], color="#444444", marker="x", linestyle=(0, (4, 2)),
                       label="Fig. 19, arXiv 2309.06180")]  # fmt: skip
    caption = ("Small blocks are inefficient for the paper's kernel, which is not modelled: only the right-hand side "
               "of the latencies can agree. The paper does not state its rate.")  # fmt: skip
    return frame(fig, title, sweep.what_ran, caption, handles)


def times_of(cfg: DictConfig) -> dict[str, dict[int, float]]:
    """Milliseconds by block size for a sequence of `cfg.swap_tokens`: swapped out and in, or recomputed.

    Both are the time added to a step: a prompt is computed along with the next tokens of other sequences.

    Raises:
        KeyError, AttributeError: the device has no costs of copies or no step times by batch.
    """
    device = SimulatedDevice(cfg)
    tokens, costs = int(cfg.swap_tokens), device.moves
    swap = {}
    for size in SIZES:
        blocks = -(-tokens // size)
        out, back = ([Move(kind, at * size, at * size, size) for at in range(blocks)] for kind in ("out", "in"))
        swap[size] = (costs.ns(out) + costs.ns(back)) / 1e6 if costs else float("nan")
    others = BatchStats(OTHERS, 0, OTHERS * tokens, 0, 0, 0, 0)
    joined = others._replace(prompts=1, prompt_tokens=tokens, prompt_context=tokens, pairs=tokens * (tokens + 1) // 2)
    without, with_it = (_ms(device.latency, stats) for stats in (others, joined))
    return {"swap": swap, "recompute": dict.fromkeys(SIZES, with_it - without)}


def crossing(falling: dict[int, float], flat: dict[int, float]) -> float:
    """The block size from which on the first is below the second, interpolated linearly in logarithms."""
    for low, high in pairwise(sorted(falling)):
        above, below = (float(np.log(falling[size] / flat[size])) for size in (low, high))
        if above > 0 >= below:
            return float(np.exp(np.interp(0, [below, above], [np.log(high), np.log(low)])))
    return float("nan")


def published(sweep: Sweep) -> Iterator[Pair]:
    """Times of Fig. 19a, and the latencies of Fig. 19b at each rate."""
    done = _swept(sweep)
    if done.empty:
        return
    cfg = _config(sweep, done)
    model = model_name(cfg.model)
    if model == TIMED:
        yield from _times_beside(cfg)
    panel = f"{model}_{workload_name(cfg.workload)}"
    by_rate = list(done.groupby(_rates(done), sort=True))
    last = by_rate[-1][0]  # where most is preempted; at lower rates which of the two is shorter is chance
    for rate, rows in by_rate:
        each: dict[str, dict[int, float]] = {}
        for how in THEIRS:
            some = rows[rows[HOW] == how]
            each[how] = dict(zip(some[SIZE].tolist(), some[METRIC].tolist(), strict=True))
        again, swap = ({int(size): value for size, value in curve("fig19b", panel, name)} for name in THEIRS.values())
        if rate == last and swap and set(each["swap"]) == set(each["recompute"]):
            yield Pair("swapping gives shorter latencies from", "slots in a block", "vLLM", f"{rate:.3g} req/s",
                       crossing(swap, again), crossing(each["swap"], each["recompute"]))  # fmt: skip
        for how, name in THEIRS.items():
            for at_size, latency in curve("fig19b", panel, name):
                where = f"{rate:.3g} req/s, blocks of {at_size:g}"
                yield Pair(f"normalized latency, {how}", "s/token", "vLLM", where, latency, each[how].get(int(at_size)))


def _times_beside(cfg: DictConfig) -> Iterator[Pair]:
    ours, at = times_of(cfg), f"{cfg.swap_tokens} tokens, blocks of"
    for key, name in (("swap", "Swap in + out"), ("recompute", "Recompute")):
        for size, value in _timed(name).items():
            yield Pair(f"time to {key}", "ms", "vLLM", f"{at} {size}", value, ours[key].get(size))
    theirs = crossing(_timed("Swap in + out"), _timed("Recompute"))
    yield Pair("swapping is faster from", "slots in a block", "vLLM", f"{cfg.swap_tokens} tokens", theirs,
               crossing(ours["swap"], ours["recompute"]))  # fmt: skip


def why(sweep: Sweep) -> list[str]:
    """How the length was found, and what is not modelled."""
    done = _swept(sweep)
    told = []
    if not done.empty:
        cfg = _config(sweep, done)
        told = [f"The paper does not say how long the sequence was whose moves it timed. {cfg.swap_tokens} tokens is "
                f"the length at which our nine times to swap come nearest to its (root mean square error of the "
                f"logarithms {100 * _error(cfg):.1f} %), with a bus of 25 GB/s and 1.5 µs for each copy: K and V of "
                f"one block in one of {cfg.model.config.num_hidden_layers} layers. The 1.5 µs come from the "
                "same figure, so the swap times are a fit; the time to recompute is not."]  # fmt: skip
    return [
        *told,
        f"Recomputing is what a prompt of that length adds to a step of {OTHERS} sequences, a roofline at 65 % of the "
        "peak. The paper's is about a sixth shorter.",
        "The paper's latencies rise below 16 slots because its kernel reads small blocks inefficiently. Step times "
        "here do not depend on the block size, so below 16 only the costs of the moves show.",
        "The paper does not state its rate. One of ours is where its Fig. 12 has the latency that its Fig. 18b gives "
        "for blocks of 16; at the other, which is nearer to our knee, more is preempted. While anybody is on the host, "
        "nobody is admitted, as in the paper.",
    ]


def _swept(sweep: Sweep) -> pd.DataFrame:
    return sweep.done if {SIZE, HOW} <= set(sweep.done) else sweep.done[:0]


def _rates(done: pd.DataFrame) -> Any:
    return RATE if RATE in done else done["offered_rate"].round(2)


def _config(sweep: Sweep, done: pd.DataFrame) -> DictConfig:
    config = OmegaConf.load(sweep.folder / done["dirs"].iloc[0][0] / "config.yaml")
    assert isinstance(config, DictConfig)
    return config


def _ms(latency: Any, stats: BatchStats) -> float:
    base, slope = latency.line(stats)
    return float(base + slope * stats.context) / 1e6


def _error(cfg: DictConfig) -> float:
    ours = times_of(cfg)["swap"]
    logs = [np.log(ours[size] / value) for size, value in _timed("Swap in + out").items()]
    return float(np.sqrt(np.mean(np.square(logs))))


def _timed(name: str) -> dict[int, float]:
    """Milliseconds of Fig. 19a by block size."""
    return {int(point[0]): point[1] for point in curve("fig19a", TIMED, name)}


def _times(ax: Axes, cfg: DictConfig) -> None:
    ours = times_of(cfg)
    for how, name in (("recompute", "Recompute"), ("swap", "Swap in + out")):
        ax.plot(SIZES, list(ours[how].values()), color=COLORS[how], marker="o", markersize=4, linewidth=1.9)
        ax.plot(*_points("fig19a", TIMED, name), color=COLORS[how], marker="x", linestyle=(0, (4, 2)), alpha=0.75)
    _sizes(ax, SIZES)
    ax.set(title=f"A sequence of {cfg.swap_tokens} tokens", ylabel="swap in and out, or recompute, ms")
    ax.set_ylim(0)


def _latencies(ax: Axes, rows: pd.DataFrame) -> None:
    for how in COLORS:
        some = rows[rows[HOW] == how].sort_values(SIZE)
        if some.empty:
            continue
        ax.plot(some[SIZE], some[METRIC], color=COLORS[how], marker="o", markersize=4, linewidth=1.9)
        band(ax, some, SIZE, METRIC, COLORS[how])
        panel = f"{some['model'].iloc[0]}_{some['workload'].iloc[0]}"
        points = _points("fig19b", panel, THEIRS[how])
        if len(points):
            ax.plot(*points, color=COLORS[how], marker="x", linestyle=(0, (4, 2)), alpha=0.75, linewidth=1.2)
    _sizes(ax, sorted(rows[SIZE].unique()))
    plain_log(ax, 1e3, "y")


def _points(name: str, panel: str, key: str) -> np.ndarray:
    return np.array(curve(name, panel, key)).T


def _sizes(ax: Axes, sizes: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    ax.minorticks_off()
    ax.set_xlabel("block size, slots (log scale)")
    ax.grid()
