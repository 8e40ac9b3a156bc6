"""What every latency model owes a simulation: a jump's times are those of its steps, to the last digit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf

from harness.errors import HarnessError
from harness.runner.latency.base import Latency
from harness.runner.latency.fitted import FittedLatency
from harness.runner.latency.roofline import Anchored, Roofline
from harness.runner.latency.table import TableLatency
from harness.runner.simulated_device import SimulatedDevice
from harness.tasks.calibrate import as_yaml, errors_by_kind
from tests.conformance.latency import LatencyConformance
from tests.latency.models import TINY
from tests.latency.test_table import LAYERS

TABLES = TableLatency(
    [(name, tokens, 0.3 + 0.07 * tokens) for name in LAYERS for tokens in (1, 3, 64)],
    [(name, n, 0.9 * n) for name in ("lm_head", "sampler") for n in (1, 5, 64)],
    [(chunk, past, n, kv, 0.1 + 0.013 * chunk * (past + 1) + 0.0071 * n * kv) for chunk in (0, 16) for past in (0, 64)
     for n in (0, 1, 7, 64) for kv in (0, 9, 300)],
    layers=3,
)  # fmt: skip


class TestFitted(LatencyConformance):
    def make(self) -> Latency:
        return FittedLatency((1000.4, 37.3, 0.61, 55.5, 7.7, 0.013), 3.7)


class TestRoofline(LatencyConformance):
    def make(self) -> Latency:
        return Roofline("a100_40gb", TINY, 2)


class TestAnchored(LatencyConformance):
    def make(self) -> Latency:
        return Anchored(26.2, 0.42, "a100_40gb", TINY)


class TestAnchoredByContext(LatencyConformance):
    def make(self) -> Latency:
        return Anchored(26.2, 0.42, "a100_40gb", TINY, context=414)


class TestTables(LatencyConformance):
    def make(self) -> Latency:
        return TABLES


def steps_of(latency: FittedLatency, count: int = 400, noise: float = 0.0) -> pd.DataFrame:
    """A step table whose times `latency` says, in ms, with multiplicative noise that has a tail."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 600, count) * (rng.random(count) < 0.3)
    table = pd.DataFrame({
        "num_seqs": rng.integers(1, 40, count), "idle_lanes": rng.integers(0, 3, count), "prefill_tokens": prompts,
        "context_tokens": rng.integers(10, 20_000, count), "prefill_attention": prompts * prompts // 2,
        "schedule_ms": 0.01, "complete_ms": 0.02,
    })  # fmt: skip
    table["execute_ms"] = latency.predict(table) / 1e6
    table["execute_ms"] *= rng.lognormal(0, noise, count) if noise else 1.0
    return table


TRUTH = FittedLatency((1.9e6, 40e3, 31.0, 0.4e6, 9e3, 1.5))


def test_a_fit_finds_what_made_the_steps() -> None:
    fitted = FittedLatency.fit(steps_of(TRUTH))
    assert fitted.coefficients[-4:] == pytest.approx(TRUTH.coefficients[-4:], rel=1e-6)
    lanes = range(1, 60)
    assert [fitted.base(n) - 30_000 for n in lanes] == pytest.approx([TRUTH.base(n) for n in lanes], rel=1e-6)
    assert fitted.overhead_ns == pytest.approx(30_000)


def test_a_fit_keeps_the_total_of_noisy_steps() -> None:
    """Relative least squares alone would sit below it: throughput would come out too high."""
    table = steps_of(TRUTH, 4000, noise=0.5)
    assert FittedLatency.fit(table).predict(table).sum() == pytest.approx(table["execute_ms"].sum() * 1e6)


def test_too_few_steps_are_an_error() -> None:
    with pytest.raises(HarnessError, match="at least 7 steps, there are 5"):
        FittedLatency.fit(steps_of(TRUTH, 5))


def test_what_calibrate_writes_is_read_back(tmp_path: Path) -> None:
    latency, table = FittedLatency.fit(steps_of(TRUTH)), steps_of(TRUTH)
    errors = errors_by_kind(latency, table)
    assert errors["steps"].tolist()[-1] == "all"
    assert errors["count"].iloc[:-1].sum() == errors["count"].iloc[-1] == len(table)
    assert errors["median_pct"].max() < 0.01
    path = tmp_path / "latency.yaml"
    path.write_text(as_yaml(latency, "opt_mini", {"device": "cpu", "threads": 1}, 400, errors.iloc[-1]))
    assert yaml.safe_load(path.read_text())["_target_"].endswith("FittedLatency")
    read = SimulatedDevice(OmegaConf.create({"device": {"latency": str(path)}})).latency
    assert read.coefficients == pytest.approx(latency.coefficients)
    table.to_csv(tmp_path / "steps.csv")
    fitted = SimulatedDevice(OmegaConf.create({"device": {"latency": str(tmp_path / "steps.csv")}})).latency
    assert fitted.coefficients == pytest.approx(latency.coefficients)


class TestFittedWithKnots(LatencyConformance):
    def make(self) -> FittedLatency:
        return FittedLatency((1000.4, 370.3, 20.25, 0.0, 400.7, 0.61, 55.5, 7.7, 0.013), 3.7, (1, 2, 3, 4, 8))


class TestFittedWithIdleLanes(LatencyConformance):
    def make(self) -> FittedLatency:
        return FittedLatency((1000.4, 370.3, 0.61, 55.5, 7.7, 0.013), 3.7, (1, 4), live_ns=97.3)


STEPPED = FittedLatency((1.05e6, 0.68e6, 0.34e6, 0.0, 0.2e6, 0.25e6, 12.0, 0.4e6, 9e3, 1.5), 0.0, (1, 2, 3, 4, 6, 8))


def test_a_base_that_is_no_straight_line_is_found_again() -> None:
    table = steps_of(STEPPED, 4000)
    table = table[table["num_seqs"] + table["idle_lanes"] <= 8]
    fitted = FittedLatency.fit(table)
    assert fitted.knots == STEPPED.knots
    assert [fitted.base(n) - fitted.overhead_ns for n in range(1, 12)] == pytest.approx(
        [STEPPED.base(n) for n in range(1, 12)], rel=1e-6
    )


def test_what_a_live_lane_costs_more_than_an_idle_one_is_found_again() -> None:
    truth = replace(STEPPED, live_ns=0.11e6)
    table = steps_of(truth, 4000)
    fitted = FittedLatency.fit(table[table["num_seqs"] + table["idle_lanes"] <= 8])
    assert fitted.live_ns == pytest.approx(0.11e6, rel=1e-6)
    assert fitted.base(7, idle=6) - fitted.overhead_ns == pytest.approx(truth.base(7, idle=6))
    assert truth.base(7) - truth.base(7, idle=6) == pytest.approx(0.66e6)
    assert FittedLatency.fit(table[table["idle_lanes"] == 0]).live_ns == 0, "nothing tells one from the other"


def test_a_base_never_falls_and_goes_on_behind_its_last_knot() -> None:
    table = steps_of(TRUTH, 2000, noise=0.3)
    fitted = FittedLatency.fit(table)
    bases = [fitted.base(n) for n in range(1, 3 * fitted.knots[-1])]
    assert all(low <= high for low, high in pairwise(bases))
    last = fitted.knots[-1]
    assert fitted.base(2 * last) - fitted.base(last) == pytest.approx(
        last * (fitted.base(last) - fitted.base(fitted.knots[-2])) / (last - fitted.knots[-2])
    )


def test_six_coefficients_are_a_straight_line_to_the_last_digit() -> None:
    line = FittedLatency((1000.4, 37.3, 0.61, 55.5, 7.7, 0.013), 3.7)
    assert [line.base(n) for n in range(1, 40)] == [1000.4 + 3.7 + 37.3 * n for n in range(1, 40)]


@pytest.mark.parametrize("knots", [(1,), (2, 1), (1, 2, 3)])
def test_coefficients_that_do_not_fit_their_knots_are_refused(knots: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"knots must|coefficients must"):
        FittedLatency((1.0, 1.0, 0.0, 0.0, 0.0, 0.0), 0.0, knots)
