"""The report of `experiment=validate`: predicted beside measured in every variant, printed, drawn and written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.console.screen import screen
from harness.files import records, write_text
from harness.report.drawing import Draw, draw_all
from harness.report.style import frame, new_figure, plain_log
from harness.validate.engine import Engine, Setting
from harness.validate.measured import Measured
from harness.validate.predict import METRICS, Prediction, Variant, mean_error

MEASURED, PREDICTED, OTHERS = "#222222", "#D55E00", "#b5b5b5"
UNITS = {"TTFT": ("s", 1e-3), "TPOT": ("ms", 1.0), "E2E": ("s", 1e-3)}
TITLES = {"TTFT": "Time to first token", "TPOT": "Time per further token", "E2E": "End to end"}


@dataclass(slots=True)
class Validation:
    """All results of a predicted run.

    Attributes:
        predictions: one per variant, the headline first.
        tables: `figures` of each variant.
        settings: the engine's settings and their sources.
        why: why this variant is the headline.
        notes: what a reader must know beside the numbers.
        published: mean |error| that LLMServingSim reports for the same run from the same tables; None without one.
        missing: a part of every step that was left out, so that there is no headline; None = nothing was left out.
    """

    measured: Measured
    engine: Engine
    profile: Path
    predictions: list[Prediction]
    tables: dict[Variant, pd.DataFrame]
    settings: list[Setting]
    why: list[str]
    notes: list[str]
    published: float | None
    missing: str | None = None

    @property
    def status(self) -> list[str]:
        """A line if a part of every step is missing, so that the numbers are no prediction."""
        return [f"Status: incomplete, no headline: {self.missing}."] if self.missing else []

    @property
    def headline(self) -> pd.DataFrame:
        return self.tables[self.predictions[0].variant]

    @property
    def summary(self) -> str:
        """The result in a sentence."""
        count, requests = len(self.headline), len(self.measured.table)
        said = "incomplete, a part of each step is missing; " if self.missing else ""
        said += f"mean |error| of {count} figures over {requests} requests: {mean_error(self.headline):.2f} %"
        if self.published is not None:
            said += f" (LLMServingSim from the same tables: {self.published:.2f} %)"
        return said


def report(result: Validation, folder: Path, console: Console | None = None) -> None:
    """Print the tables, draw `figures/validate` and, if the engine counted, `figures/over_time` (PNG and SVG), and
    write `REPORT.md`.

    Args:
        folder: with `steps.csv` of the headline.
    """
    figures: dict[str, Draw] = {
        "validate": lambda: draw(result),
        "over_time": lambda: draw_over_time(result, pd.read_csv(folder / "steps.csv")),
    }
    drawn = {path.stem for path in draw_all(folder / "figures", figures, result.notes)}
    text = markdown(result) + ("\n![](figures/over_time.png)\n" if "over_time" in drawn else "")
    write_text(folder / "REPORT.md", text)
    console = console or screen(120)
    for line in result.status:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for title, headers, rows in (_figures(result), _variants(result), _settings(result)):
        view = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title=title, title_justify="left",
                     title_style="bold")  # fmt: skip
        for i, header in enumerate(headers):
            left = title == SETTINGS or not i
            view.add_column(header, justify="left" if left else "right", overflow="fold")
        for row in rows:
            view.add_row(*map(Text, row))
        console.print(view)
        console.print()
    lines = [f"meta file: {result.engine.path or 'none beside the run'}",
             "The headline is the variant of the run's own settings:", *(f"  {why}" for why in result.why)]  # fmt: skip
    for line in [*lines, *(f"note: {note}" for note in result.notes), result.summary]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


SETTINGS = "Settings"


def _figures(result: Validation) -> tuple[str, list[str], list[list[str]]]:
    rows = []
    for row in records(result.headline):
        unit, scale = UNITS[row["metric"]]
        rows.append([f"{row['metric']} {row['statistic']}, {unit}", _number(row["measured_ms"] * scale),
                     _number(row["predicted_ms"] * scale), _percent(row["error_pct"])])  # fmt: skip
    title = f"Headline: {result.predictions[0].variant.label}"
    if result.missing:
        title = f"No headline, {result.missing} ({result.predictions[0].variant.label})"
    return title, ["", "measured", "predicted", "error %"], rows


def _variants(result: Validation) -> tuple[str, list[str], list[list[str]]]:
    """Every variant, in one table."""
    rows = []
    for i, prediction in enumerate(result.predictions):
        table = result.tables[prediction.variant]
        parts = [mean_error(part) if len(part := table[table["metric"] == metric]) else None for metric in METRICS]
        worst = max(records(table), key=lambda row: abs(row["error_pct"] or 0.0))
        facts = prediction.facts
        hits = facts["prefix_hit_pct"]
        rows.append([
            prediction.variant.label + ("" if i else " (the run's own)" if result.missing else " (headline)"),
            f"{mean_error(table):.2f}",
            *("–" if part is None else f"{part:.2f}" for part in parts),
            f"{_percent(worst['error_pct'])} {worst['metric']} {worst['statistic']}",
            f"{facts['preemptions']:,}", "–" if hits is None else f"{hits:.1f}",
        ])  # fmt: skip
    headers = ["variant", "mean |error| %", *METRICS, "worst", "preempted", "hits %"]
    title = "All variants, none chosen by its result"
    return title + (", all without a part of the step" if result.missing else ""), headers, rows


def _settings(result: Validation) -> tuple[str, list[str], list[list[str]]]:
    version, freed = result.engine.rules
    rows = [[setting.name, _value(setting.value), setting.source] for setting in result.settings]
    rows.append(["rules", f"vLLM {version}", f"of that version; freed blocks go to the {freed} of the free list"])
    return SETTINGS, ["setting", "value", "from"], rows


def _value(value: object) -> str:
    return f"{value:,}" if type(value) is int else str(value).lower() if type(value) is bool else str(value)


def _number(value: float) -> str:
    return f"{value:,.3f}" if value >= 1 else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "–" if value is None or pd.isna(value) else f"{value:+.2f}"


def markdown(result: Validation) -> str:
    """The report as text."""
    lines = ["# Predicted beside measured", "", *(f"**{line}**\n" for line in result.status),
             f"Run: `{result.measured.path}`. Tables: `{result.profile}`.", "",
             f"{result.summary[0].upper()}{result.summary[1:]}.", "", "![](figures/validate.png)", ""]  # fmt: skip
    for title, headers, rows in (_figures(result), _variants(result), _settings(result)):
        lines += [f"# {title}", ""]
        for cells in (headers, ["---"] * len(headers), *rows):
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines += ["# Why this headline", "", *(f"- {why}" for why in result.why), "", "# Keep in mind", ""]
    lines += [f"- {note}" for note in [*result.notes, *RULES]]
    return "\n".join(lines) + "\n"


RULES = (
    "TTFT and E2E count from the queue stamp on both sides: the moment at which the engine, between two steps, looks "
    "at what has arrived. Requests come at `arrival_time` plus the smallest offset to it.",
    "A step is the sum of its kernels as measured one by one; nothing was fitted to the latencies, and the host's own "
    "work counts nothing.",
    "One block of the pool more or less, or half a percent of step time, moves the mean |error| by some tenths: a lead "
    "of one variant over another by less means nothing.",
)


def draw(result: Validation) -> Figure:
    """Cumulative curves of measured and predicted above, the errors of all figures below."""
    fig = new_figure(12, 8)
    rows = fig.subplots(2, 3, height_ratios=(3, 2))
    headline, *others = result.predictions
    for (metric, column), ax, below in zip(METRICS.items(), rows[0], rows[1], strict=True):
        unit, scale = UNITS[metric]
        there = result.measured.table[column].notna()
        for other in others:
            _curve(ax, other.requests[column][there] * scale, OTHERS, 0.8, "-")
        _curve(ax, result.measured.table[column] * scale, MEASURED, 2.6, "-")
        _curve(ax, headline.requests[column][there] * scale, PREDICTED, 1.6, (0, (3, 1.2)))
        ax.set(title=TITLES[metric], xlabel=unit, ylim=(0, 101))
        low, high = ax.dataLim.intervalx
        if np.isfinite(high) and low > 0 and high / low > 30:
            plain_log(ax, high / low)
        ax.grid()
        _errors(below, result, metric)
    rows[0][0].set_ylabel("requests within this time, %")
    rows[1][0].set_ylabel("predicted against measured, %")
    handles = [
        Line2D([], [], color=MEASURED, linewidth=2.6, label="measured"),
        Line2D(
            [],
            [],
            color=PREDICTED,
            linewidth=1.6,
            linestyle=(0, (3, 1.2)),
            marker="o",
            label=f"predicted, {'incomplete' if result.missing else 'headline'}: {headline.variant.label}",
        ),
    ]
    if others:
        handles.append(Line2D([], [], color=OTHERS, linewidth=0.8, marker="o", markersize=4,
                              label=f"the {len(others)} other variants"))  # fmt: skip
    what = f"{result.measured.path.name}, {len(result.measured.table)} requests, "
    caption = "Curves: the share of requests that were at least that fast. Points: relative error of each figure."
    summary = f"{mean_error(result.headline):.2f} % mean error of {len(result.headline)} latency figures"
    if result.published is not None:
        what += f"LLMServingSim from the same tables: {result.published:.2f} %, "
    title = f"Predicted from measured kernels: {summary}"
    if result.missing:
        title = f"Incomplete, a part of each step is missing: {summary}"
    return frame(fig, title, what + f"vLLM {result.engine['vllm_version']}",
                 caption, handles)  # fmt: skip


def draw_over_time(result: Validation, steps: pd.DataFrame) -> Figure | None:
    """Running and waiting requests, as the engine counted them and as predicted; None if it did not count."""
    series = result.measured.series
    if series is None:
        return None
    fig = new_figure(12, 4.6)
    means = []
    for name, column, ax in zip(("running", "waiting"), ("num_seqs", "waiting"), fig.subplots(1, 2), strict=True):
        at = np.searchsorted(steps["start_s"], series["t"], side="right") - 1
        predicted = steps[column].to_numpy()[np.maximum(at, 0)]
        means.append(f"{name} {series[name].mean():.1f} measured, {predicted.mean():.1f} predicted")
        ax.plot(series["t"], series[name], color=MEASURED, linewidth=2.6, label="measured")
        ax.plot(series["t"], predicted, color=PREDICTED, linewidth=1.6, linestyle=(0, (3, 1.2)), label="predicted")
        ax.set(title=f"Requests {name}", xlabel="s", xlim=(0, None), ylim=(0, None))
        ax.grid()
    caption = "Measured: the engine's own counters, once a second. Predicted: the step at that moment, from the "
    return frame(fig, "How many requests run and wait", "Mean: " + "; ".join(means),
                 caption + "first arrival on.", fig.axes[0].get_lines())  # fmt: skip


def _curve(ax: Axes, values: pd.Series, color: str, width: float, dash: object) -> None:
    there = np.sort(values.dropna().to_numpy(np.float64))
    if len(there):
        share = 100 * np.arange(len(there) + 1) / len(there)
        ax.step(np.concatenate([there[:1], there]), share, where="post", color=color, linewidth=width, linestyle=dash)


def _errors(ax: Axes, result: Validation, metric: str) -> None:
    headline = result.predictions[0].variant
    for variant, table in reversed(result.tables.items()):
        part = table[table["metric"] == metric]
        mine = variant == headline
        ax.plot(part["statistic"], part["error_pct"], "o", color=PREDICTED if mine else OTHERS,
                markersize=7 if mine else 4, zorder=3 if mine else 2)  # fmt: skip
        if mine:
            for at, error in zip(part["statistic"], part["error_pct"], strict=True):
                ax.annotate(f"{error:+.1f}", (at, error), xytext=(9, 0), textcoords="offset points", va="center",
                            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
                            fontsize=8.5, color=PREDICTED)  # fmt: skip
    ax.axhline(0, color=MEASURED, linewidth=1)
    ax.set_xlim(-0.5, 4.9)
    ax.margins(y=0.12)
    ax.grid(axis="y")
