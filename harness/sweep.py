"""Around a sweep: what is planned is written down before, and what there is gets reported after, whatever failed.

The report is no callback: Hydra turns what a callback raises into a warning.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from harness.errors import HarnessError


class Sweep(Callback):
    """Hydra callback: writes `plan.json` before the first job and remembers the sweep under way."""

    folder: Path | None = None  # of the sweep under way in this process
    baseline: str | None = None
    figure: str | None = None  # what its report draws

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        plan = [{"dir": str(n), "overrides": overrides} for n, overrides in enumerate(planned(config))]
        (folder / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
        Sweep.folder, Sweep.baseline, Sweep.figure = folder, config.baseline, config.get("figure")


def planned(config: DictConfig) -> list[list[str]]:
    """The overrides of every job, in the order of Hydra's basic sweeper: the experiment's, narrowed by the user's."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    values = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    parsed = OverridesParser.create().parse_overrides([*values, *config.hydra.overrides.task])
    return [job for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]


def report() -> int:
    """Tables and figures of the sweep under way; the number of jobs that did not finish.

    Raises:
        HarnessError: nothing of it can be read.
    """
    if Sweep.folder is None:
        return 0
    from harness.build import build_scheduler
    from harness.report import report_sweep

    folder, Sweep.folder = Sweep.folder, None
    try:
        table = report_sweep(folder, baseline=Sweep.baseline, build_scheduler=build_scheduler, figure=Sweep.figure)
    except OSError as error:
        raise HarnessError(f"the report of {folder} can't be written: {error}") from error
    unfinished = int((table["status"] != "finished").sum())
    if unfinished:
        print(f"{unfinished} of {len(table)} jobs did not finish: see {folder}/comparison.csv", file=sys.stderr)
    return unfinished
