"""Folders that are corrupted, truncated, foreign, or somebody else's, given to `report` and `resume`."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from .place import HERE, SWEEP, Place, wait_for


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _noise(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


DAMAGE: dict[str, Callable[[Path], None]] = {"cut in half": _cut, "zeros": _zeros, "noise": _noise, "gone": Path.unlink}


def job_file(place: Place, name: str, damage: str) -> None:
    """A file of a finished job is damaged. That it is finished says its summary; nothing else is checked."""
    place.run(*SWEEP, HERE)
    DAMAGE[damage](place.folder / "sweep" / "1" / name)
    done = place.run("report", "sweep", code=None)
    place.note = f"the report ends with {done.code}; "
    if name == "summary.json":
        place.note += "resume runs the job again"
    else:
        shutil.rmtree(place.folder / "sweep" / "1")
        place.note += "resume takes the job for finished until its folder is removed, which was done"
    place.run("resume", "sweep")
    place.compare()


def plan(place: Place, damage: str) -> None:
    """Nothing can be resumed, and nothing is written over; a report takes the jobs as they lie."""
    place.run(*SWEEP, HERE)
    kept = (place.folder / "sweep" / "plan.json").read_bytes()
    DAMAGE[damage](place.folder / "sweep" / "plan.json")
    place.run("resume", "sweep", code=2)
    place.run("report", "sweep", code=0 if damage == "gone" else 2)
    (place.folder / "sweep" / "plan.json").write_bytes(kept)
    place.note = "resume refuses; the plan was put back"
    place.run("resume", "sweep")
    place.compare()


def foreign(place: Place) -> None:
    other = place.folder / "other"
    other.mkdir()
    place.run("report", "other", code=2, says="nothing of a run or a sweep")
    (other / "summary.json").write_text("[1, 2]")
    (other / "notes.txt").write_text("mine")
    for command in ("report", "resume"):
        place.run(command, "other", code=2)
        place.run(command, "nowhere", code=2, says="not there")
        place.run(command, "other/notes.txt", code=2, says="no folder")
    place.must((other / "notes.txt").read_text() == "mine", "a file of somebody else was changed")


def told_the_same(place: Place) -> None:
    """Two sweeps, one folder: the second is refused, and the first is whole."""
    first = place.begin(*SWEEP, HERE)
    wait_for(place.folder, "sweep/.lock", 1, first)
    place.run(*SWEEP, HERE, code=2, says="in use by process")
    first.signal(signal.SIGCONT)
    place.must_end(first.wait(), 0)
    place.compare()


def at_once(place: Place) -> None:
    """Two of the same second without a name: each has a folder of its own."""
    several = [place.begin(*SWEEP, f"hydra.sweep.dir={'sweep'}_{number}") for number in range(2)]
    for one in several:
        place.must_end(one.wait(), 0)
    for number in range(2):
        place.compare(name=f"sweep_{number}")


def folders() -> Iterator[tuple[str, object]]:
    for name in ("summary.json", "requests.csv", "steps.csv", "config.yaml"):
        for damage in DAMAGE:
            yield f"{name} of a job: {damage}", lambda place, n=name, d=damage: job_file(place, n, d)
    for damage in DAMAGE:
        yield f"plan.json: {damage}", lambda place, d=damage: plan(place, d)
    yield "folders that are not ours", foreign
    yield "two sweeps told the same folder", told_the_same
    yield "two sweeps side by side", at_once
