"""`python -m harness` without a process of its own: a subprocess takes seconds to import what is here already."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from harness.__main__ import main

FAST = ("device=simulated", "workload.num_requests=6")


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def command(folder: Path, *arguments: str) -> Done:
    """Run a command line with `folder` as the working directory."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before, argv, out, err = Path.cwd(), sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["harness", *arguments]
    code = 0
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        os.chdir(before)
        sys.argv = argv
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Done(code, out.getvalue(), err.getvalue())
