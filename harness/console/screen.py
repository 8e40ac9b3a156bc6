"""What tables are printed on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def screen(piped: int = 100) -> Console:
    """The terminal; where there is none, text of a width of its own."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)  # a label may look like markup, and so may a path
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = piped  # a pipe has no width of its own
    return console
