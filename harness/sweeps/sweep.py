"""A sweep: its folder is taken, its jobs are planned and written down, launched, and reported, whatever failed.

All that one part of it tells another lies in the folder: jobs may run in this process, in others, or elsewhere.
"""

from __future__ import annotations

import gc
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.core.utils import env_override
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from harness.config import asked_by, check
from harness.config.options import chosen
from harness.errors import HarnessError
from harness.files import write_json, write_text
from harness.folders.owner import acquire, has_started, lock_owner, results_in
from harness.folders.plan import Job, Plan, has_ended, plain, read_plan
from harness.naming.labels import names
from harness.schema.keys import KEYS
from harness.sweeps import launchers
from harness.sweeps.jobs import refuse_mistakes
from harness.sweeps.resume import code, jobs_left

DIR, SUBDIR = "hydra.sweep.dir", "hydra.sweep.subdir"
MOST_TRIES = 2  # of a job whose process dies
LAUNCHERS = {"joblib": "joblib", "ray": "ray", "submitit_slurm": "slurm", "submitit_local": "slurm"}  # and their extras
REPEATED = ("repeat", "seed")  # what sets repeats of a job apart
CLEAR_AFTER = 200  # jobs
MAPPED = 24  # jobs of a sweep that keep a memory map: a page shows no more pools


class Sweep(Sweeper):
    """Hydra sweeper: every combination of the values given, planned before the first one runs.

    A job is composed once, here, and runs as it was planned, by whatever launcher.
    """

    launcher: Any

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None = None, resume: bool = False) -> None:
        self.params, self.resume = params or {}, resume

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        try:
            self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)
        except (RuntimeError, ImportError) as error:
            name = config.hydra.runtime.choices["hydra/launcher"]
            needs = f"it needs a package: pip install 'kvlab[{LAUNCHERS[name]}]'" if name in LAUNCHERS else str(error)
            raise HarnessError(f"hydra/launcher={name}: {needs.strip()}") from error
        self.hydra_context = self.context = hydra_context
        self.config = self.composed = config
        self.task = task_function

    @property
    def here(self) -> bool:
        """Whether this process runs the jobs."""
        return type(self.launcher).__name__ == "BasicLauncher"

    def sweep(self, arguments: list[str]) -> None:
        """Run the sweep, or what is left of it, and report it. Ends the program with code 1 when a job did not finish.

        Raises:
            HarnessError: the folder is not free, or a job can't be planned; nothing has been written then.
        """
        hydra = self.composed.hydra
        wanted = Path(hydra.sweep.dir).absolute()
        if self.resume:
            with jobs_left(wanted) as (plan, left):
                _pin(self.composed, wanted)
                launchers.prepare(self.launcher, left)
                self.run(wanted, plan, left)
            return
        asked_for = any(item.startswith(f"{DIR}=") for item in hydra.overrides.hydra)
        existed = wanted.exists()
        folder, lock = acquire(wanted, DIR, asked_for)
        with lock:
            try:
                plan = self.plan(folder, arguments)
                launchers.prepare(self.launcher, plan.jobs)
                plan.write(folder)
            except BaseException:
                lock.release()
                if not existed:
                    with suppress(OSError):
                        folder.rmdir()
                raise
            self.run(folder, plan, plan.jobs)

    def plan(self, folder: Path, arguments: Sequence[str]) -> Plan:
        """Compose and check every job.

        Raises:
            HarnessError: a configuration has a mistake, two jobs have one folder, or theirs is not empty.
        """
        _pin(self.composed, folder)
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # Hydra may load it anew

        params = {key: value for key, value in self.params.items() if self.composed.repeats == 1 or key not in REPEATED}
        values = [f"{key}={value}" for key, value in params.items() if f"~{key}" not in arguments]
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        ((*combinations,),) = BasicSweeper.split_arguments(parser.parse_overrides([*values, *arguments]), None)
        combinations = [chosen(overrides) for overrides in combinations]
        jobs = refuse_mistakes(_in_turn(combinations, self.composed), self._job)
        names = [job.dir for job in jobs]
        twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
        if twice is not None:
            raise HarnessError(f"{SUBDIR}: two jobs of the sweep would write into {folder / twice}")
        if found := results_in(folder, names):
            raise HarnessError(f"{folder} holds {', '.join(found)}; choose another folder with {DIR}=DIR")
        draws = (self.composed.baseline, self.composed.get("figure"), self.composed.figures)
        return Plan(jobs, sys.argv[1:], str(Path.cwd()), *draws, code())

    def run(self, folder: Path, plan: Plan, jobs: Sequence[Job]) -> None:
        """Launch jobs of a sweep that is planned, and report the whole."""
        try:
            self._launch(folder, jobs)
        except KeyboardInterrupt:
            print("interrupted; reporting what is finished", file=sys.stderr)
            try:
                if not self.here:
                    launchers.stop(self.launcher, folder, [job.dir for job in plan.jobs])
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
        HydraConfig.instance().cfg = cast(Any, cfg)  # for interpolations that ask for it
        name = str(cfg.hydra.sweep.subdir)
        cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        if number >= MAPPED and cfg.memory_map == "auto":
            cfg.memory_map = False
        if mistakes := check(cfg, asked_by(overrides)):
            raise HarnessError("\n".join(mistakes))
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise HarnessError(f"{SUBDIR}={name} is not inside the sweep's folder")
        return Job(name, list(overrides), plain(cfg), names(cfg))

    def _launch(self, folder: Path, jobs: Sequence[Job]) -> None:
        if self.here:
            self._one_by_one(folder, jobs)
        elif jobs:
            watch = launchers.Watch(self.launcher, folder, [job.dir for job in jobs])
            try:
                with watch:
                    self._elsewhere(folder, jobs)
            except KeyboardInterrupt:
                if not watch.trouble:
                    raise
                print(f"error: {watch.trouble}", file=sys.stderr)
                launchers.stop(self.launcher, folder, [job.dir for job in jobs])
            finally:
                launchers.leave()

    def _elsewhere(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Let other processes run the jobs; what a process that died had begun is run once more, then given up."""
        tries: Counter[str] = Counter()
        left = list(jobs)
        while left:
            try:
                self.launcher.launch([self._asked(job) for job in left], initial_job_idx=0)
                return
            except Exception as error:  # the launcher's: a job's own errors are in its folder
                before, left = left, _what_died(folder, left, tries, error)
                if left == before and not tries:
                    raise HarnessError(f"the launcher failed: {type(error).__name__}: {error}") from error

    def _asked(self, job: Job) -> list[str]:
        """The overrides that a launcher composes a job with; what runs is the plan's."""
        return [*([] if self.resume else job.overrides), override(SUBDIR, job.dir)]

    def _one_by_one(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Run jobs in this process.

        As Hydra's own launcher does, but for what a planned job has no use for: being composed once more, five copies
        of its configuration (half of the time of a small job), a log, and another working folder.
        """
        told = OmegaConf.masked_copy(self.composed, "hydra")
        OmegaConf.set_struct(told, False)
        OmegaConf.set_readonly(told.hydra, False)
        before, HydraConfig.instance().cfg = HydraConfig.instance().cfg, cast(Any, told)
        try:
            for number, job in enumerate(jobs):
                told.hydra.job.num = told.hydra.job.id = number
                told.hydra.overrides.task = job.overrides
                told.hydra.sweep.subdir = job.dir
                told.hydra.runtime.output_dir = str(folder / job.dir)
                with env_override(told.hydra.job.env_set):
                    self.task(told)
                if number % CLEAR_AFTER == CLEAR_AFTER - 1:
                    gc.collect()  # configurations are cycles, and a job's own seldom make the collector look
        finally:
            HydraConfig.instance().cfg = before


def report(folder: Path, figures: str | None = None) -> int:
    """Tables and figures of a sweep; the number of jobs that did not finish.

    Args:
        figures: how figures are drawn; None = as was planned.

    Raises:
        HarnessError: nothing of it can be read, or it can't be written; the jobs' own tables are as they were.
    """
    from harness.report import report_sweep

    again = f"python -m harness report {shlex.quote(str(folder))}"
    try:
        plan = read_plan(folder)
        plan = plan or Plan([])
        table = report_sweep(folder, baseline=plan.baseline, figure=plan.figure, figures=figures or plan.figures)
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


def _what_died(folder: Path, jobs: Sequence[Job], tries: Counter[str], error: Exception) -> list[Job]:
    """The jobs that are still to run after a launcher broke; one that was begun twice in vain is marked as failed."""
    left = []
    for job in jobs:
        place = folder / job.dir
        if has_ended(place):
            continue
        if has_started(place) and not lock_owner(place):
            tries[job.dir] += 1
        if tries[job.dir] < MOST_TRIES:
            left.append(job)
            continue
        said = f"its process died {MOST_TRIES} times: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
        write_json(place / "summary.json", {**job.names, "status": "failed", "error": said, "overrides": job.overrides})
    return left


def _in_turn(combinations: list[list[str]], composed: DictConfig) -> list[list[str]]:
    """All jobs, then all of them again with the next seed, `repeats` times: a drift of the machine meets all.

    Raises:
        HarnessError: seeds are swept besides.
    """
    repeats, seed = KEYS["repeats"].read(composed.repeats), composed.seed
    if repeats == 1:
        return combinations
    found = []
    for number in range(repeats):
        for words in combinations:
            own = [word for word in words if word.partition("=")[0] in REPEATED]
            if any(word not in (f"seed={seed}", f"repeat={composed.repeat}") for word in own):
                raise HarnessError(
                    f"repeats={repeats} sets seed and repeat of each job itself: leave out {' '.join(own)}"
                )
            found.append([*(word for word in words if word not in own), f"repeat={number}", f"seed={seed + number}"])
    return found


def _pin(config: DictConfig, folder: Path) -> None:
    """Let every job, wherever it is composed, lie in this folder, whatever the time is there."""
    kept = [item for item in config.hydra.overrides.hydra if not item.startswith((f"{DIR}=", "hydra.sweeper"))]
    config.hydra.overrides.hydra = [*kept, override(DIR, str(folder))]
    config.hydra.sweep.dir = str(folder)


def override(key: str, value: str) -> str:
    """`key=value` as Hydra reads it, whatever the value holds."""
    return f"{key}={QuotedString(value, Quote.single).with_quotes()}"
