"""A plug-in call that never returns must not hold up a sweep: its job fails with a line that says where it hangs.

A timer signal (SIGALRM) inspects the process's own stack; steps get no extra work. A loop in C is not interrupted.
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
CHECKS = 4  # in a row that must find the same call under way


class PluginTimeoutError(HarnessError):
    """A call of a plug-in took longer than `patience_s`."""


@contextmanager
def watchdog(seconds: float | None) -> Iterator[None]:
    """Raise `PluginTimeoutError` in a call of a plug-in that takes longer than `seconds` (up to a quarter longer).

    Only plug-in calls are limited, not loading a model or waiting for an arrival. Off the main thread, and on systems
    without SIGALRM, nothing is limited.

    Args:
        seconds: None = no limit.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, _Watch(seconds).check)
    signal.setitimer(signal.ITIMER_REAL, seconds / CHECKS, seconds / CHECKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Watch:
    """The call of a plug-in that is under way, and how many checks in a row have found it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._call: FrameType | None = None  # kept, or another one could take its place in memory
        self._seen = 0

    def check(self, number: int, frame: FrameType | None) -> None:
        calls = _calls(frame)
        outermost = calls[-1] if calls else None
        self._seen = self._seen + 1 if outermost is self._call else 0
        self._call = outermost
        if outermost and self._seen >= CHECKS:
            inner = calls[0]
            place = f"{Path(inner.f_code.co_filename).name}, line {inner.f_lineno}"
            way = " → ".join(dict.fromkeys(call.f_code.co_qualname for call in reversed(calls)))
            raise PluginTimeoutError(f"a call takes longer than patience_s={self._seconds:g}: {way} ({place}); if it "
                                     "does not loop, set patience_s higher, or to null")  # fmt: skip


def _calls(frame: FrameType | None) -> list[FrameType]:
    """The calls of plug-ins on the stack, the innermost first."""
    found = []
    while frame:
        code = frame.f_code
        if code.co_argcount and isinstance(frame.f_locals.get(code.co_varnames[0]), PLUG_INS):
            found.append(frame)
        frame = frame.f_back
    return found
