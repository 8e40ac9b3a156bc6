"""Tables, figures and a short report from the folders that jobs write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError

if TYPE_CHECKING:  # the imports proper are inside the functions: `import harness.report` costs nothing
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import Console

    from harness.report.prediction import BuildScheduler, StepTimes
    from harness.report.sweep import Sweep

    Draw = Callable[[], Figure | None]

NOISY_PCT = 10  # a quiet machine stays well below

__all__ = ["report_job", "report_sweep"]


def report_sweep(folder: Path, console: Console | None = None, baseline: str | None = None,
                 build_scheduler: BuildScheduler | None = None, figure: str | None = None) -> pd.DataFrame:  # fmt: skip
    """Report on a sweep and print its table.

    Writes `comparison.csv`, `two_by_two.csv`, `prediction.csv`, `step_time.json`, `figures/` and `REPORT.md` into the
    folder, and `published.csv` if the figure asked for has published numbers beside it. Works with what is there:
    failed and missing jobs are marked rows; a part that fails is a warning.

    Args:
        folder: contains the job folders, and `plan.json` if jobs were planned.
        console: where to print; None = the terminal.
        baseline: a system's label, or its name in the `system` group; None = the first row's.
        build_scheduler: see `predict_jobs`.
        figure: a module of `harness.report.figures`, drawn instead of the figures that fit any sweep.

    Returns:
        The comparison, one row per job.
    """
    from harness.report import figures as figure_modules
    from harness.report import ideal, markdown, prediction
    from harness.report.table import print_table
    from harness.report.two_by_two import two_by_two

    console = console or _console()
    warnings: list[str] = []
    sweep = ideal.join(_read(folder, baseline, warnings))
    sweep.table.to_csv(folder / "comparison.csv", index=False)  # nothing below may lose it
    steps = times = None
    predicted = prediction.nothing()
    with _go_on("step times", warnings):
        if len(sweep.done) and not sweep.simulated:
            steps = prediction.pooled_steps(folder, sweep.table)
            times = prediction.fit_steps(steps)
            _write_json(folder / "step_time.json", times.to_dict())
            if times.held_back_pct > NOISY_PCT:
                warnings.append(f"step times are noisy (a fitted model misses them by {times.held_back_pct:.0f} %, "
                                "median): was the machine busy? Then ratios are noisy, too")  # fmt: skip
    with _go_on("simulation of the same requests", warnings):
        if times:
            predicted = prediction.predict_jobs(folder, build_scheduler, times)
    sweep = sweep.join(predicted.set_index("dir")[prediction.ADDED])
    square = two_by_two(sweep.groups)
    for name, table in (("comparison", sweep.table), ("two_by_two", square), ("prediction", predicted)):
        if len(table) or name == "comparison":
            table.to_csv(folder / f"{name}.csv", index=False)
    print_table(sweep.table, console)
    if times:
        console.print(times.sentence(), style="dim", markup=False, highlight=False)
    beside, pairs, reasons = "", None, list[str]()
    drawers = {} if figure else _figures(sweep, steps, times)
    with _go_on(f"figure {figure}", warnings):
        if figure:
            module = figure_modules.load(figure)
            drawers = {figure: lambda: module.draw(sweep)}
            pairs = figure_modules.table(module.published(sweep))
            if len(pairs):
                pairs.to_csv(folder / "published.csv", index=False)
            for name, text in getattr(module, "files", lambda sweep: {})(sweep).items():
                (folder / name).write_text(text)
            reasons = module.why(sweep)
            beside = figure_modules.section(pairs, reasons)
    figures = _draw(folder, drawers, warnings)
    (folder / "REPORT.md").write_text(markdown.report_text(sweep, square, times, figures, warnings) + beside)
    page = None
    with _go_on("report page", warnings):
        from harness.report.page import write_page

        page = write_page(sweep, findings=markdown.findings(sweep, square, times), figures=figures, pairs=pairs,
                          why=reasons, notes=markdown.remarks(sweep, warnings))  # fmt: skip
    for text in warnings:
        console.print(f"warning: {text}", style="yellow", markup=False)
    console.print(f"report: {page or folder / 'REPORT.md'}", markup=False, highlight=False, soft_wrap=True)
    return sweep.table


def report_job(folder: Path, console: Console | None = None) -> None:
    """Print the metrics of a single run and draw its memory, latencies and timeline into `figures/`."""
    from harness.report import latency_cdf, memory_breakdown, timeline
    from harness.report.table import print_job

    console = console or _console()
    warnings: list[str] = []
    sweep = _read(folder, None, warnings)
    print_job(sweep.table, console, sweep.what_ran)
    drawers = {module.__name__.rsplit(".", 1)[-1]: module.draw for module in (memory_breakdown, latency_cdf, timeline)}
    _draw(folder, {name: lambda draw=draw: draw(sweep) for name, draw in drawers.items()}, warnings)  # type: ignore[misc]
    page = None
    with _go_on("report page", warnings):
        from harness.report.page import write_page
        from harness.report.table import notes

        page = write_page(sweep, findings=[], notes=[*notes(sweep.table, sweep.groups), *warnings])
    for text in warnings:
        console.print(f"warning: {text}", style="yellow", markup=False)
    said = f"report: {page}" if page else f"figures: {folder / 'figures'}"
    console.print(f"tables: {folder}, {said}", markup=False, highlight=False, soft_wrap=True)


def _read(folder: Path, baseline: str | None, warnings: list[str]) -> Sweep:
    from harness.report.sweep import Sweep

    try:
        return Sweep.read(folder, baseline)
    except HarnessError as error:  # what was measured must not be lost for a misspelt baseline
        warnings.append(f"{error}; ratios are against the first row")
        return Sweep.read(folder)


def _figures(sweep: Sweep, steps: pd.DataFrame | None, times: StepTimes | None) -> dict[str, Draw]:
    """Every figure by its file name, not drawn yet."""
    from harness.report import (
        latency_cdf,
        memory_breakdown,
        step_time,
        sweep_lines,
        throughput_latency,
        timeline,
        two_by_two,
    )

    figures: dict[str, Draw] = {
        "throughput_latency": lambda: throughput_latency.draw(sweep),
        "memory_breakdown": lambda: memory_breakdown.draw(sweep),
        "two_by_two": lambda: two_by_two.draw(sweep),
        "timeline": lambda: timeline.draw(sweep),
        "latency_cdf": lambda: latency_cdf.draw(sweep),
    }
    for key in sweep_lines.axes_of(sweep):
        figures[f"sweep_{key.replace('.', '_').replace('/', '_')}"] = lambda key=key: sweep_lines.draw(sweep, key)  # type: ignore[misc]
    if steps is not None and times is not None:
        figures["step_time"] = lambda: step_time.draw(sweep, steps, times)
    return figures


def _draw(folder: Path, figures: dict[str, Draw], warnings: list[str]) -> list[Path]:
    """Draw what can be drawn as PNG and SVG; the PNGs."""
    import matplotlib

    from harness.report.style import RC

    paths = []
    with matplotlib.rc_context(RC):
        for name, draw in figures.items():
            with _go_on(f"figure {name}", warnings):
                figure = draw()
                if figure is None:
                    continue
                path = folder / "figures" / f"{name}.png"
                path.parent.mkdir(exist_ok=True)
                figure.savefig(path, dpi=150)
                figure.set_layout_engine("none")  # as laid out; once is enough
                figure.savefig(path.with_suffix(".svg"), dpi=150, metadata={"Date": None})
                paths.append(path)
    return paths


@contextmanager
def _go_on(what: str, warnings: list[str]) -> Iterator[None]:
    """A part that fails becomes a warning with its name; the others are still made."""
    try:
        yield
    except Exception as error:  # whatever it is, the rest of the report is worth more
        known = isinstance(error, HarnessError)
        warnings.append(f"{what}: {error}" if known else f"{what}: {type(error).__name__}: {error}")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=100)  # a pipe has no width of its own
