"""The jobs of a sweep before the first one runs: a mistake in the last is told at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from harness.console.mistakes import explained
from harness.errors import HarnessError
from harness.installation import EXPERIMENTS

MAX_LISTED = 10  # mistakes
Job = TypeVar("Job")


def refuse_mistakes(jobs: Sequence[Sequence[str]], make: Callable[[int, Sequence[str]], Job]) -> list[Job]:
    """Make every job of a sweep.

    Args:
        jobs: the overrides of each.
        make: makes one, by its number and overrides; raises HarnessError, or what Hydra raises, of a mistaken one.

    Raises:
        HarnessError: some are mistaken. The message tells each mistake once, with the first job that makes it.
    """
    common = set(jobs[0]).intersection(*jobs[1:]) if jobs else set()
    made: list[Job] = []
    mistaken: dict[str, list[int]] = {}
    for number, overrides in enumerate(jobs):
        try:
            with explained(EXPERIMENTS):
                made.append(make(number, overrides))
        except HarnessError as error:
            for mistake in str(error).split("\n"):
                mistaken.setdefault(mistake, []).append(number)
    if mistaken:
        told = [_told(mistake, numbers, jobs, common) for mistake, numbers in mistaken.items()]
        more = [f"and {len(told) - MAX_LISTED} more mistakes"] if len(told) > MAX_LISTED else []
        raise HarnessError("\n".join([*told[:MAX_LISTED], *more]))
    return made


def _told(mistake: str, numbers: Sequence[int], jobs: Sequence[Sequence[str]], common: Collection[str]) -> str:
    """A mistake with the first job that makes it and what is the job's own, unless all make it."""
    if len(numbers) == len(jobs):
        return mistake
    first, others = numbers[0], len(numbers) - 1
    more = f" and {others} more" if others else ""
    return f"job {first} ({' '.join(text for text in jobs[first] if text not in common)}){more}: {mistake}"
