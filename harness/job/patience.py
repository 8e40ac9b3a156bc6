"""A call of a plug-in that never comes back must not hold up a sweep: its job fails, with a line that says where it is.

The process looks at its own stack now and then (SIGALRM); nothing is added to a step. A loop in C is not interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from allocators.base import Allocator
from harness.errors import HarnessError
from harness.routers.base import Router
from harness.runner.latency.base import LatencyModel
from schedulers.base import Scheduler
from schedulers.orders import Order

PLUG_INS = (Allocator, Scheduler, Order, Router, LatencyModel)
LOOKS = 4  # in a row that must meet the same call


class ImpatientError(HarnessError):
    """A call of a plug-in took longer than `patience_s`."""


@contextmanager
def patience(seconds: float | None) -> Iterator[None]:
    """Raise `ImpatientError` out of a call of a plug-in that takes longer than this, and up to a quarter more.

    Whatever else takes long (a model that is loaded, a wait for the next arrival) may. Nothing is looked at off the
    main thread, or where there is no such signal.

    Args:
        seconds: None = for ever.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, _Watch(seconds).look)
    signal.setitimer(signal.ITIMER_REAL, seconds / LOOKS, seconds / LOOKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Watch:
    """Which call of a plug-in is under way, and for how many looks it has been."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._call: FrameType | None = None  # kept, or another one could take its place in memory
        self._seen = 0

    def look(self, number: int, frame: FrameType | None) -> None:
        calls = _calls(frame)
        outermost = calls[-1] if calls else None
        self._seen = self._seen + 1 if outermost is self._call else 0
        self._call = outermost
        if outermost and self._seen >= LOOKS:
            inner = calls[0]
            place = f"{Path(inner.f_code.co_filename).name}, line {inner.f_lineno}"
            way = " → ".join(dict.fromkeys(call.f_code.co_qualname for call in reversed(calls)))
            raise ImpatientError(f"a call takes longer than patience_s={self._seconds:g}: {way} ({place}); if it does "
                                 "not loop, set patience_s higher, or to null")  # fmt: skip


def _calls(frame: FrameType | None) -> list[FrameType]:
    """The calls of plug-ins that are under way, the innermost first."""
    found = []
    while frame:
        code = frame.f_code
        if code.co_argcount and isinstance(frame.f_locals.get(code.co_varnames[0]), PLUG_INS):
            found.append(frame)
        frame = frame.f_back
    return found
