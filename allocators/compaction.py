"""Which extents to slide together so that a hole of a wanted length arises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Extent(NamedTuple):
    """A run of slots that somebody holds, and what it costs to move it: the tokens to copy."""

    start: int
    slots: int
    tokens: int

    @property
    def end(self) -> int:
        return self.start + self.slots


class Plan(NamedTuple):
    """What to slide and what comes of it.

    Attributes:
        slides: (extent's number, its new start), in an order in which each overlaps no other's slots, only its own.
        filled: holes that vanish, as (start, slots).
        hole: the one that arises, as (start, slots).
    """

    slides: list[tuple[int, int]]
    filled: list[tuple[int, int]]
    hole: tuple[int, int]


def plan(extents: Sequence[Extent], low: int, high: int, wanted: int, behind: int | None = None) -> Plan | None:
    """The cheapest way to a hole of `wanted` slots or more; None if the holes do not add up to that.

    The holes from one to another one become one if all extents between them slide: each such window costs the tokens of
    its extents. Of the windows with enough free slots the cheapest is taken, the lowest of equal ones. Extents do not
    jump out of their order, so a way that is cheaper still may exist.

    Args:
        extents: by ascending start, none of which overlap, all from slot `low` to before slot `high`.
        behind: the number of an extent behind which the hole must arise; None = anywhere (then extents slide down).
    """
    ends, starts = [low, *(e.end for e in extents)], [*(e.start for e in extents), high]
    holes = [(end, start - end) for end, start in zip(ends, starts, strict=True)]
    latest_first, first_last = (len(holes) - 1, 0) if behind is None else (behind + 1, behind + 1)
    best, cost, last, free, tokens = None, 0, -1, 0, 0
    for first in range(latest_first + 1):
        while last + 1 < len(holes) and (free < wanted or last < first_last):
            last += 1
            free += holes[last][1]
            tokens += extents[last - 1].tokens if last > first else 0
        if free < wanted:
            break
        if best is None or tokens < cost:
            best, cost = (first, last), tokens
        free -= holes[first][1]
        tokens -= extents[first].tokens if last > first else 0
    if best is None:
        return None
    first, last = best
    middle = last if behind is None else behind + 1  # extents before it slide down, the others up
    slides, bottom, top = [], ends[first], starts[last]
    for i in range(first, middle):
        slides.append((i, bottom))
        bottom += extents[i].slots
    for i in range(last - 1, middle - 1, -1):
        top -= extents[i].slots
        slides.append((i, top))
    slides = [(i, start) for i, start in slides if start != extents[i].start]
    return Plan(slides, [hole for hole in holes[first : last + 1] if hole[1]], (bottom, top - bottom))
