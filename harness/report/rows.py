"""One row per job of a folder: its summary, or the state of a job without one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import HarnessError
from harness.folders.owner import LOCK, lock_owner
from harness.folders.plan import Job, read_plan, summary_of


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """One row per job: every key of its summary, and `dir`, its folder's name ("." for a single job's own folder).

    If there is a plan, the rows are its jobs in its order; otherwise one for every folder inside that holds a job. A
    job without a summary is "running", "interrupted" (killed, say) or "not run".

    Raises:
        HarnessError: there is a plan that can't be read.
    """
    plan = read_plan(folder)
    if plan is not None:
        return [_row(folder, job) for job in plan.jobs]
    if (folder / "summary.json").exists():
        return [_row(folder, Job("."))]
    found = {path.parent.name for name in ("summary.json", "config.yaml") for path in folder.glob(f"*/{name}")}
    return [_row(folder, Job(name, names={"system": name})) for name in sorted(found, key=_natural)]


def parse_overrides(overrides: Any) -> dict[str, str]:
    """``["workload.rate=2"]`` -> ``{"workload.rate": "2"}``."""
    items = overrides if isinstance(overrides, list) else []
    return {key.lstrip("+~"): value for key, _, value in (str(item).partition("=") for item in items)}


def sound(jobs: pd.DataFrame, use: Callable[[pd.DataFrame], object]) -> pd.DataFrame:
    """The same jobs; a row that `use` fails on is replaced by one with the error alone."""
    kept = jobs.copy()
    for at in jobs.index:
        try:
            use(jobs.loc[[at]])
        except Exception as error:  # a summary may hold anything
            kept.loc[at, [name for name in jobs if name not in ("dir", "overrides")]] = None
            said = f"its summary.json is not what a job writes: {type(error).__name__}: {error}"
            for name, value in (("system", f"job {jobs.loc[at, 'dir']}"), ("status", "interrupted"), ("error", said)):
                kept.loc[at, name] = value
    return kept


def _row(folder: Path, job: Job) -> dict[str, Any]:
    known = {"overrides": job.overrides, **(job.names or {"system": _guess(job)})}
    try:
        row = summary_of(folder / job.dir) or _silent(folder / job.dir)
    except HarnessError as error:
        row = {"status": "interrupted", "error": str(error)}
    return {
        **known,
        **{key: value for key, value in row.items() if value is not None or key not in known},
        "dir": job.dir,
    }


def _silent(folder: Path) -> dict[str, Any]:
    """The state of a job that left no summary."""
    if who := lock_owner(folder):
        return {"status": "running", "error": f"by {who}"}
    if folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()):
        return {"status": "interrupted", "error": "it was killed: there is no summary.json"}
    return {"status": "not run"}


def _guess(job: Job) -> str:
    """A name from the overrides alone."""
    system = parse_overrides(job.overrides).get("system")
    return system or ", ".join(job.overrides) or f"job {job.dir}"


def _natural(name: str) -> list[Any]:
    """Sort key under which job 10 comes after job 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]
