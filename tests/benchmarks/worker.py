"""A process that does what it is told to, so that several editions or engines can take turns."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Worker:
    """It says `ready` once, and then answers each line it is sent with a line of JSON.

    Args:
        environment: beside this process's own.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(command, cwd=folder, env=os.environ | environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        while self._line() != "ready":
            pass

    def ask(self, word: str) -> Any:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def stop(self) -> None:
        """Let it end by itself, so that it ends what it started, too."""
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process that takes part ended with {self.process.wait()}")
        return line.strip()
