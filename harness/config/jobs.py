"""The jobs of a sweep before the first one runs: a mistake in the last is told at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from harness.errors import HarnessError
from harness.installation import EXPERIMENTS
from harness.mistakes import explained

MOST_TOLD = 10  # mistakes
Job = TypeVar("Job")


def refuse_mistakes(jobs: Sequence[Sequence[str]], make: Callable[[int, Sequence[str]], Job]) -> list[Job]:
    """Make every job of a sweep.

    Args:
        jobs: the overrides of each.
        make: makes one, by its number and overrides; raises HarnessError, or what Hydra raises, of a mistaken one.

    Raises:
        HarnessError: some are mistaken. The message tells each mistake once, with the first job that has it.
    """
    common = set(jobs[0]).intersection(*jobs[1:]) if len(jobs) > 1 else set()
    made: list[Job] = []
    told: dict[str, str] = {}
    for number, overrides in enumerate(jobs):
        try:
            with explained(EXPERIMENTS):
                made.append(make(number, overrides))
        except HarnessError as error:
            own = " ".join(text for text in overrides if text not in common)
            for mistake in str(error).split("\n"):
                told.setdefault(mistake, f"job {number} ({own}): {mistake}" if own else mistake)
    if told:
        more = [f"and {len(told) - MOST_TOLD} more mistakes"] if len(told) > MOST_TOLD else []
        raise HarnessError("\n".join([*list(told.values())[:MOST_TOLD], *more]))
    return made
