"""kill -9 at random moments, of the whole and of a worker, and signals under every launcher."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator

from .place import HERE, SWEEP, Place, Running, kill, wait_for, workers

JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
LAUNCHERS = {"one process": (), "joblib": JOBLIB, "submitit": ("hydra/launcher=submitit_local",),
             "ray": ("hydra/launcher=ray",)}  # fmt: skip
MOMENTS = 20


def kills() -> Iterator[tuple[str, object]]:
    """Twenty moments: ten of a sweep in one process, five of one in several, five of a worker."""
    for number in range(MOMENTS):
        what = ("whole", "whole", "several", "worker")[number % 4]
        yield f"kill -9, moment {number + 1}: {WHAT[what]}", lambda place, n=number, w=what: KILL[w](place, n)


def _begun(place: Place, number: int, launcher: str) -> tuple[Running, str]:
    """A sweep, and when it is to be killed: at any time from its plan to its end, or now and then before the plan."""
    planned_s, whole_s = place.took_s[launcher]
    running, r = place.begin(*SWEEP, *LAUNCHERS[launcher], HERE), random.Random(number)
    if number % 8 == 0:
        delay, said = r.uniform(0, planned_s), ""
    else:
        wait_for(place.folder / "sweep", "plan.json", 1, running)
        delay, said = r.uniform(0, whole_s - planned_s), " after it was planned"
    time.sleep(delay)
    return running, f"{delay:.2f} s{said}"


def whole(place: Place, number: int) -> None:
    running, when = _begun(place, number, "one process")
    _kill(place, running, when)
    _resumed(place)


def several(place: Place, number: int) -> None:
    """The sweep's process alone, or its workers with it."""
    running, when = _begun(place, number, "joblib")
    group, at = number % 8 > 3, workers(place.folder / "sweep")
    _kill(place, running, f"{when}, " + ("its workers with it" if group else "its workers live on"), group)
    for pid in at if group else ():
        kill(pid, running)
    _resumed(place)


def worker(place: Place, number: int) -> None:
    """Of one that is at a job; the sweep goes on by itself."""
    running = place.begin(*SWEEP, *JOBLIB, HERE)
    wait_for(place.folder / "sweep", "*/summary.json", random.Random(number).randrange(4), running)
    pids: list[int] = []
    while not pids and not running.over():
        pids = workers(place.folder / "sweep")
    pids = [pid for pid in pids if pid != running.pid]
    if pids:
        kill(random.Random(number).choice(pids), running)
    place.must(bool(pids), "no worker was met")
    done = running.wait()
    place.must_end(done, 0)
    place.compare()


WHAT = {"whole": "the sweep", "several": "the sweep, joblib", "worker": "a worker, joblib"}
KILL = {"whole": whole, "several": several, "worker": worker}


def _kill(place: Place, running: Running, when: str, group: bool = True) -> None:
    late = running.over()
    running.signal(signal.SIGKILL, group)
    running.wait()
    finished = len(list((place.folder / "sweep").glob("*/summary.json")))
    place.note = f"{when}: {finished} of 6 jobs over" + (", report and all" if late else "")


def _resumed(place: Place) -> None:
    if not (place.folder / "sweep" / "plan.json").exists():
        place.note += "; nothing was planned yet, so it is begun again"
        place.run(*SWEEP, HERE)
    else:
        place.run("resume", "sweep")
    place.compare()


def told_to_end(place: Place, launcher: str, number: int) -> None:
    """SIGTERM as Ctrl-C: what is finished is reported, nothing goes on running, the rest can be resumed."""
    running = place.begin(*SWEEP, *LAUNCHERS[launcher], HERE)
    wait_for(place.folder / "sweep", "*/summary.json", 1, running)
    running.signal(number)
    done = running.wait()
    place.must_end(done, 128 + number)
    place.must((place.folder / "sweep" / "comparison.csv").exists(), "no report")
    left = workers(place.folder / "sweep")
    place.must(not left, f"still at it: {left}")
    place.note = f"{sum(1 for _ in (place.folder / 'sweep').glob('*/summary.json'))} of 6 jobs over when it ended"
    place.run("resume", "sweep")
    place.compare()


def signals() -> Iterator[tuple[str, object]]:
    yield "Ctrl-C, one process", lambda place: told_to_end(place, "one process", signal.SIGINT)
    for launcher in LAUNCHERS:
        yield f"SIGTERM, {launcher}", lambda place, name=launcher: told_to_end(place, name, signal.SIGTERM)
