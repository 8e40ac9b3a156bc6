"""Tables, figures and a short report from the folders that jobs write."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.console.screen import screen
from harness.errors import HarnessError
from harness.files import write_table, write_text
from harness.report.drawing import draw_all, go_on

if TYPE_CHECKING:  # the imports proper are inside the functions: `import harness.report` costs nothing
    import pandas as pd
    from rich.console import Console

    from harness.report.drawing import Draw
    from harness.report.prediction import BuildScheduler, StepTimes
    from harness.report.sweep import Sweep

NOISY_PCT = 10  # a quiet machine stays well below

__all__ = ["report_job", "report_sweep"]


def report_sweep(folder: Path, console: Console | None = None, baseline: str | None = None,
                 build_scheduler: BuildScheduler | None = None, figure: str | None = None,
                 figures: str = "screen") -> pd.DataFrame:  # fmt: skip
    """Report on a sweep and print its table.

    Writes `comparison.csv`, `two_by_two.csv`, `prediction.csv`, `step_time.json`, `figures/` and `REPORT.md` into the
    folder, and `published.csv` if there are published numbers to go with the figure. Works with incomplete sweeps:
    failed and missing jobs are marked rows, a part of the report that fails is a warning, and a file that can't be
    written does not stop the rest.

    Args:
        folder: contains the job folders, and `plan.json` if jobs were planned.
        console: where to print; None = the terminal.
        baseline: a system's label, or its name in the `system` group; None = the first row's.
        build_scheduler: see `predict_jobs`.
        figure: a module of `harness.report.figures`, drawn instead of the figures that fit any sweep.
        figures: `screen`, or `paper` to draw them also as PDFs for a two-column paper.

    Returns:
        The comparison, one row per job.

    Raises:
        OSError: a table or the text could not be written (a full disk, say); the table was printed all the same.
    """
    from harness.report import figures as figure_modules
    from harness.report import ideal, markdown, prediction
    from harness.report.table import print_table
    from harness.report.two_by_two import two_by_two

    console = console or screen()
    warnings: list[str] = []
    lost: list[OSError] = []  # what could not be written
    sweep = _read(folder, baseline, warnings)
    with go_on("share of the ideal", warnings):
        sweep = ideal.join(sweep)
    _write(folder / "comparison.csv", sweep.table, lost)  # nothing below may lose it
    steps = times = None
    predicted, square = prediction.nothing(), sweep.table.head(0)
    with go_on("step times", warnings):
        timed = any((folder / job / "steps.csv").exists() for job in sweep.table["dir"])  # a server's client has none
        if len(sweep.done) and timed and not sweep.simulated:
            steps = prediction.pooled_steps(folder, sweep.table)
            times = prediction.fit_steps(steps)
            _write(folder / "step_time.json", json.dumps(times.to_dict(), indent=2, allow_nan=False) + "\n", lost)
            if times.held_back_pct > NOISY_PCT:
                warnings.append(f"step times are noisy: {times.noise()}; ratios between jobs are as uncertain")
    with go_on("simulation of the same requests", warnings):
        if times:
            predicted = prediction.predict_jobs(folder, build_scheduler, times)
    with go_on("2 × 2", warnings):
        sweep = sweep.join(predicted.set_index("dir")[prediction.ADDED])
        square = two_by_two(sweep.groups, sweep.table)
    for name, table in (("comparison", sweep.table), ("two_by_two", square), ("prediction", predicted)):
        if len(table) or name == "comparison":
            _write(folder / f"{name}.csv", table, lost)
    with go_on("table", warnings):
        print_table(sweep.table, console, sweep.what_ran, sweep.baseline)
    if times:
        console.print(times.sentence(), style="dim", markup=False, highlight=False)
    beside, pairs, reasons = "", None, list[str]()
    drawers: dict[str, Draw] = {}
    with go_on(f"figure {figure}" if figure else "figures", warnings):
        if figure:
            module = figure_modules.load(figure)
            drawers = {figure: lambda: module.draw(sweep)}
            pairs = figure_modules.table(module.published(sweep))
            if len(pairs):
                _write(folder / "published.csv", pairs, lost)
            for name, text in getattr(module, "files", lambda sweep: {})(sweep).items():
                _write(folder / name, text, lost)
            reasons = module.why(sweep)
            beside = figure_modules.section(pairs, reasons)
        else:
            drawers = _figures(sweep, steps, times)
    drawn = draw_all(folder / "figures", drawers, warnings, figures)
    with go_on("REPORT.md", warnings):
        _write(folder / "REPORT.md", markdown.report_text(sweep, square, times, drawn, warnings) + beside, lost)
    page = None
    with go_on("report page", warnings):
        from harness.report.page import write_page

        page = write_page(sweep, findings=markdown.findings(sweep, square, times), figures=drawn, pairs=pairs,
                          why=reasons, notes=markdown.remarks(sweep, warnings))  # fmt: skip
    for text in warnings:
        console.print(f"warning: {text}", style="yellow", markup=False)
    if lost:
        raise lost[0]
    console.print(f"report: {page or folder / 'REPORT.md'}", markup=False, highlight=False, soft_wrap=True)
    return sweep.table


def report_job(folder: Path, console: Console | None = None, figures: str = "screen") -> None:
    """Print the metrics of a single run and draw its memory, latencies and timeline into `figures/`."""
    from harness.report import latency_cdf, memory_breakdown, timeline
    from harness.report.one_run import print_job

    console = console or screen()
    warnings: list[str] = []
    sweep = _read(folder, None, warnings)
    with go_on("table", warnings):
        print_job(sweep.table, console, sweep.what_ran)
    modules = (memory_breakdown, latency_cdf, timeline)
    drawers: dict[str, Draw] = {m.__name__.rsplit(".", 1)[-1]: partial(m.draw, sweep) for m in modules}
    draw_all(folder / "figures", drawers, warnings, figures)
    page = None
    with go_on("report page", warnings):
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
    except HarnessError as error:  # a misspelt baseline must not cost the report of a finished sweep
        if baseline is None:
            raise
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


def _write(path: Path, content: pd.DataFrame | str, lost: list[OSError]) -> None:
    """Write a table or a text; an error is added to `lost`, and the rest of the report goes on."""
    try:
        write_text(path, content) if isinstance(content, str) else write_table(path, content)
    except OSError as error:
        lost.append(error)
