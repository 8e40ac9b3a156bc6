"""Work on an existing folder: report what is there, or resume a sweep."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.environment import environment
from harness.errors import HarnessError
from harness.exports import export
from harness.files import named
from harness.folders.owner import JOB, Lock, clear, has_started, lock_owner
from harness.folders.plan import PLAN, Job, Plan, read_plan, summary_of
from harness.installation import EXPERIMENTS, PACKAGE
from harness.sweeps.launchers import STOPPED

NOT_AGAIN = ("hydra.sweep", "hydra.mode", "hydra.run", "hydra.sweeper")  # of the command of a sweep, when it is resumed
LATER = ("figures", "exports", "tables")  # of a configuration, what can be had of a finished run, too
SOURCES = ("harness", "allocators", "schedulers", "kvlab_kernels")


def report_folder(folder: Path, *words: str) -> bool:
    """Report on a sweep (finished or not), on one of its jobs, or on a single run; whether all of it finished.

    Args:
        words: `figures=paper`: how to draw figures, whatever the run's configuration; `exports=[trace]` and
            `tables=[csv,parquet]`: further files to make of every finished job.

    Raises:
        HarnessError: there is no such folder, it holds no results that can be read, or a word is none of these.
    """
    wanted = _wanted(words)
    figures = wanted.pop("figures", None)
    from harness.report import report_job
    from harness.report.rows import read_rows
    from harness.sweeps.sweep import report

    kind = kind_of(folder)
    for job in read_rows(folder) if wanted else ():
        if job["status"] == "finished":
            for notice in export(folder / job["dir"], wanted.get("exports", ()), wanted.get("tables", ())):
                print(f"{job['dir']}/{notice}".removeprefix("./"), file=sys.stderr)
    if kind == "sweep":
        return report(folder, figures) == 0
    row = summary_of(folder)
    if row is None:
        who = lock_owner(folder)
        said = f"is still being run by {who}" if who else "did not come to its end: there is no summary.json to report"
        raise HarnessError(f"the run in {folder} {said}")
    report_job(folder, figures=figures or "screen")
    return str(row["status"]) == "finished"


def _wanted(words: Sequence[str]) -> dict[str, Any]:
    """The values of `figures`, `exports` and `tables` on the command line."""
    from harness.console.arguments import value_of
    from harness.schema.keys import KEYS

    found: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in LATER:
            raise HarnessError(f"{word}: a report takes {', '.join(f'{name}=…' for name in LATER)}; all else is as it "
                               "was run")  # fmt: skip
        try:
            found[key] = KEYS[key].read(value_of(text))
        except ValueError as error:
            raise HarnessError(str(error)) from None
    return found


def kind_of(folder: Path) -> str:
    """`sweep` or `job`. Raises HarnessError when a folder is neither."""
    if not folder.is_dir():
        raise HarnessError(f"{folder} is {'no folder' if folder.exists() else 'not there'}")
    if read_plan(folder) is not None:
        return "sweep"
    if any((folder / name).exists() for name in JOB):
        return "job"
    if any(_is_job(path) for path in folder.iterdir()):
        return "sweep"
    raise HarnessError(f"{folder} holds nothing of a run or a sweep: neither {PLAN}, nor summary.json, nor jobs")


def resume_command(folder: Path, more: Sequence[str]) -> list[str]:
    """The arguments of `python -m harness` that run the rest of the sweep in `folder`; changes to its directory.

    Args:
        more: settings of Hydra (`hydra/launcher=joblib`); all others stay as planned.

    Raises:
        HarnessError: the folder holds no sweep, or `more` changes something else.
    """
    folder = folder.absolute()
    if kind_of(folder) != "sweep":
        raise HarnessError(f"{folder} holds a single run: there is no rest of it; run it again, into another folder")
    plan = read_plan(folder)
    if plan is None or any(job.config is None for job in plan.jobs):
        raise HarnessError(f"{folder} has no plan that holds the configurations of its jobs")
    for item in more:
        if not item.startswith(("hydra.", "hydra/")) or item.startswith(NOT_AGAIN):
            raise HarnessError(f"{item}: a sweep is resumed as it was planned; only its hydra/launcher may be another")
    for key, now in code().items():
        if plan.code.get(key) != now:
            print(f"warning: {key} changed since the sweep was planned: {_difference(plan.code.get(key), now)}",
                  file=sys.stderr)  # fmt: skip
    if Path(plan.directory).is_dir():
        os.chdir(plan.directory)
    else:
        print(f"warning: {plan.directory}, where the sweep began, is not there: relative paths count from here",
              file=sys.stderr)  # fmt: skip
    kept = [item for item in plan.command if item.startswith(("hydra.", "hydra/")) and not item.startswith(NOT_AGAIN)]
    keys = {item.partition("=")[0] for item in more}
    if "hydra/launcher" in keys:  # its keys go with it
        kept = [item for item in kept if not item.startswith("hydra.launcher")]
    kept = [item for item in kept if item.partition("=")[0] not in keys]
    from harness.sweeps.sweep import override

    return ["-m", *kept, *more, override("hydra.sweep.dir", str(folder)), "hydra.sweeper.resume=true"]


@contextmanager
def jobs_left(folder: Path) -> Iterator[tuple[Plan, list[Job]]]:
    """The plan of a sweep and its jobs that have not finished, with cleared folders; jobs that had started come last.

    Raises:
        HarnessError: the sweep is under way.
    """
    lock = Lock.of(folder)
    if lock is None:
        raise HarnessError(f"{folder} is in use by {lock_owner(folder)}: the sweep is under way")
    with lock:
        plan = read_plan(folder)
        assert plan
        (folder / STOPPED).unlink(missing_ok=True)
        left = [job for job in plan.jobs if not _finished(folder / job.dir)]
        left.sort(key=lambda job: has_started(folder / job.dir))
        for job in left:
            if has_started(folder / job.dir) and (mine := Lock.of(folder / job.dir)):  # else it still runs
                with mine, named(folder / job.dir):
                    clear(folder / job.dir)
        done, of = len(plan.jobs) - len(left), len(plan.jobs)
        print(f"{done} of {of} jobs are finished, {len(left)} to run", file=sys.stderr)
        yield plan, left


def code() -> dict[str, Any]:
    """What results depend on besides the configuration: version, commit, a digest of the sources, packages."""
    facts = environment()
    return {"sources": _digest(), **{key: facts[key] for key in ("version", "commit", "python", "packages")}}


def _digest() -> str:
    found = [path for name in SOURCES for root in (PACKAGE.parent, PACKAGE.parent / "kernels")
             for path in (root / name).rglob("*.py")]  # fmt: skip
    digest = hashlib.sha256()
    for path in sorted([*found, *EXPERIMENTS.rglob("*.yaml")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _difference(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return ", ".join(f"{key} {old.get(key)} → {new.get(key)}" for key in changed)
    return f"{old} → {new}"


def _finished(folder: Path) -> bool:
    try:
        row = summary_of(folder)
    except HarnessError:
        return False
    return row is not None and row["status"] == "finished"


def _is_job(path: Path) -> bool:
    try:
        return path.is_dir() and summary_of(path) is not None
    except HarnessError:
        return False
