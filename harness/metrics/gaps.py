"""Gaps between tokens, pooled over all requests: an exact multiset while it is small, then a fine histogram."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import numpy as np

EXACT = 200_000  # different gaps kept exactly; beyond, each is rounded to 4 significant digits (error <= 0.05 %)


class Gaps:
    """A weighted multiset of nanosecond gaps; number, sum and longest are exact however many there are.

    Attributes:
        counts: number of gaps of each length.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.exact = True
        self._sum = self._longest = 0  # of gaps that were rounded, before rounding

    @property
    def longest(self) -> int:
        """The longest gap in ns; 0 if there is none."""
        return max(self.counts, default=0) if self.exact else self._longest

    def add(self, gap_ns: int, count: int = 1) -> None:
        """`count` tokens came `gap_ns` after their predecessors."""
        if not self.exact:
            self._longest = max(self._longest, gap_ns)
            self._sum += gap_ns * count
            gap_ns = _rounded(gap_ns)
        self.counts[gap_ns] = self.counts.get(gap_ns, 0) + count
        if self.exact and len(self.counts) > EXACT:
            self._round()

    def add_each(self, gaps_ns: Sequence[int], count: int) -> None:
        """Add each of `gaps_ns`, `count` times."""
        counts = self.counts
        if not self.exact:
            self._longest = max(self._longest, max(gaps_ns))
            self._sum += sum(gaps_ns) * count
        for gap in gaps_ns if self.exact else map(_rounded, gaps_ns):
            counts[gap] = counts.get(gap, 0) + count
        if self.exact and len(counts) > EXACT:
            self._round()

    def _round(self) -> None:
        """Round all gaps, since there are too many different ones to keep exactly."""
        counts, self.exact, self.counts = self.counts, False, {}
        for gap, number in counts.items():
            self.add(gap, number)

    def summary(self, percentiles: tuple[int, ...]) -> dict[str, float | None]:
        """Mean and percentiles (linear, as in numpy and vLLM) in ms; None if there are no gaps."""
        keys = ["mean", *(f"p{p}" for p in percentiles)]
        if not self.counts:
            return dict.fromkeys(keys)
        gaps = np.array(sorted(self.counts), dtype=np.int64)
        weights = np.array([self.counts[gap] for gap in gaps.tolist()], dtype=np.int64)
        reached = np.cumsum(weights)
        number = int(reached[-1])
        mean = (sum(map(mul, gaps.tolist(), weights.tolist())) if self.exact else self._sum) / number
        places = np.array(percentiles) / 100 * (number - 1)
        below = np.floor(places).astype(np.int64)
        low, high = (gaps[np.searchsorted(reached, at, "right")] for at in (below, np.minimum(below + 1, number - 1)))
        part, step = places - below, high - low
        values = np.where(part < 0.5, low + step * part, high - step * (1 - part))  # bit for bit as numpy
        return {key: value / 1e6 for key, value in zip(keys, [mean, *values.tolist()], strict=True)}


def _rounded(gap_ns: int) -> int:
    digits = max(len(str(gap_ns)) - 4, 0)
    return round(gap_ns, -digits)
