"""Every experiment that `list` names runs by itself, or says in one line what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import harness.__main__  # noqa: F401  (its resolvers)
from harness.installation import EXPERIMENTS
from harness.job import run_job
from harness.tasks.claims import composed
from tests.figures.test_experiments import JOBS

NAMES = sorted(path.stem for path in (EXPERIMENTS / "experiment").glob("*.yaml"))
NEEDS = {  # and what it is told with; those that time this machine are not timed here
    "beside": "server.url=http://",
    "beside device=simulated": "server.url=ADDRESS",
    "validate": "needs validate.measured=FILE",
    "calibrate device=simulated": "use device=cpu or device=cuda",
    "paging_overhead device=simulated": "use device=cpu or device=cuda",
}
# Whatever `tests/figures` does not run at a small size is run here.
HERE = [name for name in NAMES if name not in JOBS and name not in {words.split()[0] for words in NEEDS}]


def first_job(name: str) -> list[str]:
    """The overrides of the first job of an experiment's sweep."""
    content = yaml.safe_load((EXPERIMENTS / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    params = content.get("hydra", {}).get("sweeper", {}).get("params", {})
    return [f"experiment={name}", *(f"{key}={str(values).split(',')[0].strip()}" for key, values in params.items())]


@pytest.mark.parametrize("name", HERE)
def test_it_runs_without_a_word_more_or_says_what_it_needs(name: str, tmp_path: Path) -> None:
    words = [*first_job(name), "device=simulated", "workload.num_requests=8"]
    row = run_job(composed(words), tmp_path, words)
    assert row["status"] == "finished" or told_in_a_line(row["error"]), row["error"]


def told_in_a_line(error: str) -> bool:
    """Whether it names a key, and is nothing that Python says."""
    return "\n" not in error and "Error:" not in error and "=" in error


@pytest.mark.parametrize("words", NEEDS)
def test_it_says_what_it_needs_in_a_line(words: str, tmp_path: Path) -> None:
    name, *more = words.split()
    asked = [*first_job(name), *more]
    row = run_job(composed(asked), tmp_path, asked)
    assert row["status"] == "failed"
    assert NEEDS[words] in row["error"]
    assert told_in_a_line(row["error"])
