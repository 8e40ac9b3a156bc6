"""SIGTERM and SIGHUP end what Ctrl-C ends: what is finished is kept and reported."""

from __future__ import annotations

import signal
from typing import Any


class Stopped(KeyboardInterrupt):
    """The process was told to end.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def listen() -> None:
    """Raise `Stopped` in this process's main thread, unless somebody else listens, or `nohup` wants it otherwise."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)


def exit_code(error: KeyboardInterrupt) -> int:
    """128 and the number of the signal, as a shell has it."""
    return 128 + int(getattr(error, "number", signal.SIGINT))


def interrupt_in(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that an error came of: OmegaConf may turn one into an error of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _stop(number: int, frame: Any) -> None:
    raise Stopped(number)
