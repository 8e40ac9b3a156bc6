"""What of a model's error is the machine's: the pace of runs, and within a run, and that alike steps are not alike."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from harness.runner.latency.drift import drift, spread_of, unlike
from harness.runner.latency.fitted import FittedLatency

TRUTH = FittedLatency((1.0e6, 0.1e6, 10.0, 0.0, 0.0, 0.0))


def steps_of(paces: dict[str, float], noise: float = 0.0, count: int = 400) -> pd.DataFrame:
    """Decode steps of runs whose machine took so many times as long as `TRUTH` says."""
    random, runs = np.random.default_rng(0), []
    for at, (name, pace) in enumerate(paces.items()):
        lanes = np.repeat(random.integers(1, 9, count // 20), 20)
        table = pd.DataFrame({"num_seqs": lanes, "idle_lanes": 0, "prefill_tokens": 0, "prefill_attention": 0,
                              "context_tokens": 100 * lanes, "schedule_ms": 0.0, "complete_ms": 0.0})  # fmt: skip
        spent = TRUTH.predict(table) / 1e6 * pace * random.lognormal(0, noise, count)
        runs.append(table.assign(execute_ms=spent, start_s=spent.cumsum() / 1e3, run=name, begun=10.0 * at))
    return pd.concat(runs, ignore_index=True)


def test_the_pace_of_each_run_is_told_apart_from_the_model_s_error() -> None:
    steps = steps_of({"first": 1.0, "second": 1.3})
    runs = drift(TRUTH, steps, np.arange(len(steps)) % 5 == 4)
    assert runs["run"].unique().tolist() == ["first", "second"]
    assert runs.loc[runs["run"] == "second", "time_s"].min() > 10
    spread = spread_of(runs)
    assert spread["error_within_run_pct"] == pytest.approx(0, abs=1e-9)
    assert (spread["drift_fastest_pct"], spread["drift_slowest_pct"]) == pytest.approx((0, 30))


def test_a_pace_that_changes_within_a_run_is_seen_in_its_pieces() -> None:
    steps = steps_of({"run": 1.0})
    steps.loc[200:, "execute_ms"] *= 1.5
    spread = spread_of(drift(TRUTH, steps, np.arange(len(steps)) % 5 == 4))
    assert spread["error_within_piece_pct"] == pytest.approx(0, abs=1e-9)
    assert spread["error_within_run_pct"] > 10


def test_steps_that_are_alike_say_what_no_model_can_know() -> None:
    assert unlike(steps_of({"first": 1.0, "second": 2.0})) == pytest.approx(0, abs=1e-9)
    noisy = steps_of({"run": 1.0}, noise=0.1, count=4000)
    assert unlike(noisy) == pytest.approx(6.75, abs=0.7)  # the median |error| of lognormal(0.1) noise
    fitted = FittedLatency.fit(noisy)
    error = np.abs(fitted.predict(noisy) / (noisy["execute_ms"] * 1e6) - 1)
    assert 100 * np.median(error) == pytest.approx(unlike(noisy), abs=0.7)
    assert unlike(noisy.iloc[:1]) is None
