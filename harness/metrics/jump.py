"""What is written down of decode steps that were taken together."""

from __future__ import annotations

from typing import NamedTuple


class Jump(NamedTuple):
    """Further decode steps of the same batch, taken together with the step before them.

    Attributes:
        ns: duration of each step.
        shifts: changes of the books, see `Growth`.
        asked: slots that the queue's head was refused in each of these steps; -1 = it was refused nothing.
    """

    ns: list[int]
    shifts: list[tuple[int, ...]]
    asked: int


NO_JUMP = Jump([], [], -1)
