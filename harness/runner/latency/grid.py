"""Linear interpolation in measured points that lie on no complete grid."""

from __future__ import annotations

from bisect import bisect_right
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
    """The value at ``(x1, …, xn)``: linear in each axis in turn, between the neighbours that this branch has.

    Below the first key the first one's value holds; above the last key the last two are drawn out.
    """
    keys, below = node
    x, rest = at[0], at[1:]
    right = bisect_right(keys, x)
    if right == 0 or len(keys) == 1:
        return _value(below[0], rest)
    if keys[right - 1] == x:
        return _value(below[right - 1], rest)
    right = min(right, len(keys) - 1)
    low, high = keys[right - 1], keys[right]
    left_value, right_value = _value(below[right - 1], rest), _value(below[right], rest)
    return max(left_value + (right_value - left_value) * ((x - low) / (high - low)), 0.0)


def _value(branch: Any, rest: Sequence[float]) -> float:
    return interpolate(branch, *rest) if rest else float(branch)
