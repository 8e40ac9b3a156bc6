"""The command line: runs the sweep in this process, with a watch on each of its parts."""

from __future__ import annotations

import argparse
import cProfile
import csv
import os
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl

import harness.job
import harness.report
import harness.sweeps.task
from harness.__main__ import main as harness_main
from harness.sweeps import sweep

from . import __doc__ as about
from . import launchers

SMALL = ("-m", "device=simulated", "workload.num_requests=6", "system=vllm,orca_max")
ONE = "a job"
EVERY = 50  # jobs between two looks at the memory


class Watch:
    """How long (s) each part took in all, and the memory (MiB) after every so many jobs."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.spent: dict[str, float] = {}
        self.memory: list[tuple[int, float, float]] = []
        self.jobs = 0

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            begun = self.now()
            try:
                return function(*args, **more)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + self.now() - begun
                if name == ONE:
                    self.jobs += 1
                    if self.jobs % EVERY == 0:
                        self.memory.append((self.jobs, self.spent[ONE], _resident()))

        return timed


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


@contextmanager
def watched(now: Callable[[], float]) -> Iterator[Watch]:
    watch = Watch(now)
    places = ((ConfigLoaderImpl, "load_sweep_config", "composition"), (sweep.Sweep, "plan", "plan"),
              (sweep.Sweep, "_launch", "jobs"), (harness.sweeps.task, "run_planned", ONE),
              (harness.job, "replay", "replay"), (sweep, "report", "report"))  # fmt: skip
    kept = [(where, name, getattr(where, name)) for where, name, _ in places]
    for where, name, part in places:
        setattr(where, name, watch.around(part, getattr(where, name)))
    try:
        yield watch
    finally:
        for where, name, function in kept:
            setattr(where, name, function)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="count CPU time, where others are at work on the machine")
    parser.add_argument("--out", type=Path, help="a folder for README.md, parts.csv and memory.csv")
    parser.add_argument("--launchers", action="store_true", help="instead, a sweep by launcher and workers")
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out = arguments.out.resolve()  # the sweep runs in a folder of its own
    if arguments.launchers:
        return launchers.measure(arguments.out)
    profile, now = cProfile.Profile(), time.process_time if arguments.cpu else time.perf_counter
    with tempfile.TemporaryDirectory(prefix="kvlab-load-") as place, watched(now) as watch:
        os.chdir(place)
        sys.argv = ["harness", *SMALL, f"seed=range({arguments.jobs // 2})", "hydra.sweep.dir=sweep"]
        begun = now()
        if arguments.profile:
            profile.enable()
        try:
            harness_main()
        except SystemExit as end:
            print(f"it ended with {end.code}", file=sys.stderr)
            return 1
        finally:
            profile.disable()
        whole = now() - begun
        finished = len(list(Path(place).glob("sweep/*/summary.json")))
    if arguments.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(70)
    told = list(_told(watch, whole, finished))
    for name, value, unit in told:
        print(f"{name:58} {value:10.1f} {unit}")
    if arguments.out:
        _write(arguments.out, told, watch)
    return 0


def _told(watch: Watch, whole: float, jobs: int) -> Iterator[tuple[str, float, str]]:
    spent, each = watch.spent, 1000 / jobs
    rest = spent["plan"] - spent["composition"] + spent["jobs"]
    yield "jobs finished", jobs, ""
    yield "the whole", whole, "s"
    yield "the report", spent["report"], "s"
    yield "a job: Hydra's composition", spent["composition"] * each, "ms"
    yield "a job: all else, the report apart", rest * each, "ms"
    yield "  of which: planned and checked", (spent["plan"] - spent["composition"]) * each, "ms"
    yield "  of which: its simulation", spent["replay"] * each, "ms"
    yield "  of which: set up, tables, folder", (spent["jobs"] - spent["replay"]) * each, "ms"
    if watch.memory:
        yield f"memory after {watch.memory[0][0]} jobs", watch.memory[0][2], "MiB"
        yield f"memory after {watch.memory[-1][0]} jobs", watch.memory[-1][2], "MiB"


def _write(out: Path, told: list[tuple[str, float, str]], watch: Watch) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "memory.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["jobs", "spent_in_jobs_s", "resident_mib"])
        writer.writerows([jobs, f"{spent:.2f}", f"{memory:.1f}"] for jobs, spent, memory in watch.memory)
    rows = [f"| {name.strip()} | {value:,.1f} {unit} |" for name, value, unit in told]
    text = [ABOUT, *rows, "", "`memory.csv` has the memory after every 50 jobs."]
    (out / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")


ABOUT = f"""# A sweep of many small jobs

```bash
python -m tests.load --jobs 2000 --out results/reference/load
```

`{" ".join(SMALL)}`
and as many seeds as it takes: jobs of 6 requests, in one process on one core. Composition is Hydra's own, once for each
job; all else is the harness.

| | |
|---|---|"""

if __name__ == "__main__":
    sys.exit(main())
