"""`python -m harness` runs a job, or the sweep of an experiment.

`python -m harness inspect FILE` describes a trace; `python -m harness compile` compiles the simulation (optional);
`python -m harness check` compares what our runner says of a model with what the model says by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from harness import compiled
from harness.errors import HarnessError
from harness.labels import class_name

if TYPE_CHECKING:
    from collections.abc import Callable

FAILED: list[Path] = []  # folders of jobs that failed in this process
EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
OmegaConf.register_new_resolver("either", lambda one, other: one or other, replace=True)
OmegaConf.register_new_resolver("class", class_name, replace=True)
OmegaConf.register_new_resolver("repository", lambda: str(EXPERIMENTS.parent), replace=True)


@hydra.main(version_base="1.3", config_path=str(EXPERIMENTS), config_name="config")
def run(cfg: DictConfig) -> None:
    """One job, as Hydra calls it; a job of a sweep that fails leaves its mark and lets the sweep go on."""
    if cfg.simulation.compiled:
        compiled.use()  # before anything of it is imported
    from harness.job import run_job

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    sweep = hydra_config.mode == RunMode.MULTIRUN
    with _progress(f"job {hydra_config.job.num} " if sweep else "") as progress:
        row = run_job(cfg, folder, list(hydra_config.overrides.task), progress)
    if row["status"] != "finished":
        name = f"job {hydra_config.job.num}, {row['system']}" if sweep else "error"
        print(f"{name}: {row['error']}\n  details: {folder / 'traceback.txt'}", file=sys.stderr)
        FAILED.append(folder)
    elif not sweep and cfg.task == "harness.job.serve":
        from harness.report import report_job

        report_job(folder)
    elif not sweep:
        print(f"written to {folder}")


def main() -> None:
    """The command line. Exit codes: 0 all well, 1 a job failed, 2 a mistake to mend, 130 interrupted."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        if len(sys.argv) > 1 and sys.argv[1] == "inspect":
            _inspect(sys.argv[2:])
        elif len(sys.argv) > 1 and sys.argv[1] == "compile":
            if len(sys.argv) > 2:
                raise HarnessError("usage: python -m harness compile")
            print(f"written to {compiled.build()}")
        elif len(sys.argv) > 1 and sys.argv[1] == "check":
            from harness.check import main as check
            from harness.mistakes import explained

            with explained(EXPERIMENTS):
                sys.exit(check(sys.argv[2:], EXPERIMENTS))
        else:
            from harness.mistakes import explained

            # Flags first: argparse takes the overrides in one piece only.
            sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))
            with explained(EXPERIMENTS):
                run()
            from harness.sweep import report

            FAILED.extend([Path()] * report())
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        from harness.sweep import report

        print("interrupted; reporting what is finished", file=sys.stderr)
        report()
        sys.exit(130)
    if FAILED:
        sys.exit(1)


def _inspect(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise HarnessError("usage: python -m harness inspect FILE")
    from harness.workload.inspect import inspect_file

    inspect_file(Path(arguments[0]))


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int], Any] | None]:
    """A progress bar with rate and time left on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:

        def begin(total: int) -> Callable[[int, int], None]:
            task = bar.add_task(f"{title}requests", total=total, rate="")

            def update(over: int, tokens: int) -> None:
                elapsed = bar.tasks[task].elapsed or 0.0
                rate = f"{tokens / elapsed:,.0f} tok/s" if elapsed else ""
                bar.update(task, completed=over, rate=rate)

            return update

        yield begin


if __name__ == "__main__":
    main()
