"""What Hydra calls for a job, in this process or another: the job itself, and what its end means for the program."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from harness import compiled
from harness.config import asked_by, settle, settled
from harness.console import surroundings
from harness.errors import HarnessError, answer
from harness.files import named, write_json
from harness.folders.owner import Lock, acquire, clear
from harness.folders.plan import PLAN, Plan, has_ended, read_plan
from harness.sweeps.launchers import STOPPED


def run(cfg: DictConfig) -> None:
    """One job. A job of a sweep that fails leaves its mark and lets the sweep go on; a job alone ends the program."""
    surroundings.settle()  # of this process, which may be a launcher's
    hydra_config = HydraConfig.get()
    folder, overrides = Path(hydra_config.runtime.output_dir), list(hydra_config.overrides.task)
    if hydra_config.mode == RunMode.MULTIRUN:
        here = str(hydra_config.launcher._target_).endswith(".BasicLauncher")
        run_planned(cfg, folder, Path(hydra_config.sweep.dir), overrides, here)
        return
    asked_for = any(item.startswith("hydra.run.dir=") for item in hydra_config.overrides.hydra)
    try:
        run_alone(cfg, folder, asked_for, overrides)
    except HarnessError as error:  # Hydra would say more
        answer(error)


def run_planned(cfg: DictConfig, folder: Path, sweep: Path, overrides: list[str], here: bool) -> None:
    """A job of a sweep, as it was planned, unless it is over already; what an earlier try has left is removed.

    It raises nothing but an interrupt: launchers differ in what they make of an exception.

    Args:
        here: the sweep's own process runs it, and may show how far it is.
    """
    if (sweep / STOPPED).exists():
        return
    row: dict[str, Any] | None = {"system": f"job {folder.name}", "status": "failed", "overrides": overrides}
    try:
        plan = read_plan(sweep)
        if plan:
            job = plan.job(str(folder.relative_to(sweep)))
            row |= job.names  # type: ignore[operator]
            cfg, overrides = job.cfg, job.overrides
        else:
            cfg, _ = settle(cfg)
        title = (_place(folder, sweep, plan) if plan else "") if here and sys.stderr.isatty() else None
        row = _run_once(cfg, folder, overrides, title)
    except Exception as error:
        row["error"] = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"  # type: ignore[index]
        with suppress(OSError):
            write_json(folder / "summary.json", row)
    if row and row["status"] != "finished":
        print(_failure(f"job {folder.name}, {row['system']}", row, folder), file=sys.stderr)


def _run_once(cfg: DictConfig, folder: Path, overrides: list[str], title: str | None) -> dict[str, Any] | None:
    """Run a job that is not over, when nobody else is at it; None = it was over."""
    lock = Lock.of(folder, wait=True)
    assert lock
    with lock:
        if has_ended(folder):
            return None
        with named(folder):
            clear(folder)
        return _run(cfg, folder, overrides, title)


def _place(folder: Path, sweep: Path, plan: Plan) -> str:
    """Where in its sweep a job is, and how long the rest may take, if jobs take as long as those before."""
    names = [job.dir for job in plan.jobs]
    done, of = sum((sweep / name / "summary.json").exists() for name in names), len(names)
    left = (time.time() - (sweep / PLAN).stat().st_mtime) / done * (of - done) if done else 0.0
    return f"job {names.index(str(folder.relative_to(sweep))) + 1} of {of}{f', {left:.0f} s left' if left else ''}: "


def run_alone(cfg: DictConfig, folder: Path, asked_for: bool, overrides: list[str]) -> None:
    """The only job, with its report; ends the program with exit code 1 when it fails.

    Raises:
        HarnessError: the configuration has a mistake, or the folder is not free.
    """
    try:
        cfg = settled(cfg, asked_by(overrides))
    except HarnessError:
        with suppress(OSError):
            folder.rmdir()  # Hydra made it
        raise
    folder, lock = acquire(folder, "hydra.run.dir", asked_for)
    with lock:
        try:
            row = _run(cfg, folder, overrides)
        except KeyboardInterrupt:
            print(f"interrupted; what was measured until then is in {folder}", file=sys.stderr)
            raise
        if row["status"] != "finished":
            print(_failure("error", row, folder), file=sys.stderr)
            sys.exit(1)
        if cfg.task == "harness.job.serve":
            from harness.report import report_job

            report_job(folder, figures=cfg.figures)
        else:
            print(f"written to {folder}")


def _failure(who: str, row: dict[str, Any], folder: Path) -> str:
    details = folder / "traceback.txt"
    return f"{who}: {row['error']}" + (f"\n  details: {details}" if details.exists() else f"\n  tables: {folder}")


def _run(cfg: DictConfig, folder: Path, overrides: list[str], title: str | None = "") -> dict[str, Any]:
    if cfg.simulation.compiled:
        compiled.use()  # before anything of it is imported
    from harness.job import run_job

    with _progress(title) as progress:
        return run_job(cfg, folder, overrides, progress)


@contextmanager
def _progress(title: str | None) -> Iterator[Callable[[int], Any] | None]:
    """A progress bar with rate and time left on a terminal; nothing elsewhere."""
    if title is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{title}setting up", total=None, rate="")

        def begin(total: int) -> Callable[[int, int], None]:
            bar.reset(task, description=f"{title}requests", total=total)

            def update(over: int, tokens: int) -> None:
                elapsed = bar.tasks[task].elapsed or 0.0
                rate = f"{tokens / elapsed:,.0f} tok/s" if elapsed else ""
                bar.update(task, completed=over, rate=rate)

            return update

        yield begin
