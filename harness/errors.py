"""Errors that are answers: a message for the person at the keyboard, shown without a traceback."""

from __future__ import annotations

import sys
from typing import NoReturn


class HarnessError(Exception):
    """Something the user can mend. The message says where, what is wrong and what would be right."""


def answer(error: HarnessError) -> NoReturn:
    """End the program with the message (exit code 2)."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
