"""What is done with the folder of a run or a sweep later: its report, from whatever is there."""

from __future__ import annotations

from pathlib import Path

from harness.errors import HarnessError
from harness.folders import JOB, results_in
from harness.plan import PLAN, read_plan, summary_of


def report_again(folder: Path) -> bool:
    """Report on a sweep, finished or not, on a job of it, or on a single run; whether all of it finished.

    Raises:
        HarnessError: there is no such folder, or nothing of ours in it that can be read.
    """
    from harness.report import report_job
    from harness.sweep import report

    kind = kind_of(folder)
    if kind == "sweep":
        return report(folder) == 0
    row = summary_of(folder)
    if row is None:
        raise HarnessError(f"{folder} holds a run that did not come to its end: there is no summary.json to report")
    report_job(folder)
    return str(row["status"]) == "finished"


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
    found = results_in(folder)
    what = f"only {', '.join(found)}" if found else "nothing of a run or a sweep"
    raise HarnessError(f"{folder} holds {what}: neither {PLAN}, nor summary.json, nor folders of jobs")


def _is_job(path: Path) -> bool:
    try:
        return path.is_dir() and summary_of(path) is not None
    except HarnessError:
        return False
