"""Whose a folder is: one process at a time writes into it, and nobody over the results of another run.

The lock is the kernel's (`flock`): what a killed process leaves behind is no folder in use.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Iterable
from datetime import datetime
from itertools import count
from pathlib import Path
from types import TracebackType

from harness.errors import HarnessError

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
JOB = ("config.yaml", "environment.json", "summary.json", "traceback.txt", "requests.csv", "steps.csv",
       "workload.jsonl", "engine.csv", "pieces.parquet", "benchmark.json", "trace.json", "requests.parquet",
       "steps.parquet")  # fmt: skip
SWEEP = ("plan.json", "multirun.yaml", "comparison.csv", "REPORT.md", "report.html")
OURS = (*JOB, *SWEEP)  # by any of these a folder is known to hold results
TRIES, PAUSE_S = 3, 0.02
MOST_ALIKE = 1000  # folders of one time stamp


class Lock:
    """A folder that is ours until the block ends, or this process does."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    @classmethod
    def of(cls, folder: Path, wait: bool = False) -> Lock | None:
        """Take the folder, which is made if need be; None when another process has it.

        Args:
            wait: until the other one is done, instead.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOCK
        for _ in count() if wait else range(TRIES):
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if not _locked(file, wait):
                    os.close(file)
                    time.sleep(PAUSE_S)  # maybe somebody only looked
                    continue
                if _same(path, file):
                    who = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}"
                    os.ftruncate(file, 0)
                    os.pwrite(file, who.encode(), 0)
                    return cls(path, file)
            except OSError as error:
                if error.filename is None:
                    error.filename = str(path)
                os.close(file)
                raise
            os.close(file)  # whoever had it removed it: it is nobody's
        return None

    def release(self) -> None:
        if self._file >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.release()


def acquire(folder: Path, key: str, asked_for: bool, jobs: Iterable[str] = ()) -> tuple[Path, Lock]:
    """Take a folder for a run or a sweep; one that nobody asked for by name gives way to a free one beside it.

    Args:
        key: the configuration key that names it.
        asked_for: the user named it.
        jobs: names of folders inside that must be free, too.

    Returns:
        The folder and its lock.

    Raises:
        HarnessError: it is in use, or holds results.
    """
    for number in range(1, MOST_ALIKE):
        place = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        lock = Lock.of(place)
        found = results_in(place, jobs) if lock else []
        if lock and not found:
            return place, lock
        if lock:
            lock.release()
        if asked_for:
            break
    raise HarnessError(_taken(place, key, found))


def results_in(folder: Path, jobs: Iterable[str] = ()) -> list[str]:
    """What a run or a sweep has left in a folder, by name."""
    found = [name for name in OURS if (folder / name).exists()]
    inside = {
        *jobs,
        *(path.parent.name for name in ("summary.json", "config.yaml") for path in folder.glob(f"*/{name}")),
    }
    return found + [
        f"{name}/" for name in sorted(inside) if (folder / name).is_dir() and any((folder / name).iterdir())
    ]


def lock_owner(folder: Path) -> str | None:
    """Who has a folder: ``process 7 on host since …``; None = nobody."""
    path = folder / LOCK
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if _locked(file, False):
            return None
        return os.pread(file, 200, 0).decode(errors="replace") or "another process"
    finally:
        os.close(file)


def process_of(who: str) -> tuple[int, str] | None:
    """(process id, host) of what `holder` says; None where it says nothing, as while a lock is being taken."""
    found = re.match(r"process (\d+) on (\S+)", who)
    return (int(found[1]), found[2]) if found else None


def has_started(folder: Path) -> bool:
    """Whether anything lies in a job's folder, if only the lock of a process that was killed."""
    return folder.is_dir() and any(folder.iterdir())


def clear(folder: Path) -> None:
    """Remove all that is in a job's folder, its lock apart."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _taken(folder: Path, key: str, found: list[str]) -> str:
    report = f"python -m harness report {shlex.quote(str(folder))}"
    if not found:
        owner = lock_owner(folder) or "another process"
        return (f"{folder} is in use by {owner}; choose another folder with {key}=DIR "
                f"(`{report}` tells what is there so far)")  # fmt: skip
    names = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
    return (f"{folder} holds results already ({names}): `{report}` reports them; choose another folder with {key}=DIR, "
            "or an empty one")  # fmt: skip


def _locked(file: int, wait: bool) -> bool:
    """Whether the lock was got; True as well on a file system that has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if isinstance(error, InterruptedError):
            raise
    return True


def _same(path: Path, file: int) -> bool:
    """Whether the file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
