"""The command line: injects the faults one after another, and writes the table of what was lost."""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import harness.job
import harness.sweeps.sweep  # noqa: F401  (imported once, here: every process below is a fork of this one)

from . import __doc__ as about
from .disks import NoMountError, disks
from .folders import folders
from .kills import LAUNCHERS, kills, signals
from .place import HERE, ROOT, SWEEP, Place, Running, shown, tables, wait_for
from .plug_ins import plug_ins

Fault = tuple[str, Callable[[Place], None]]


def faults() -> Iterator[Fault]:
    yield from chain(kills(), signals(), disks(), plug_ins(), folders())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--out", type=Path, help="a folder for README.md and faults.csv")
    arguments = parser.parse_args()
    wanted = [(name, inject) for name, inject in faults() if arguments.only in name]
    os.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'kernels'}"  # of processes that launchers start
    with tempfile.TemporaryDirectory(prefix="kvlab-faults-") as top:
        os.environ["DEADLY_MARK"] = f"{top}/mark"
        timed = ["one process", "joblib"] if any("kill -9" in name for name, _ in wanted) else ["one process"]
        whole, took = _whole(Path(top), timed)
        rows = [_row(name, inject, Path(top) / str(at), whole, took) for at, (name, inject) in enumerate(wanted)]
    if arguments.out:
        _write(arguments.out, rows)
    lost = sum(row["verdict"].startswith("LOST") for row in rows)
    print(f"{len(rows)} faults, {lost} with a loss, {sum(row['verdict'] == 'not tried' for row in rows)} not tried")
    return 1 if lost else 0


def _whole(top: Path, launchers: list[str]) -> tuple[dict[str, list[str]], dict[str, tuple[float, float]]]:
    """The sweep that nothing happens to: its tables, and how long it takes."""
    took = {}
    for name in launchers:
        folder = top / name.replace(" ", "_")
        folder.mkdir()
        running = Running(folder, (*SWEEP, *LAUNCHERS[name], HERE))
        wait_for(folder / "sweep", "plan.json", 1, running)
        planned_s = time.monotonic() - running.begun
        done = running.wait()
        running.end()
        if done.code:
            sys.exit(f"without a fault it ends with {done.code}: {done.said}")
        took[name] = (planned_s, done.took_s)
    return tables(top / "one_process" / "sweep"), took


def _row(name: str, inject: Callable[[Place], None], folder: Path, whole: dict[str, list[str]],
         took: dict[str, tuple[float, float]]) -> dict[str, str]:  # fmt: skip
    folder.mkdir()
    place, begun = Place(folder, whole, took), time.monotonic()
    os.environ["DEADLY_MARK"] = str(folder / "mark")
    try:
        inject(place)
        lost = place.jobs_lost or place.lines_lost or place.wrong
        verdict = "LOST: " + "; ".join(place.wrong) if lost else "nothing lost"
    except NoMountError:
        verdict = "not tried"
        place.note = "mounting is not allowed here"
    for running in place.begun:
        running.end()
    seconds = time.monotonic() - begun
    print(f"{seconds:5.1f} s  {name}: {verdict}  ({place.jobs_lost} jobs, {place.lines_lost} lines)  {place.note}",
          flush=True)  # fmt: skip
    return {"fault": name, "commands": " ; ".join(place.commands), "jobs_lost": str(place.jobs_lost),
            "lines_differing": str(place.lines_lost), "verdict": verdict, "note": place.note}  # fmt: skip


def _write(out: Path, new: list[dict[str, str]]) -> None:
    """The table of these and of those that an earlier run wrote and this one left out."""
    out.mkdir(parents=True, exist_ok=True)
    known = {}
    if (out / "faults.csv").exists():
        with open(out / "faults.csv", encoding="utf-8", newline="") as file:
            known = {row["fault"]: row for row in csv.DictReader(file)}
    known |= {row["fault"]: row for row in new}
    rows = [known[name] for name, _ in faults() if name in known]
    with open(out / "faults.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lost = sum(row["verdict"] != "nothing lost" for row in rows)
    text = [f"# Faults: {len(rows)} injected, {len(rows) - lost} without a loss", "", PREFACE, "",
            "| fault | jobs lost | lines that differ | verdict | |", "|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        cells = [row[key].replace("|", "\\|") for key in ("fault", "jobs_lost", "lines_differing", "verdict", "note")]
        text.append(f"| {' | '.join(cells)} |")
    (out / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")


PREFACE = f"""```bash
python -m tests.faults --out results/reference/faults    # all of them
python -m tests.faults --only "SIGTERM, ray"             # one of them, by its name
```

Each fault is injected into `{shown(SWEEP)}`
(of plug-ins: into a sweep of two allocators and two seeds), then what can be mended is (`resume`, `report`, room on the
disk), and all tables are compared with those of the sweep that nothing happened to: `requests.csv`, `steps.csv`,
`workload.jsonl`, `config.yaml` and `summary.json` of each job, and `comparison.csv`. A job is lost that is not finished
then, its own plug-in apart; the commands of each, with the kill at the moment that is named, stand in `faults.csv`.
Pictures and pages are not drawn. Nothing is lost where every exit code is right, no traceback is shown and no line
differs."""

if __name__ == "__main__":
    sys.exit(main())
