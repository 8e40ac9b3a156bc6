"""The common style of all figures: colours for colour-blind readers, titles that state the finding, sizes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from harness.report.in_print import PrintedFigure, in_print

RC: Any = {
    "font.size": 9.5, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888", "axes.axisbelow": True,
    "xtick.color": "#444444", "ytick.color": "#222222", "grid.color": "#dddddd", "grid.linewidth": 0.7,
    "ytick.major.size": 0, "legend.frameon": False, "legend.fontsize": 9, "svg.hashsalt": "kvlab",
    "figure.facecolor": "white", "hatch.linewidth": 0.6, "text.parse_math": False,
}  # fmt: skip

# One colour per column of the books (Okabe-Ito; free slots in greys), and its meaning in plain words.
COLUMNS: dict[str, tuple[str, str]] = {
    "used": ("#0072B2", "in use: a token of a running request"),
    "finished_held": ("#D55E00", "held by finished requests until their batch ends"),
    "reserved": ("#56B4E9", "reserved: will be used later"),
    "over_reserved": ("#E69F00", "reserved: will never be used"),
    "rounding": ("#CC79A7", "rounding of sizes (to powers of two, to whole blocks)"),
    "cached": ("#009E73", "kept for reuse of equal prompts"),
    "fragmented": ("#555555", "free, but in pieces too small for the next request"),
    "short": ("#999999", "free, but too little for the next request"),
    "free": ("#e4e4e4", "free, and no request is refused"),
    # Further columns of pools whose layers keep different tokens (windows, states):
    "out_of_window": ("#882255", "outside every window: no layer will read it again"),
    "padding": ("#8C6D31", "padding of pages to one size"),
    "state": ("#332288", "state of a running request, whatever its length"),
}
DARK = ("used", "finished_held", "fragmented", "cached", "out_of_window", "padding", "state")  # text on it is white
# Several of these colours are alike in greyscale.
HATCHES = {"finished_held": "xxxx", "reserved": "////", "over_reserved": "\\\\\\\\", "rounding": "....",
           "cached": "++++", "fragmented": "..", "short": "----", "out_of_window": "oo",
           "padding": "||||", "state": "**"}  # fmt: skip


def fill(column: str, theirs: bool = False) -> dict[str, Any]:
    """The fill of a part of a pool: a colour, in print also a hatch. `theirs`: for a published bar beside ours."""
    color = COLUMNS[column][0]
    if not in_print():
        return {"facecolor": color, "alpha": 0.45 if theirs else 1, "hatch": "////" if theirs else None,
                "edgecolor": "white", "linewidth": 0.6}  # fmt: skip
    return {"facecolor": color, "alpha": 0.45 if theirs else 1, "hatch": HATCHES.get(column),
            "edgecolor": "white" if column in DARK else "#333333", "linewidth": 0.3}  # fmt: skip


def wrap(label: str, width: int = 24) -> str:
    """Break a long label at spaces or a bracket."""
    width = min(width, 24) if in_print() else width
    return "\n".join(textwrap.wrap(label.replace("(", " ("), width)).replace(" (", "(") if len(label) > width else label


def frame(fig: Figure, title: str, subtitle: str, caption: str = "", handles: Sequence[Artist] = (),
          ncols: int = 4) -> Figure:  # fmt: skip
    """Put title, subtitle and legend above, a caption below, and leave the rest to the axes (constrained layout)."""
    if isinstance(fig, PrintedFigure):
        return fig.framed(title, subtitle, caption, handles)
    width, height = fig.get_size_inches()
    title = title.replace(" %", "\u00a0%")  # no line break between number and unit
    title, subtitle = textwrap.fill(title, int(width * 9.2)), textwrap.fill(subtitle, int(width * 13.5))
    caption = textwrap.fill(caption, int(width * 15.5)) if caption else ""
    lines = title.count("\n") + 1
    top = 0.14 + 0.23 * lines
    fig.text(0.12 / width, 1 - 0.1 / height, title, size=13, weight="bold", va="top", ha="left", linespacing=1.15)
    fig.text(0.12 / width, 1 - top / height, subtitle, size=9.5, color="#555555", va="top", ha="left")
    top += 0.2 * (subtitle.count("\n") + 1)
    if handles:
        fig.legend(handles=list(handles), loc="upper left", bbox_to_anchor=(0.04 / width, 1 - top / height),
                   ncols=ncols, handlelength=1.4, columnspacing=1.6)  # fmt: skip
        top += 0.2 * math.ceil(len(handles) / ncols) + 0.12
    bottom = 0.17 * (caption.count("\n") + 1) + 0.08 if caption else 0.05
    if caption:
        fig.text(0.12 / width, 0.07 / height, caption, size=8.3, color="#555555", va="bottom", ha="left")
    engine = fig.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=0.1, rect=(0, bottom / height, 1, 1 - (top + bottom) / height))  # type: ignore[call-arg]
    return fig


def new_figure(width: float, height: float) -> Figure:
    """An empty figure (sizes in inches) that belongs to no window."""
    return PrintedFigure(width, height) if in_print() else Figure(figsize=(width, height), layout="constrained")


def label_rows(ax: Axes, labels: list[str], width: int = 24) -> None:
    """Name horizontal bars, the first on top."""
    ax.set_yticks(range(len(labels)), [wrap(label, width) for label in labels])
    ax.set_ylim(len(labels) - 0.4, -0.6)


def rows_height(count: int, each: float = 0.42) -> float:
    """Height of `count` horizontal bars in inches."""
    return max(1.0, each * count)


def plain_log(ax: Axes, spread: float, axis: str = "x") -> None:
    """A log axis with ticks at 0.1, 1, 10, and at 2 and 5 between them if values spread less than 100-fold."""
    getattr(ax, f"set_{axis}scale")("log")
    ticks = getattr(ax, f"{axis}axis")
    ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if spread < 100 else (1.0,)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ticks.set_minor_formatter(NullFormatter())


def whisker(ax: Axes, row: Mapping[str, Any], metric: str, at: float, scale: float = 1.0, across: bool = False,
            color: str = "#222222") -> float:  # fmt: skip
    """Draw the 95 % interval of a row's mean over repeats as a line at `at`, horizontal (`across`) or vertical.

    Returns:
        The upper end of the interval; the mean if there is no interval, and nothing is drawn.
    """
    low, high = (float(row.get(f"{metric}_{end}", math.nan)) * scale for end in ("low", "high"))
    if not high > low:
        return float(row[metric]) * scale
    ends, place, marker = [low, high], [at, at], "|" if across else "_"
    ax.plot(*((ends, place) if across else (place, ends)), color=color, linewidth=1.3, marker=marker, markersize=6)
    return high


def with_half(row: Mapping[str, Any], metric: str, form: str) -> str:
    """``26.1 ± 0.4``: a mean over repeats with half of its 95 % interval, if there is one."""
    value, high = float(row[metric]), float(row.get(f"{metric}_high", math.nan))
    half = form.lstrip("×").format(high - value)
    return form.format(value) + (f" ± {half}" if math.isfinite(high) else "")


def band(ax: Axes, rows: pd.DataFrame, x: str, metric: str, color: str, scale: float = 1.0) -> None:
    """Draw the 95 % intervals of means over repeats along a line; nothing if there are none."""
    low, high = (rows[f"{metric}_{end}"].astype("float64") * scale for end in ("low", "high"))
    ax.fill_between(rows[x].astype("float64"), low, high, color=color, alpha=0.15, linewidth=0)


def times(ratio: float) -> str:
    """``×2.70``; from ten on with one decimal, ``×12.3``."""
    return f"×{ratio:.2f}" if ratio < 9.995 else f"×{ratio:.1f}"


def seconds(value: float) -> str:
    """``27 ms``, ``1.4 s``, ``220 s``."""
    if value >= 1000:
        return f"{value:,.0f} s"
    return f"{value:#.3g}".rstrip(".") + " s" if value >= 1 else f"{value * 1e3:#.3g}".rstrip(".") + " ms"
