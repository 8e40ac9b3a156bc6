"""Where faults are injected: a folder, the sweep as it is without any, processes that are really killed."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from threading import Thread

from harness.__main__ import main
from harness.folders.owner import lock_owner, process_of
from harness.folders.plan import summary_of

ROOT = Path(__file__).resolve().parents[2]
FAST = ("-m", "device=simulated", "workload.num_requests=40", "memory_map=false")
SWEEP = (*FAST, "system=vllm,orca_max,orca_pow2", "seed=0,1")  # what is run where nothing else is said
HERE = "hydra.sweep.dir=sweep"
TABLES = ("requests.csv", "steps.csv", "workload.jsonl", "config.yaml", "summary.json")
PATIENCE_S = 200


@dataclass
class Done:
    """How a command ended, and what it said."""

    code: int
    said: str
    took_s: float


class Running:
    """A command line in a forked process: as real as any, without the seconds that imports take."""

    def __init__(self, folder: Path, words: tuple[str, ...], within: Callable[[], None] | None = None) -> None:
        self.folder, self.words, self.begun = folder, words, time.monotonic()
        self._said: list[bytes] = []
        sys.stdout.flush()
        mine, its = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._become(its, within)
            finally:
                os._exit(70)
        os.close(its)
        self._reader = Thread(target=self._read, args=(mine,), daemon=True)
        self._reader.start()

    def _read(self, file: int) -> None:
        with open(file, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 16):
                self._said.append(piece)

    def _become(self, out: int, within: Callable[[], None] | None) -> None:
        import harness.report
        import harness.report.page

        vars(harness.report)["draw_all"] = lambda *args: []  # pictures and the page take most of a report's time
        vars(harness.report.page)["write_page"] = lambda *args, **more: None
        os.setsid()
        for number in (1, 2):
            os.dup2(out, number)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        os.chdir(self.folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if within:
            within()
        sys.argv = ["harness", *self.words]
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:  # a traceback is a fault of ours, and is looked for
            import traceback

            traceback.print_exc()
            code = 99
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))

    def signal(self, number: int, group: bool = False) -> None:
        """To the process that was begun; with `group`, to those that it started, too."""
        with suppress(ProcessLookupError):  # it is not a group of its own yet
            if group:
                os.killpg(self.pid, number)
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> None:
        """Nothing that it started goes on: a fork leaves out what an interpreter does at its end."""
        for entry in Path("/proc").glob("[0-9]*"):
            kill(int(entry.name), self)

    def over(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> Done:
        deadline = time.monotonic() + PATIENCE_S
        while not self.over():
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL, group=True)
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._reader.join(1)  # what it started may keep the pipe
        return Done(code, b"".join(self._said).decode(errors="replace"), time.monotonic() - self.begun)


@dataclass
class Place:
    """What a fault is given.

    Attributes:
        folder: an empty one of its own.
        whole: lines of each table of the uninterrupted sweep.
        took_s: how long it took to be planned, and in all, report included, by launcher.
        commands: what was run, for the record.
        wrong: what was not as it must be.
        note: what else there is to say.
        begun: every process of a command.
        jobs_lost, lines_lost: jobs that are not finished, and lines of tables that differ.
    """

    folder: Path
    whole: Mapping[str, list[str]]
    took_s: Mapping[str, tuple[float, float]]
    commands: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    note: str = ""
    begun: list[Running] = field(default_factory=list)
    jobs_lost: int = 0
    lines_lost: int = 0

    def begin(self, *words: str, within: Callable[[], None] | None = None) -> Running:
        self.commands.append(shown(words))
        self.begun.append(Running(self.folder, words, within))
        return self.begun[-1]

    def run(self, *words: str, code: int | None = 0, says: str = "", within: Callable[[], None] | None = None) -> Done:
        """Run a command to its end.

        Args:
            code: that it must end with; None = any.
            says: what it must say.
        """
        done = self.begin(*words, within=within).wait()
        self.must_end(done, code, says)
        return done

    def must_end(self, done: Done, code: int | None, says: str = "") -> None:
        if code is not None and done.code != code:
            self.must(False, f"`{self.commands[-1]}` ended with {done.code}, not {code}: {done.said[-300:]}")
        self.must(says in done.said, f"`{self.commands[-1]}` does not say {says!r}: {done.said[-300:]}")
        self.must("Traceback" not in done.said, f"a traceback: {done.said[-600:]}")

    def must(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(" ".join(what.split()))

    def compare(self, jobs: Mapping[str, str] | None = None, name: str = "sweep", *, table: bool = True) -> None:
        """Count what is lost against the sweep that nothing happened to.

        Args:
            jobs: the folder of each job that must be there, and that of its equal; None = the same six.
            table: that of all jobs, too.
        """
        jobs = jobs or {str(number): str(number) for number in range(6)}
        for mine, equal in jobs.items():
            row = summary_of(self.folder / name / mine)
            self.jobs_lost += row is None or row["status"] != "finished"
            for file in TABLES if table else TABLES[:3]:
                self._differ(self.folder / name / mine / file, self.whole[f"{equal}/{file}"])
        if table:
            self._differ(self.folder / name / "comparison.csv", self.whole["comparison.csv"])

    def _differ(self, path: Path, right: list[str]) -> None:
        self.lines_lost += sum(one != other for one, other in zip_longest(lines(path), right))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def tables(sweep: Path) -> dict[str, list[str]]:
    """Lines of every table of a sweep, by `job/file`."""
    found = {f"{path.parent.name}/{path.name}": lines(path) for name in TABLES for path in sweep.glob(f"*/{name}")}
    return found | {"comparison.csv": lines(sweep / "comparison.csv")}


def shown(words: tuple[str, ...]) -> str:
    """A command line as it is typed."""
    return shlex.join(["python", "-m", "harness", *words])


def wait_for(folder: Path, pattern: str, count: int, running: Running) -> bool:
    """Whether so many files of that name came while a command ran."""
    deadline = time.monotonic() + PATIENCE_S
    while len(list(folder.glob(pattern))) < count:
        if running.over() or time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def workers(sweep: Path) -> list[int]:
    """The processes that are at a job of it."""
    held = [process_of(who) for path in sweep.glob("*/.lock") if (who := lock_owner(path.parent))]
    return [one[0] for one in held if one]


def kill(pid: int, running: Running) -> None:
    """kill -9 of a process that a command has started, and of no other whatever the number is."""
    with suppress(ProcessLookupError):  # it is over
        if pid > 1 and os.getsid(pid) == running.pid:
            os.kill(pid, signal.SIGKILL)


def no_file_above(size: int) -> Callable[[], None]:
    """A disk that is full once a file has so many bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def environment(**values: str | None) -> Callable[[], None]:
    """Other variables; None = without it."""

    def change() -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    return change


def no_terminal() -> None:
    """Streams that are closed."""
    for number in (0, 1, 2):
        os.close(number)
    sys.stdin = sys.stdout = sys.stderr = None
