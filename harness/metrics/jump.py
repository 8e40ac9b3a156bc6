"""What is written down of decode steps that were taken together."""

from __future__ import annotations

from typing import NamedTuple


class Jump(NamedTuple):
    """Steps that followed a step, with one more token of each of its sequences.

    Attributes:
        ns: how long each took.
        shifts: how the books changed, see `Growth`.
        asked: slots that the queue's head was refused in each of them; -1 = nobody was.
    """

    ns: list[int]
    shifts: list[tuple[int, ...]]
    asked: int


NO_JUMP = Jump([], [], -1)
