"""First fit and best fit beside a plain list of holes."""

from __future__ import annotations

import random

import pytest

from allocators.holes import CHUNK, BestFit, FirstFit


class Plain:
    """Looks at every hole."""

    def __init__(self, capacity: int, smallest: bool) -> None:
        self.empty, self.smallest = [True] * capacity, smallest

    def holes(self) -> list[tuple[int, int]]:
        holes, start = list[tuple[int, int]](), None
        for slot, free in enumerate([*self.empty, False]):
            if free and start is None:
                start = slot
            elif not free and start is not None:
                holes.append((slot - start, start))
                start = None
        return holes

    def allocate(self, slots: int) -> int | None:
        fits = [(length, start) for length, start in self.holes() if length >= slots]
        if not fits:
            return None
        _, start = min(fits) if self.smallest else min(fits, key=lambda hole: hole[1])
        self.empty[start : start + slots] = [False] * slots
        return start

    def free(self, start: int, slots: int) -> None:
        self.empty[start : start + slots] = [True] * slots


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [FirstFit, BestFit])
def test_holes_are_those_that_a_plain_list_finds(kind: type[FirstFit | BestFit], seed: int) -> None:
    """Enough small extents that chunks are cut and dropped, then ever fewer."""
    rng, capacity = random.Random(seed), 30 * CHUNK
    holes, plain, extents = kind(capacity), Plain(capacity, kind is BestFit), list[tuple[int, int]]()
    for call in range(1500):
        if rng.random() < (0.7 if call < 500 else 0.45) or not extents:
            slots = rng.choice([1, 1, 2, 3, 5, 9, 40])
            start = holes.allocate(slots)
            assert start == plain.allocate(slots)
            if start is not None:
                extents.append((start, slots))
        else:
            start, slots = extents.pop(rng.randrange(len(extents)))
            holes.free(start, slots)
            plain.free(start, slots)
    for start, slots in extents:
        holes.free(start, slots)
    assert holes.allocate(capacity) == 0
