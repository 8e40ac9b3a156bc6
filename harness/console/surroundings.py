"""What lies around a run must not cost it: a terminal that is gone or can't write a "×", a home that is read-only."""

from __future__ import annotations

import codecs
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

PLAIN = {"×": "x", "·": "|", "–": "-", "−": "-", "…": "...", "≈": "~", "≤": "<=", "≥": ">=", "µ": "u", "→": "->"}


CACHES = ("MPLCONFIGDIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR")  # that fail, or warn, where they can't write


def settle() -> None:
    """Make this process, and those it starts, independent of all that; to be called before the rest is imported."""
    if "MPLBACKEND" in os.environ:
        os.environ["MPLBACKEND"] = "agg"  # a notebook names one of its own; nothing is shown in a window here
    home = Path(os.path.expanduser("~"))
    if not (home.is_absolute() and home.is_dir() and os.access(home, os.W_OK)):
        place = Path(tempfile.gettempdir()) / f"kvlab-caches-{os.getuid()}"
        for name in CACHES:
            os.environ.setdefault(name, str(place / name.lower()))
    _streams()


def _streams() -> None:
    """Let standard output and error take anything from here on, and lose what they can't write."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it was closed: another file would be opened in its place
            file = os.open(os.devnull, os.O_RDWR)
            if file > number:
                os.dup2(file, number)
                os.close(file)
            if number:
                setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, RobustStream):
            setattr(sys, name, RobustStream(stream, name))


class RobustStream:
    """A stream that writes what it can: letters it lacks are replaced; when it fails, the rest goes nowhere."""

    def __init__(self, stream: TextIO, name: str) -> None:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="plain")
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except (OSError, ValueError) as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: Exception) -> None:
        """Nothing more can be said here; what waits to be written must not fail at the end of the program either."""
        broken, self._stream = self._stream, open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        with suppress(OSError, ValueError):
            os.dup2(self._stream.fileno(), broken.fileno())
        if self._name == "stdout" and not isinstance(error, BrokenPipeError):  # who closes a pipe has read enough
            print(f"warning: standard output can't be written: {error}", file=sys.stderr)


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in found), error.end


codecs.register_error("plain", _plain)
