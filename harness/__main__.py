"""`python -m harness` runs a job, or the sweep of an experiment; `report DIR` reports one again, `resume DIR` goes on.

`python -m harness inspect FILE [workload.KEY=VALUE]...` describes a trace; `python -m harness compile` compiles the
simulation (optional); `python -m harness tables DIR` prints the health of operator tables; `python -m harness check`
compares what our runner says of a model with what the model says by
itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra

from harness import compiled
from harness.console import surroundings
from harness.console.commands import COMMANDS
from harness.console.signals import exit_code, listen
from harness.errors import HarnessError, answer
from harness.installation import EXPERIMENTS
from harness.sweeps.task import run


def main() -> None:
    """The command line. Exit codes: 0 all well, 1 a job failed, 2 a mistake to mend, 128 + the signal that ended it."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    surroundings.settle()
    listen()
    try:
        if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
            usage = COMMANDS[sys.argv[1]]
            words = usage.split()
            most = len(sys.argv) if usage.endswith("...") else len(words)
            if not sum(word[0] != "[" for word in words) <= len(sys.argv) - 2 <= most:
                raise HarnessError(f"usage: python -m harness {sys.argv[1]} {usage}".rstrip())
            RUN[sys.argv[1]](*sys.argv[2:])
        else:
            _run()
    except HarnessError as error:
        answer(error)
    except KeyboardInterrupt as error:
        sys.exit(exit_code(error))


def _run() -> None:
    from harness.config.options import chosen
    from harness.console.arguments import is_override, quoted
    from harness.console.mistakes import explained

    sys.argv[1:] = chosen(quoted(sys.argv[1:]))
    if any(word.startswith("repeats=") for word in sys.argv[1:]) and not {"-m", "--multirun"} & set(sys.argv):
        sys.argv.append("-m")  # several runs are a sweep
    # Flags first, with what belongs to them: argparse takes the overrides in one piece only.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: (word not in ("-m", "--multirun"), is_override(word)))
    with explained(EXPERIMENTS):
        hydra.main(version_base="1.3", config_path=str(EXPERIMENTS), config_name="config")(run)()


def _inspect(path: str, *words: str) -> None:
    from harness.console.arguments import keys_of, refuse_split
    from harness.workload.inspect import inspect_file

    refuse_split(path, words)
    inspect_file(path, keys=keys_of(words, "workload"))


def _compile() -> None:
    print(f"written to {compiled.build()}")


def _check(*words: str) -> None:
    from harness.console.mistakes import explained
    from harness.tasks.check import main as check

    with explained(EXPERIMENTS):
        sys.exit(check(list(words), EXPERIMENTS))


def _list(kind: str | None = None) -> None:
    from harness.console.listing import list_names

    list_names(kind)


def _tables(folder: str) -> None:
    from harness.operators.health import print_health

    print_health(folder)


def _report(folder: str, *words: str) -> None:
    from harness.sweeps.resume import report_folder

    if not report_folder(Path(folder), *words):
        sys.exit(1)


def _compare(*words: str) -> None:
    from harness.compare import compare

    compare(*words)


def _resume(folder: str, *more: str) -> None:
    from harness.sweeps.resume import resume_command

    sys.argv[1:] = resume_command(Path(folder), more)
    _run()


RUN: dict[str, Callable[..., None]] = {
    "inspect": _inspect,
    "compile": _compile,
    "report": _report,
    "compare": _compare,
    "resume": _resume,
    "list": _list,
    "tables": _tables,
    "check": _check,
}

if __name__ == "__main__":
    main()
