"""Disks that are full or read-only, homes that are not there, streams that are closed, paths that are odd."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .place import FAST, HERE, SWEEP, Place, environment, no_file_above, no_terminal

WHOLE = "hydra.sweep.dir=disk/sweep"
NOWHERE = "/proc/no/such/place"


class NoMountError(Exception):
    """Mounting is not allowed here."""


@contextmanager
def mounted(folder: Path, *words: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *words, folder], capture_output=True).returncode:
        raise NoMountError
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def full(place: Place, share: float) -> None:
    """A file system that has room for a share of the sweep; then it gets more."""
    size = int(share * sum(len(line) + 1 for lines in place.whole.values() for line in lines)) // 4096 * 4
    disk = place.folder / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", f"size={size}k", "tmpfs"):
        done = place.run(*SWEEP, WHOLE, code=None, says="No space left on device")
        place.must(done.code in (1, 2), f"ended with {done.code}")
        over = len(list(disk.glob("sweep/*/summary.json")))
        place.note = f"{size} KiB: full with {over} of 6 jobs over; then room was made"
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        if (disk / "sweep" / "plan.json").exists():
            place.run("resume", "disk/sweep")
        else:
            place.run(*SWEEP, WHOLE)
        shutil.copytree(disk / "sweep", place.folder / "sweep")
    place.compare()


def long_steps(place: Place) -> None:
    size = 7 * max(len("\n".join(place.whole[f"{job}/steps.csv"])) for job in range(6)) // 10
    done = place.run(*SWEEP, HERE, code=1, says="steps.csv", within=no_file_above(size))
    place.note = f"no file above {size // 1000} kB: {done.said.count('File too large')} jobs say so"
    place.run("resume", "sweep")
    place.compare()


def summary(place: Place) -> None:
    """Of a run: what it would have said is printed."""
    done = place.run(*FAST[1:], "workload.num_requests=6", "hydra.run.dir=run", code=1,
                     says="summary.json can't be written", within=no_file_above(2_500))  # fmt: skip
    place.must('"finished": 6' in done.said, "the numbers are not printed")
    shutil.rmtree(place.folder / "run")
    place.note = "its numbers are printed; then it was run again"
    place.run(*FAST[1:], "workload.num_requests=6", "hydra.run.dir=run", code=0)


def report(place: Place) -> None:
    place.run(*SWEEP, HERE)
    place.run("report", "sweep", code=2, says="comparison.csv", within=no_file_above(200))
    place.run("report", "sweep")
    place.compare()


def read_only(place: Place) -> None:
    place.run(*SWEEP, HERE)
    with mounted(place.folder / "disk", "--bind", str(place.folder / "sweep")):
        subprocess.run(["mount", "-o", "remount,bind,ro", place.folder / "disk"], check=True)
        place.run("report", "disk", code=2, says="Read-only file system")
        place.run("resume", "disk", code=2, says="Read-only file system")
        place.run(*SWEEP, "hydra.sweep.dir=disk/new", code=2, says="disk/new")
    place.run("report", "sweep")
    place.compare()


def home(place: Place, **values: str | None) -> None:
    place.run(*SWEEP, HERE, within=environment(**values))
    place.compare()


def home_read_only(place: Place) -> None:
    """Where kernels would be kept: a model that really runs, compiled kernels and all."""
    with mounted(place.folder / "home", "-t", "tmpfs", "-o", "size=4k,ro", "tmpfs"):
        change = environment(HOME=str(place.folder / "home"), NUMBA_CACHE_DIR=None, XDG_CACHE_HOME=None,
                             TMPDIR=str(place.folder))  # fmt: skip
        place.run("device=cpu", "device.threads=1", "workload.num_requests=3", "workload.fit=scale",
                  "max_model_len=64", "kv_slots=256", "hydra.run.dir=run", within=change)  # fmt: skip
    place.must((place.folder / "run" / "requests.csv").exists(), "no tables")


def terminal(place: Place) -> None:
    place.run(*SWEEP, HERE, within=no_terminal)
    place.compare()


def paths(place: Place, name: str) -> None:
    (place.folder / name).mkdir(parents=True)
    place.run(*SWEEP, f"hydra.sweep.dir='{name}/swéep'")
    shutil.rmtree(place.folder / name / "swéep" / "2")
    place.run("resume", f"{name}/swéep")
    os.rename(place.folder / name / "swéep", place.folder / "sweep")
    place.compare()


def disks() -> Iterator[tuple[str, object]]:
    for percent in (1, 15, 40, 65, 90, 99):
        yield f"disk full, room for {percent} % of the sweep", lambda place, p=percent: full(place, p / 100)
    yield "disk full while steps are written", long_steps
    yield "disk full at the summary of a run", summary
    yield "disk full at the report", report
    yield "read-only folder of results", read_only
    yield "no home", lambda place: home(place, HOME=None)
    yield "a home that is not there", lambda place: home(place, HOME=NOWHERE, NUMBA_CACHE_DIR=NOWHERE)
    yield "read-only home, a model runs", home_read_only
    yield "no terminal: all streams closed", terminal
    yield "letters of all kinds in a path", lambda place: paths(place, "é ü, 漢=(1)")
    yield "a path of 700 letters", lambda place: paths(place, "/".join(["x" * 170] * 4))
