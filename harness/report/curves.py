"""Latency over arrival rate, from the probes of capacity searches, beside published curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.files import records
from harness.published import THEIRS, Curve, crossing, curve, source
from harness.report.figures import Pair
from harness.report.looks import Look, system_looks
from harness.report.style import frame, new_figure, with_half
from harness.report.sweep import Sweep

METRIC = "normalized_latency_mean_s"
LIMIT = 0.5
AXIS = "normalized latency, s per output token"
WIDTHS = {"Orca (Max)": 4.0, "Orca (Pow2)": 2.8, "vLLM": 3.2, "Ideal": 6.0}  # wide ones beneath: coinciding curves show


def draw_curves(sweep: Sweep, name: str, title: str, panels: tuple[str, ...] = ()) -> Figure | None:
    """One panel for each model and workload; None when no search finished.

    Args:
        name: the published figure.
        title: of the figure; ``{}`` is replaced by the finding of the first panel.
        panels: the published figure's panels, one for each model and workload; default MODEL_WORKLOAD.
    """
    done = sweep.done[sweep.done["capacity_rate"].notna()] if "capacity_rate" in sweep.done else sweep.done[:0]
    if done.empty:
        return None
    style = system_looks(sweep.groups)
    groups = list(done.groupby(["model", "workload"], sort=False))
    fig = new_figure(max(9.5, 5.2 * len(groups)), 5.6)
    for ax, ((model, workload), rows) in zip(fig.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        ax.set_title(f"{model}, {workload}")
        draw_panel(ax, sweep, rows, style, name, panel(records(rows)[0], panels))
    fig.axes[0].set_ylabel(AXIS)
    handles = legend(done["system"], style, name)
    return frame(fig, title.format(_finding(done)), sweep.what_ran, caption(done), handles, ncols=4)


def draw_panel(ax: Axes, sweep: Sweep, rows: pd.DataFrame, style: Mapping[str, Look], name: str, panel: str) -> None:
    """The probes of each of `rows`, and the curves of a panel of a published figure."""
    ax.set(ylim=(0, 1.05), xlabel="rate of arrivals, requests/s")
    ax.axhline(LIMIT, color="#888888", linewidth=0.8, linestyle=(0, (2, 2)))
    last = 0.0
    for row in records(rows):
        look, theirs = style[row["system"]], curve(name, panel, row["system"])
        probes, width = read_probes(sweep, row), WIDTHS.get(row["system"], 1.7)
        for further in range(1, len(row["dirs"])):  # repeats, thin
            more = read_probes(sweep, row, further)
            ax.plot(more["rate"], more[METRIC], color=look.color, linewidth=0.7, alpha=0.5)
        ax.plot(probes["rate"], probes[METRIC], color=look.color, linewidth=width, marker=look.marker, markersize=3.5,
                zorder=2.5 - 0.1 * width, alpha=0.6 if width > 5 else 1)  # fmt: skip
        if theirs:
            ax.plot(*np.array([point[:2] for point in theirs]).T, color=look.color, linewidth=1.2, alpha=0.75,
                    linestyle=(0, (4, 2)), marker="x", markersize=5)  # fmt: skip
        last = max(last, row["capacity_rate"], *(point[0] for point in theirs))
    ax.set_xlim(0, last * 1.06)
    ax.grid()
    _name_capacities(ax, rows, style)


def legend(systems: Iterable[str], style: Mapping[str, Look], published: str) -> list[Artist]:
    """A line for each system, and the styles of our curves and the published ones."""
    names = dict.fromkeys(systems)
    return [*(Line2D([], [], color=style[name].color, linewidth=2.2, marker=style[name].marker, markersize=3.5,
                     label=_both_names(name)) for name in names),
            Line2D([], [], color="#444444", marker="o", markersize=3.5, label="simulated here"),
            Line2D([], [], color="#444444", marker="x", linestyle=(0, (4, 2)), label=source(published))]  # fmt: skip


def caption(done: pd.DataFrame) -> str:
    """The caption: what the axes show."""
    return (f"Mean over all requests of the time from arrival to end, per output token. Poisson arrivals for "
            f"{', '.join(f'{seconds:,.0f} s' for seconds in dict.fromkeys(done['trace_s']))}. Dotted: the limit "
            f"of {LIMIT} s per token at which capacities are compared."
            + (" Thin lines: further repeats." if done["repeats"].max() > 1 else ""))  # fmt: skip


def pairs(sweep: Sweep, name: str, panels: tuple[str, ...] = ()) -> Iterator[Pair]:
    """Capacities, the ratios between them, and the latency at every published point."""
    if "capacity_rate" not in sweep.done:
        return
    done = sweep.done[sweep.done["capacity_rate"].notna()]
    for (model, workload), rows in done.groupby(["model", "workload"], sort=False):
        at = f"{model}, {workload}"
        yield from capacities(rows, name, panel(records(rows)[0], panels), at)
        for row in records(rows):
            yield from _latencies(sweep, row, curve(name, panel(row, panels), row["system"]), at)


def capacities(rows: pd.DataFrame, name: str, panel: str, at: str) -> Iterator[Pair]:
    """Capacities beside where the curves of a published panel cross the limit, and the ratios between them."""
    found = dict[str, tuple[float, float]]()
    for row in records(rows):
        if (rate := crossing(curve(name, panel, row["system"]), LIMIT)) is not None:
            found[row["system"]] = rate, row["capacity_rate"]
            yield Pair("capacity", f"req/s at {LIMIT} s/token", row["system"], at, rate, row["capacity_rate"])
    for system, (rate, ours) in found.items():
        if system != "vLLM" and "vLLM" in found:
            ratio, here = found["vLLM"][0] / rate, found["vLLM"][1] / ours
            yield Pair("capacity of vLLM over", f"× at {LIMIT} s/token", system, at, ratio, here)


def panel(row: dict[str, Any], panels: tuple[str, ...] = ()) -> str:
    """The published panel that a row is compared with."""
    return panels[0] if panels else f"{row['model']}_{row['workload']}"


def read_probes(sweep: Sweep, row: dict[str, Any], repeat: int = 0) -> pd.DataFrame:
    """The probes of one of a row's repeats, by rate."""
    return pd.read_csv(sweep.folder / row["dirs"][repeat] / "probes.csv").sort_values("rate")


def _latencies(sweep: Sweep, row: dict[str, Any], theirs: Curve, at: str) -> Iterator[Pair]:
    ours = read_probes(sweep, row).drop_duplicates("rate").set_index("rate")[METRIC]
    for rate, value, *clipped in theirs:
        if not clipped:
            yield Pair("normalized latency", "s/token", row["system"], f"{at}, {rate:g} req/s", value,
                       ours.get(rate))  # fmt: skip


def _both_names(system: str) -> str:
    return f"{system} (in the paper: {THEIRS[system]})" if system in THEIRS else system


def _name_capacities(ax: Axes, rows: pd.DataFrame, style: Mapping[str, Look]) -> None:
    """Write the capacities along the limit, each to the left of its curve (the last one and one at the axis to the
    right). One that would lie on another is written above it.
    """
    last, width = rows["capacity_rate"].max(), ax.get_xlim()[1]
    near, end, level = 0.09 * width, float("-inf"), 0  # a label's width; where the one before ends, and how high it is
    box = {"facecolor": "white", "alpha": 0.85, "pad": 0.6, "linewidth": 0}
    for row in records(rows.sort_values("capacity_rate")):
        rate = row["capacity_rate"]
        right = rate < near or (rate == last and len(rows) > 1)
        level = level + 1 if rate - near < end else 0
        end = rate + (0.14 * width if right else 0)
        text, place = with_half(row, "capacity_rate", "{:.3g}"), (9 if right else -4, 6 + 14 * level)
        ax.annotate(text, (rate, LIMIT), xytext=place, size=8.5, bbox=box, color=style[row["system"]].color,
                    textcoords="offset points", ha="left" if right else "right", annotation_clip=False)  # fmt: skip


def _finding(done: pd.DataFrame) -> str:
    first = done[(done["model"] == done["model"].iloc[0]) & (done["workload"] == done["workload"].iloc[0])]
    rates = first.drop_duplicates("system").set_index("system")["capacity_rate"]
    if "vLLM" not in rates or len(rates) < 2:
        return f"{rates.index[-1]} serves {rates.iloc[-1]:.3g} requests/s"
    ratios = [(rates["vLLM"] / rates[name], name) for name in ("Orca (Oracle)", "Orca (Max)") if name in rates]
    others = [f"as many as {name}" if abs(x - 1) < 0.01 else f"{x:.2f} times {name}" for x, name in ratios]
    return f"vLLM serves {rates['vLLM']:.3g} requests/s" + (f", {' and '.join(others)}" if others else "")
