"""A sweep: its folder is taken, its jobs are planned and written down, launched, and reported, whatever failed.

All that one part of it tells another lies in the folder: jobs may run in this process, in others, or elsewhere.
"""

from __future__ import annotations

import copy
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.utils import run_job
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from harness.config import asked_by, settled
from harness.config.jobs import refuse_mistakes
from harness.config.options import chosen
from harness.environment import environment
from harness.errors import HarnessError
from harness.files import write_text
from harness.folders import own, results_in
from harness.labels import label, parts
from harness.plan import Job, Plan, plain, read_plan

DIR, SUBDIR = "hydra.sweep.dir", "hydra.sweep.subdir"


class Sweep(BasicSweeper):
    """Hydra sweeper: every combination of the values given, planned before the first one runs.

    A job is composed once, here, and runs as it was planned, by whatever launcher.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.context, self.task, self.composed = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> None:
        """Run the sweep and report it. Ends the program with exit code 1 when a job did not finish.

        Raises:
            HarnessError: the folder is not free, or a job can't be planned; nothing has been written then.
        """
        hydra = self.composed.hydra
        wanted = Path(hydra.sweep.dir).absolute()
        asked_for = any(item.startswith(f"{DIR}=") for item in hydra.overrides.hydra)
        existed = wanted.exists()
        folder, lock = own(wanted, DIR, asked_for)
        with lock:
            try:
                plan = self.plan(folder, arguments)
                plan.write(folder)
            except BaseException:
                lock.release()
                if not existed:
                    with suppress(OSError):
                        folder.rmdir()
                raise
            self.run(folder, plan.jobs)

    def plan(self, folder: Path, arguments: Sequence[str]) -> Plan:
        """Compose and check every job.

        Raises:
            HarnessError: a configuration has a mistake, two jobs have one folder, or theirs is not empty.
        """
        _pin(self.composed, folder)
        values = [f"{key}={value}" for key, value in (self.params or {}).items() if f"~{key}" not in arguments]
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        ((*combinations,),) = self.split_arguments(parser.parse_overrides([*values, *arguments]), None)
        combinations = [chosen(overrides) for overrides in combinations]
        jobs = refuse_mistakes(combinations, self._job)
        names = [job.dir for job in jobs]
        twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
        if twice is not None:
            raise HarnessError(f"{SUBDIR}: two jobs of the sweep would write into {folder / twice}")
        if found := results_in(folder, names):
            raise HarnessError(f"{folder} holds {', '.join(found)}; choose another folder with {DIR}=DIR")
        facts = environment()
        return Plan(jobs, sys.argv[1:], str(Path.cwd()), self.composed.baseline, self.composed.get("figure"),
                    {key: facts[key] for key in ("commit", "dirty", "python", "packages")})  # fmt: skip

    def run(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Launch jobs of a sweep that is planned, and report the whole."""
        try:
            self._launch(jobs)
        except KeyboardInterrupt:
            print("interrupted; reporting what is finished", file=sys.stderr)
            try:
                report(folder)
            except HarnessError as error:
                print(f"error: {error}", file=sys.stderr)
            raise
        if report(folder):
            sys.exit(1)

    def _job(self, number: int, overrides: Sequence[str]) -> Job:
        cfg = self.context.config_loader.load_sweep_config(self.composed, list(overrides))
        with open_dict(cfg):
            cfg.hydra.job.num = cfg.hydra.job.id = number
            HydraConfig.instance().set_config(cfg)  # for interpolations that ask for it
            name = str(cfg.hydra.sweep.subdir)
            del cfg["hydra"]
        cfg = settled(cfg, asked_by(overrides))
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise HarnessError(f"{SUBDIR}={name} is not inside the sweep's folder")
        return Job(name, list(overrides), plain(cfg), {"system": label(cfg), **parts(cfg)})

    def _launch(self, jobs: Sequence[Job]) -> None:
        assert self.launcher is not None
        if isinstance(self.launcher, BasicLauncher):
            for number, job in enumerate(jobs):
                self._here(number, job)
            return
        overrides = [[*job.overrides, _override(SUBDIR, job.dir)] for job in jobs]
        self.launcher.launch(overrides, initial_job_idx=0)

    def _here(self, number: int, job: Job) -> None:
        """Run a job in this process, as Hydra's own launcher does, but for composing it once more."""
        config = copy.deepcopy(self.composed)
        with flag_override(config, ["struct", "readonly"], [False, False]):
            for key in [key for key in config if key != "hydra"]:
                del config[key]
            for key, value in OmegaConf.create(job.config).items_ex(resolve=False):
                config[key] = value
        with open_dict(config.hydra.job):
            config.hydra.job.num = config.hydra.job.id = number
        config.hydra.overrides.task = job.overrides
        config.hydra.sweep.subdir = job.dir
        done = run_job(self.task, config, DIR, SUBDIR, self.context)
        _ = done.return_value  # raises what it raised


def report(folder: Path) -> int:
    """Tables and figures of a sweep; the number of jobs that did not finish.

    Raises:
        HarnessError: nothing of it can be read, or it can't be written; the jobs' own tables are as they were.
    """
    from harness.build import build_scheduler
    from harness.report import report_sweep

    again = f"python -m harness report {shlex.quote(str(folder))}"
    try:
        plan = read_plan(folder)
        baseline, figure = (plan.baseline, plan.figure) if plan else (None, None)
        table = report_sweep(folder, baseline=baseline, build_scheduler=build_scheduler, figure=figure)
    except HarnessError:
        raise
    except OSError as error:
        raise HarnessError(f"the report of {folder} can't be written: {error}; what the jobs measured is in their "
                           f"folders, and `{again}` tries again") from error  # fmt: skip
    except KeyboardInterrupt:
        print(f"the report is not whole: `{again}` makes it", file=sys.stderr)
        raise
    except Exception as error:  # whatever it is, it is not the jobs'
        with suppress(OSError):
            write_text(folder / "report_traceback.txt", traceback.format_exc())
        raise HarnessError(f"the report of {folder} can't be made: {type(error).__name__}: {error}; what the jobs "
                           f"measured is in their folders, and `{again}` tries again") from error  # fmt: skip
    unfinished = int((table["status"] != "finished").sum())
    if unfinished:
        print(f"{unfinished} of {len(table)} jobs did not finish: see {folder}/comparison.csv", file=sys.stderr)
    return unfinished


def _pin(config: DictConfig, folder: Path) -> None:
    """Let every job, wherever it is composed, lie in this folder, whatever the time is there."""
    kept = [item for item in config.hydra.overrides.hydra if not item.startswith((f"{DIR}=", "hydra.sweeper"))]
    config.hydra.overrides.hydra = [*kept, _override(DIR, str(folder))]
    config.hydra.sweep.dir = str(folder)


def _override(key: str, value: str) -> str:
    return f"{key}={QuotedString(value, Quote.single).with_quotes()}"
