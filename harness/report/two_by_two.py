"""The 2 x 2: how much of the gain comes from paging, from continuous batching, and from their combination."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.files import records
from harness.metrics.spread import half_width
from harness.report.comparison import swept_columns
from harness.report.repeats import METRIC, by_seed
from harness.report.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

# The systems of each cell. If block sizes are swept, no row is called vLLM.
CELLS = {
    "static_contiguous": {"static + contiguous(max_model_len)"},
    "static_paged": {"static + paged(on_demand)"},
    "continuous_contiguous": {"continuous + contiguous(max_model_len)"},
    "continuous_paged": {"vLLM", "continuous + paged(on_demand)"},
}
LOGS = ("ln_paging", "ln_continuous", "ln_remainder", "ln_both")
HALVES = tuple(f"{name}_half" for name in LOGS)
COLUMNS = [*CELLS, *LOGS, *HALVES]


def two_by_two(groups: pd.DataFrame, table: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per point of the sweep at which all four systems finished; empty when there is none.

    `static_contiguous` ... are output throughputs over the makespan (means over repeats), in tokens/s, with
    contiguous(max_model_len) and paged(on_demand). With ln of their ratios to static_contiguous, `ln_paging` is that of
    static_paged, `ln_continuous` that of continuous_contiguous, `ln_both` that of continuous_paged, and
    `ln_remainder` = ln_both - ln_paging - ln_continuous, which may be negative. `..._half` are halves of their 95 %
    intervals, of the seeds that all four systems share; empty for fewer than three.

    Args:
        groups: as `aggregate` makes them.
        table: the comparison that they are made of; without it there are no intervals.
    """
    swept, rows = swept_columns(groups), []
    done = groups[groups["repeats"] > 0]
    for point, at in done.groupby(swept, sort=False, dropna=False) if swept else [((), done)]:
        cells = {name: _throughput(at, systems) for name, systems in CELLS.items()}
        if all(cells.values()):
            halves = _halves(at, table) if table is not None else dict.fromkeys(HALVES)
            rows.append(dict(zip(swept, point, strict=True)) | cells | _logs(cells) | halves)  # type: ignore[arg-type]
    return pd.DataFrame(rows, columns=[*swept, *COLUMNS])


def _throughput(rows: pd.DataFrame, systems: set[str]) -> float | None:
    values = rows.loc[rows["system"].isin(systems), "output_throughput"].dropna()
    return float(values.iloc[0]) if len(values) == 1 else None  # with two it is unclear which is meant


def _halves(at: pd.DataFrame, table: pd.DataFrame) -> dict[str, float | None]:
    """Halves of the 95 % intervals, from the logarithms of each seed that all four systems share."""
    runs = [by_seed(table, records(at[at["system"].isin(systems)])[0]["dirs"], METRIC) for systems in CELLS.values()]
    shared = [seed for seed in runs[0] if all(of.get(seed) for of in runs)]
    logs = pd.DataFrame([_logs(dict(zip(CELLS, (of[seed] for of in runs), strict=True))) for seed in shared])
    return {f"{name}_half": half_width(logs[name].tolist()) if len(shared) else None for name in LOGS}


def factor(row: Mapping[str, Any], name: str) -> str:
    """``×1.45``, and its 95 % interval if there is one: ``×1.45 (1.41 – 1.49)``."""
    value, half = row[f"ln_{name}"], row.get(f"ln_{name}_half")
    text = f"×{math.exp(value):.2f}"
    return (
        text
        if half is None or pd.isna(half)
        else f"{text} ({math.exp(value - half):.2f} – {math.exp(value + half):.2f})"
    )


def _logs(cells: dict[str, float]) -> dict[str, float]:
    base = cells["static_contiguous"]
    paging, continuous, both = (
        math.log(cells[name] / base) for name in ("static_paged", "continuous_contiguous", "continuous_paged")
    )
    return {"ln_paging": paging, "ln_continuous": continuous, "ln_remainder": both - paging - continuous,
            "ln_both": both}  # fmt: skip


def draw(sweep: Sweep) -> Figure | None:
    """The four throughputs as a square, and the factors as steps on a log axis; None without all four."""
    from harness.report.style import frame, new_figure

    table = two_by_two(sweep.groups, sweep.table)
    if table.empty:
        return None
    row = records(table)[0]
    fig = new_figure(11, 4.9)
    square, steps = fig.subplots(1, 2, width_ratios=(1, 1.35))
    _square(square, row)
    _steps(steps, row)
    title = (f"Output throughput: paging alone {factor(row, 'paging')}, continuous batching alone "
             f"{factor(row, 'continuous')}, both together {factor(row, 'both')}")  # fmt: skip
    caption = ("Static: a batch runs until its last request is finished; continuous: requests join and leave at any "
               "step. Contiguous: each request gets the longest possible length at once; paged: blocks as it grows. "
               "Together: the factor that neither explains alone "
               f"({factor(row, 'remainder')}; below 1, the gains overlap).")  # fmt: skip
    return frame(fig, title, sweep.what_ran, caption)


def _square(ax: Axes, row: dict[str, Any]) -> None:
    from harness.report.style import times

    base, most = row["static_contiguous"], max(row[name] for name in CELLS)
    for i, scheduler in enumerate(("static", "continuous")):
        for j, allocator in enumerate(("contiguous", "paged")):
            value = row[f"{scheduler}_{allocator}"]
            share = 0.12 + 0.78 * value / most
            ax.add_patch(_tile(j, i, share))
            ax.text(j, i - 0.08, f"{value:,.0f}", ha="center", va="center", size=17, weight="bold",
                    color="white" if share > 0.5 else "#222222")  # fmt: skip
            ax.text(j, i + 0.22, f"tokens/s   {times(value / base)}", ha="center", va="center", size=9.5,
                    color="white" if share > 0.5 else "#222222")  # fmt: skip
    ax.set(xlim=(-0.52, 1.52), ylim=(1.52, -0.52), title="Output throughput")
    ax.set_xticks([0, 1], ["contiguous cache", "paged cache"])
    ax.set_yticks([0, 1], ["static\nbatches", "continuous\nbatching"])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _tile(x: float, y: float, share: float) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, facecolor="#0072B2", alpha=share, linewidth=0)


def _steps(ax: Axes, row: dict[str, Any]) -> None:
    """A waterfall: on a log axis factors that multiply are lengths that add."""
    from harness.report.style import times

    ends = [("paged cache alone", 0.0, row["ln_paging"], "#0072B2"),
            ("continuous batching alone", row["ln_paging"], row["ln_continuous"], "#D55E00"),
            ("together, beyond both", row["ln_paging"] + row["ln_continuous"], row["ln_remainder"], "#CC79A7"),
            ("both", 0.0, row["ln_both"], "#222222")]  # fmt: skip
    halves = [row[name] for name in HALVES]
    for i, (_, start, length, color) in enumerate(ends):
        right = 0.0  # end of the interval
        if pd.notna(halves[i]):
            left, right = (math.exp(start + length + sign * halves[i]) for sign in (-1, 1))
            ax.plot([left, right], [i, i], color="#888888", marker="|")
        low, high = sorted((math.exp(start), math.exp(start + length)))
        ax.barh(i, high - low, left=low, color=color, height=0.6)
        ax.annotate(times(math.exp(length)), (max(high, right), i), xytext=(5, 0), textcoords="offset points",
                    va="center", weight="bold")  # fmt: skip
        if i < 3:
            ax.plot([math.exp(start + length)] * 2, [i, i + 1], color="#888888", linewidth=0.8)
    ax.set_xscale("log")
    low, high = ax.dataLim.intervalx
    ax.set_xlim(low * 0.93, high * (high / low) ** 0.16)
    ticks = [t for t in (0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100) if low * 0.93 <= t <= high * 1.2]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(4), [name for name, *_ in ends])
    ax.set_ylim(3.5, -0.5)
    ax.grid(axis="x")
    ax.set(title="Factors", xlabel="throughput, times that of static + contiguous (log scale)")
