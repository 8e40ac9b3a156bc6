"""Linear interpolation in measured points that lie on no complete grid."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Node(NamedTuple):
    """The points along one axis: keys, ascending, and what lies at each (the next axis, or a value)."""

    keys: list[float]
    below: list[Any]


def grid(points: Iterable[Sequence[float]]) -> Node:
    """Points ``(x1, …, xn, value)`` as a tree of axes, so that every branch has the keys that were measured in it.

    Raises:
        ValueError: there is no point at all.
    """
    branches: dict[float, Any] = {}
    for first, *rest in points:
        if len(rest) == 1:
            branches[first] = rest[0]
        else:
            branches.setdefault(first, []).append(rest)
    if not branches:
        raise ValueError("a table without rows")
    keys = sorted(branches)
    deeper = [grid(branches[key]) if isinstance(branches[key], list) else branches[key] for key in keys]
    return Node(keys, deeper)


def interpolate(node: Node, *at: float) -> float:
    """The value at ``(x1, …, xn)``: linear in each axis in turn, between the nearest branches measured around the rest.

    So a branch that lacks what is asked on a later axis is passed over for the next one that has it, as where grids of
    different steps were measured into one table. Where no branch has it, each takes what it has: below its first key
    the first one's value holds, above the last key the last two are drawn out.
    """
    between = _between(node, at)
    return _nearest(node, at) if between is None else between


def _between(node: Any, at: Sequence[float]) -> float | None:
    """The value at a point that measured points surround on every axis, or None."""
    if not at:
        return float(node)
    keys, below = node
    x, rest = at[0], at[1:]
    if not keys[0] <= x <= keys[-1]:
        return None
    split = bisect_right(keys, x)
    for left in range(split - 1, -1, -1):
        low = _between(below[left], rest)
        if low is not None:
            break
    else:
        return None
    if keys[left] == x:
        return low
    for right in range(split, len(keys)):
        high = _between(below[right], rest)
        if high is not None:
            return low + (high - low) * ((x - keys[left]) / (keys[right] - keys[left]))
    return None


def _nearest(node: Any, at: Sequence[float]) -> float:
    """The value at a point that lies outside on some axis."""
    if not at:
        return float(node)
    keys, below = node
    x, rest = at[0], at[1:]
    within = [i for i, branch in enumerate(below) if _between(branch, rest) is not None] or range(len(keys))
    left, right = _neighbours([keys[i] for i in within], x)
    left, right = within[left], within[right]
    low = _nearest(below[left], rest)
    if left == right:
        return low
    high = _nearest(below[right], rest)
    return max(low + (high - low) * ((x - keys[left]) / (keys[right] - keys[left])), 0.0)


def _neighbours(keys: Sequence[float], x: float) -> tuple[int, int]:
    """The two keys to draw a line through at `x`; twice the same where its value holds."""
    right = bisect_left(keys, x)
    if right == 0 or len(keys) == 1:
        return 0, 0
    right = min(right, len(keys) - 1)
    return (right, right) if keys[right] == x else (right - 1, right)
