"""Gaps between tokens, pooled over all requests: an exact multiset while it is small, then a fine histogram."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

EXACT = 200_000  # different gaps kept exactly; beyond, each is rounded to 4 significant digits (error <= 0.05 %)


class Gaps:
    """A weighted multiset of nanosecond gaps."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.exact = True

    def add(self, gap_ns: int, count: int = 1) -> None:
        """`count` tokens came `gap_ns` after their predecessors."""
        if not self.exact:
            gap_ns = _rounded(gap_ns)
        self.counts[gap_ns] = self.counts.get(gap_ns, 0) + count
        if self.exact and len(self.counts) > EXACT:
            self._round()

    def add_each(self, gaps_ns: Iterable[int], count: int) -> None:
        """Each of `gaps_ns`, `count` times."""
        counts = self.counts
        for gap in gaps_ns if self.exact else map(_rounded, gaps_ns):
            counts[gap] = counts.get(gap, 0) + count
        if self.exact and len(counts) > EXACT:
            self._round()

    def _round(self) -> None:
        """There are too many to keep them exactly."""
        counts, self.exact, self.counts = self.counts, False, {}
        for gap, number in counts.items():
            self.add(gap, number)

    def summary(self, percentiles: tuple[int, ...]) -> dict[str, float | None]:
        """Mean and percentiles in ms, by numpy's `inverted_cdf` rule; None when there is no gap at all."""
        keys = ["mean", *(f"p{p}" for p in percentiles)]
        if not self.counts:
            return dict.fromkeys(keys)
        gaps = np.array(sorted(self.counts), dtype=np.int64)
        weights = np.array([self.counts[gap] for gap in gaps.tolist()], dtype=np.int64)
        reached = np.cumsum(weights)
        ranks = np.ceil(np.array(percentiles) / 100 * reached[-1]).clip(min=1)
        values = [float(gaps @ weights / reached[-1]), *gaps[np.searchsorted(reached, ranks)].tolist()]
        return {key: value / 1e6 for key, value in zip(keys, values, strict=True)}


def _rounded(gap_ns: int) -> int:
    digits = max(len(str(gap_ns)) - 4, 0)
    return round(gap_ns, -digits)
