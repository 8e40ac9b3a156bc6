"""Every allocator with every scheduler as a grid: each pair's throughput, pool usage and recomputed tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.files import records
from harness.report.figures import Pair
from harness.report.repeats import ENDS
from harness.report.style import frame, new_figure
from harness.report.sweep import Sweep

PANELS = (
    ("output_throughput", "Output tokens per second", "{:,.0f}"),
    ("kv_used", "KV pool in use, %", "{:.1f}"),
    ("recomputed_pct", "Tokens computed again, %", "{:.1f}"),
)


def grid(sweep: Sweep) -> pd.DataFrame:
    """One row per pair: `placement` (allocator and reservation), `scheduler`, and the values of the panels with the
    ends of their intervals over repeats.

    `kv_used` is the share in use while requests wait for memory, or over the whole run where none ever did.
    """
    done = sweep.done
    used = done["saturated_kv_used_pct"].fillna(done["kv_used_pct"])
    placement = done["allocator"] + " (" + done["reservation"] + ")"
    ends = {f"kv_used_{end}": done[f"saturated_kv_used_pct_{end}"].fillna(done[f"kv_used_pct_{end}"]) for end in ENDS}
    table = done.assign(kv_used=used, placement=placement, **ends)
    alike = table.duplicated(["placement", "scheduler"], keep=False)
    table["placement"] = table["placement"].where(~alike, table["label"])
    return table[["placement", "scheduler", *(f"{name}{end}" for end in ("", "_high") for name, *_ in PANELS)]]


def draw(sweep: Sweep) -> Figure | None:
    """A panel for each number, allocators down, schedulers across; None when no job finished."""
    if sweep.done.empty:
        return None
    table = grid(sweep)
    placements, schedulers = (list(dict.fromkeys(table[name])) for name in ("placement", "scheduler"))
    fig = new_figure(5.2 + 1.25 * len(PANELS) * max(len(schedulers), 2), 0.36 * len(placements) + 2.2)
    axes = fig.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    for ax, (name, title, form) in zip(axes, PANELS, strict=True):
        cells, ends = (
            table.pivot_table(index="placement", columns="scheduler", values=value, dropna=False)
            .reindex(placements).reindex(columns=schedulers) for value in (name, f"{name}_high")
        )  # fmt: skip
        _panel(ax, cells, ends, title, form)
    axes[0].set_yticks(range(len(placements)), placements)
    best = records(table.nlargest(1, "output_throughput"))[0]
    worst = records(table.nsmallest(1, "output_throughput"))[0]
    factor = best["output_throughput"] / worst["output_throughput"]
    title = (f"{best['scheduler']} + {best['placement']} produces ×{factor:.1f} of "
             f"{worst['scheduler']} + {worst['placement']}")  # fmt: skip
    caption = " ".join(["Darker is more. An empty cell: not in the sweep, or not finished.", *sweep.insignificant])
    return frame(fig, title, sweep.what_ran, caption)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: nobody published this grid."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """How to read the grid."""
    return [
        "Down a column only the placement differs, across a row only who is in the batch.",
        "A pool can be kept full by computing again what was thrown away: the last panel stands beside the second.",
    ]


def _panel(ax: Axes, cells: pd.DataFrame, highs: pd.DataFrame, title: str, form: str) -> None:
    values, ends = cells.to_numpy(dtype=float), highs.to_numpy(dtype=float)
    top = np.nanmax(values) if np.isfinite(values).any() else 1.0
    ax.imshow(values, cmap="Blues", vmin=0, vmax=1.25 * max(top, 1e-9), aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = value > 0.75 * top
            half = ends[row, column] - value
            text = form.format(value) + (f" ± {form.format(half)}" if np.isfinite(half) else "")
            ax.text(column, row, text, ha="center", va="center", size=9 if len(text) < 9 else 7.5,
                    color="white" if dark else "#222222")  # fmt: skip
    ax.set_xticks(range(len(cells.columns)), list(cells.columns))
    ax.set_title(title)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
