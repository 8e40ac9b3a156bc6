"""Means over seeds, and whether two of them differ significantly: Student's t, 95 %.

Source: B. L. Welch, Biometrika 34 (1947), for the unpaired case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEAST = 3  # fewer values give no interval
LEVEL = 0.95
SAME, NOT_TOLD_APART = "the same", "not told apart"


class Difference(NamedTuple):
    """The difference of a second set of values from a first one.

    Attributes:
        value: mean of the second set minus mean of the first; if paired, the mean difference of the pairs.
        half: half the width of the interval around `value`; None = too few values.
        pairs: number of pairs; 0 = not paired.
        same: whether the values of each pair are equal to the last digit.
    """

    value: float
    half: float | None
    pairs: int
    same: bool

    @property
    def verdict(self) -> str:
        """`the same`, `not told apart`, `told apart`, or nothing if there is no interval."""
        if self.same:
            return SAME
        if self.half is None:
            return ""
        return NOT_TOLD_APART if abs(self.value) <= self.half else "told apart"


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the interval around the mean of `values`; None for fewer than three."""
    return None if len(values) < LEAST else half_of(len(values)) * float(np.std(values, ddof=1))


@cache
def half_of(count: int) -> float:
    """Half the width of the interval around the mean of `count` values, in standard deviations; NaN below three."""
    return _t(count - 1) / math.sqrt(count) if count >= LEAST else math.nan


def difference(first: Mapping[Any, float], second: Mapping[Any, float]) -> Difference:
    """Compare values by seed: paired if seeds are shared (at least three, or all), else by Welch's test.

    Args:
        first: at least one value.
        second: at least one value.
    """
    shared = [seed for seed in first if seed in second]
    if len(shared) >= LEAST or (shared and len(shared) == min(len(first), len(second))):
        apart = [second[seed] - first[seed] for seed in shared]
        return Difference(float(np.mean(apart)), half_width(apart), len(shared), not any(apart))
    one, two = list(first.values()), list(second.values())
    value = float(np.mean(two) - np.mean(one))
    if min(len(one), len(two)) < LEAST:
        return Difference(value, None, 0, False)
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (one, two)]
    if not sum(parts):
        return Difference(value, 0.0, 0, False)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(v) - 1) for part, v in zip(parts, (one, two), strict=True))
    return Difference(value, _t(freedom) * math.sqrt(sum(parts)), 0, False)


def _t(freedom: float) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom))
