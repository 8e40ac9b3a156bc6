"""The age of the oldest waiting request, against a plain reading over time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from allocators.paged import Paged
from harness.metrics.summary import waiting_age
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand
from tests.conformance.play import SECOND, Steps, play


def table(arrival: list[float], scheduled: list[float | None], end: float) -> pd.DataFrame:
    rows = {"id": range(len(arrival)), "arrival_s": arrival, "first_scheduled_s": scheduled, "status": "finished"}
    return pd.DataFrame(rows).assign(last_token_s=end).astype({"first_scheduled_s": float})


def test_two_that_wait_one_after_the_other() -> None:
    """0 waits 0 ... 2; then 1, which came at 1, until 4: ages go 0 to 2, then 1 to 3, then nobody waits until 8."""
    assert waiting_age(table([0, 1], [2, 4], end=8)) == (3, (2 + 4) / 8)


def test_one_that_is_overtaken_is_the_oldest_all_the_while() -> None:
    assert waiting_age(table([0, 1, 2], [6, 1, 3], end=6)) == (6, 18 / 6)


def test_who_was_never_scheduled_waits_to_the_end_and_who_was_rejected_does_not() -> None:
    rows = table([0, 2], [0, None], end=10)
    assert waiting_age(rows) == (8, 32 / 10)
    assert waiting_age(rows.assign(status=["finished", "rejected"])) == (0, 0)


def test_nothing_is_absent_and_not_zero() -> None:
    assert waiting_age(table([], [], end=1)) == (None, None)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_looking_at_every_moment_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    arrival = np.sort(random.integers(0, 40, 12)).astype(float)
    scheduled = arrival + random.integers(0, 25, 12)
    times = np.arange(0, 80, 0.01) + 0.005
    waits = (arrival <= times[:, None]) & (times[:, None] < scheduled)
    ages = np.where(waits, times[:, None] - arrival, 0).max(axis=1)
    most, mean = waiting_age(table(arrival.tolist(), scheduled.tolist(), end=80))
    assert most == (scheduled - arrival).max()
    assert mean == pytest.approx(ages.mean(), rel=1e-9, abs=1e-9)


def test_a_replay_tells_it() -> None:
    """One lane, a second a step: 0 runs for 3 s, so 1 (at 1 s) waits for 2 s of 5."""
    scheduler = Continuous(Paged(640, 64), on_demand, max_model_len=64, max_num_seqs=1)
    summary = play([Request(0, 0, 5, 3), Request(1, SECOND, 5, 2)], scheduler, Steps(1.0)).summary
    assert (summary["waiting_age_max_s"], summary["waiting_age_mean_s"]) == (2, 2 / 5)
    assert summary["itl_max_ms"] == 1000
