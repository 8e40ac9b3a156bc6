"""Gaps between tokens: exact while there are few different ones, then rounded to four digits."""

from __future__ import annotations

import numpy as np
import pytest

from harness.metrics import gaps as module
from harness.metrics.gaps import Gaps

PERCENTILES = (1, 50, 90, 95, 99, 100)


def pooled(values: np.ndarray) -> Gaps:
    gaps = Gaps()
    for value in values.tolist():
        gaps.add(value)
    return gaps


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101, 1000])
@pytest.mark.parametrize("different", [1, 5, 10**9])
def test_percentiles_are_numpys_to_the_last_digit(count: int, different: int) -> None:
    values = np.random.default_rng(count).integers(0, different, count)
    summary = pooled(values).summary(PERCENTILES)
    assert summary["mean"] == pytest.approx(values.mean() / 1e6)
    for p in PERCENTILES:
        assert summary[f"p{p}"] == np.percentile(values, p) / 1e6


def test_the_median_of_two_gaps_lies_between_them() -> None:
    assert pooled(np.array([26_620_000, 252_380_000])).summary((50,))["p50"] == 139.5


def test_many_at_once_are_as_many_one_by_one() -> None:
    gaps = Gaps()
    gaps.add(7, 3)
    gaps.add(5)
    assert gaps.counts == pooled(np.array([7, 5, 7, 7])).counts


def test_no_gap_at_all_is_empty() -> None:
    assert Gaps().summary((50,)) == {"mean": None, "p50": None}


def test_too_many_different_gaps_are_rounded_by_at_most_a_twentieth_of_a_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EXACT", 100)
    values = np.exp(np.random.default_rng(0).uniform(0, 25, 5000)).astype(np.int64)
    gaps = pooled(values)
    assert not gaps.exact
    assert sum(gaps.counts.values()) == len(values)
    summary = gaps.summary(PERCENTILES)
    assert summary["mean"] == pytest.approx(values.mean() / 1e6, rel=1e-12)  # no digit of the sum is lost
    assert gaps.longest == values.max()
    for p in PERCENTILES:
        assert summary[f"p{p}"] == pytest.approx(np.percentile(values, p) / 1e6, rel=5e-4)


def test_a_sum_stays_exact_when_gaps_come_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", 10)
    gaps = Gaps()
    for first in range(1_000_001, 1_000_100, 9):
        gaps.add_each(range(first, first + 9), 3)
    assert not gaps.exact
    assert gaps.summary((50,))["mean"] == sum(range(1_000_001, 1_000_100)) / 99 / 1e6
    assert gaps.longest == 1_000_099


def test_rounded_gaps_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", 100)
    gaps = pooled(np.arange(1_000_000, 1_100_000, 7))
    assert len(gaps.counts) <= 101
