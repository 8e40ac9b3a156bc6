"""Makes every simulated reference under `results/reference` anew and compares its tables, to the last digit.

    python -m tests.references [NAME ...] [--take] [--in FOLDER]

A reference is a folder with `command.txt`, the command that made it; NAME is its path below `results/reference`. With
`--take` what was made takes the reference's place (tables, `REPORT.md`, figures). Columns that are new are told and are
no difference; those that are gone, and other values, are. Exit code 1 where any reference differs.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

REPOSITORY = Path(__file__).parents[1]
REFERENCE = REPOSITORY / "results" / "reference"
COMMAND = "command.txt"
NOT_COMPARED = {"dir", "workload_notes", "identity", "setup_s"}  # where things lie, and every key there is
KEPT = ("*.csv", "*.md", "figures/*.png")  # of what a sweep writes, what a reference keeps
NOT_MADE = {COMMAND, "README.md"}


class Difference(NamedTuple):
    """What is not the same in a table; `only` new columns are none."""

    wrong: list[str]
    new: list[str]


def names() -> list[str]:
    """Every reference that a command makes, by its path below `results/reference`."""
    return sorted(str(path.parent.relative_to(REFERENCE)) for path in REFERENCE.rglob(COMMAND))


def make(name: str, folder: Path) -> None:
    """Run a reference's command into a folder. Raises RuntimeError with the last lines where it fails."""
    words = shlex.split((REFERENCE / name / COMMAND).read_text())[1:]
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier try
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, *words, f"hydra.sweep.dir={folder}"], cwd=REPOSITORY, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name}: the command failed:\n" + "\n".join(done.stdout.splitlines()[-20:]))


def compare(name: str, folder: Path) -> Difference:
    """A reference's tables, column by column as text, with those in a folder."""
    wrong, new = [], []
    for path in sorted((REFERENCE / name).glob("*.csv")):
        there, here = _read(path), _read(folder / path.name)
        new += [f"{path.name}: {column}" for column in here if column not in there]
        if len(there) != len(here):
            wrong.append(f"{path.name}: {len(there)} rows, now {len(here)}")
            continue
        for column in there.columns.difference(list(NOT_COMPARED), sort=False):
            if column not in here:
                wrong.append(f"{path.name}: {column} is gone")
            elif len(other := there.index[there[column] != here[column]]):
                at = other[0]
                wrong.append(f"{path.name}: {column}, {len(other)} of {len(there)} rows; row {at}: "
                             f"{there.at[at, column] or 'empty'}, now {here.at[at, column] or 'empty'}")  # fmt: skip
    return Difference(wrong, new)


def take(name: str, folder: Path) -> None:
    """Put what was made in a reference's place, paths relative to this checkout; its command and its README stay."""
    for path in _kept(REFERENCE / name):
        path.unlink()
    for path in _kept(folder):
        target = REFERENCE / name / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes().replace(f"{REPOSITORY}/".encode(), b""))


def check(chosen: Sequence[str], place: Path, taking: bool = False) -> int:
    """Make these references, say what differs, and how long each took; how many differ."""
    differ = 0
    for name in chosen:
        begun = time.monotonic()
        try:
            make(name, place / name)
            found = compare(name, place / name)
            if taking:
                take(name, place / name)
        except (RuntimeError, OSError) as error:
            found = Difference([str(error)], [])
        differ += bool(found.wrong)
        said = "differs" if found.wrong else "the same"
        print(f"{name}: {said} ({time.monotonic() - begun:.0f} s)", flush=True)
        print(*(f"  {line}" for line in found.wrong), sep="\n", end="\n" if found.wrong else "")
        if found.new:
            print(f"  new: {', '.join(found.new)}")
    return differ


def _kept(folder: Path) -> Iterator[Path]:
    for pattern in KEPT:
        yield from (path for path in sorted(folder.glob(pattern)) if path.name not in NOT_MADE)


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    words = list(arguments)
    place = Path(words[words.index("--in") + 1]).absolute() if "--in" in words else None
    if place is not None:
        del words[words.index("--in") : words.index("--in") + 2]
    chosen = [word for word in words if not word.startswith("--")] or names()
    if unknown := [word for word in chosen if word not in names()]:
        print(f"error: no reference {unknown[0]}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    if place is not None:
        return min(check(chosen, place, "--take" in words), 1)
    with tempfile.TemporaryDirectory() as folder:
        return min(check(chosen, Path(folder), "--take" in words), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
