"""Arrival processes and length distributions: what they claim statistically, and that a seed fixes every byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.workload import Workload, WorkloadError, build_workload, export
from harness.workload.histograms import HISTOGRAMS

SHAREGPT = {
    "name": "sharegpt",
    "num_requests": 128,
    "prompt": {"kind": "histogram", "histogram": "sharegpt_input"},
    "output": {"kind": "histogram", "histogram": "sharegpt_output"},
}
SHORT = {"num_requests": 20_000, "prompt": {"kind": "fixed", "value": 8}, "output": {"kind": "fixed", "value": 8}}


def build(config: dict[str, Any], seed: int = 0, max_model_len: int = 2048) -> Workload:
    return build_workload(config, max_model_len, seed)


def gaps(workload: Workload) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.diff([0, *(request.arrival_ns for request in workload.requests)]) / 1e9


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_poisson_gaps_are_exponential_and_not_clipped(rate: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    found = gaps(build({**SHORT, "arrival": "poisson", "rate": rate}))
    assert found.mean() * rate == pytest.approx(1, rel=0.03)
    assert found.std() / found.mean() == pytest.approx(1, rel=0.03)
    assert stats.kstest(found * rate, "expon").pvalue > 0.01
    assert found.max() * rate > 7  # of 20,000 exponential gaps the longest is about 10 means


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gamma_gaps_have_the_asked_variation(cv: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    found = gaps(build({**SHORT, "arrival": "gamma", "rate": 4.0, "cv": cv}))
    assert found.mean() * 4 == pytest.approx(1, rel=0.06)
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.06)
    shape = 1 / cv**2
    if cv <= 1:  # with more variation, rounding to nanoseconds makes many short gaps equal
        assert stats.kstest(found * 4, stats.gamma(shape, scale=1 / shape).cdf).pvalue > 0.01


def test_a_rate_only_scales_and_a_longer_trace_begins_with_the_shorter() -> None:
    slow, fast = (build({**SHAREGPT, "rate": rate}).requests for rate in (1.0, 4.0))
    assert [request.arrival_ns // 4 for request in slow] == pytest.approx([r.arrival_ns for r in fast], abs=1)
    assert build({**SHAREGPT, "rate": 1.0, "num_requests": 5000}).requests[:128] == slow
    assert [request.prompt_len for request in slow] == [request.prompt_len for request in fast]


def test_streams_are_independent_of_each_other() -> None:
    base = build(SHAREGPT).requests
    other = build({**SHAREGPT, "prompt": {"kind": "fixed", "value": 1}, "output": SHAREGPT["output"]}).requests
    same = sum(a.output_len == b.output_len for a, b in zip(base, other, strict=True))
    assert same > 60  # only pairs drawn again shift the two
    assert [request.prompt_len for request in build(SHAREGPT, seed=1).requests] != [r.prompt_len for r in base]


def test_duration_fills_the_time_and_no_more() -> None:
    workload = build({**SHAREGPT, "rate": 2.0, "duration_s": 3600})
    assert len(workload.requests) == pytest.approx(7200, rel=0.05)
    assert 3590e9 < workload.requests[-1].arrival_ns < 3600e9
    assert workload.notes["offered_rate"] == pytest.approx(2, rel=0.05)
    with pytest.raises(WorkloadError, match=r"workload\.duration_s"):
        build({**SHAREGPT, "duration_s": 60})


@pytest.mark.parametrize(
    ("name", "mean", "top"),
    [
        ("sharegpt_input", 161.39, 2028),
        ("sharegpt_output", 338.04, 2009),
        ("alpaca_input", 19.6, 508),
        ("alpaca_output", 58.6, 1470),
    ],
)
def test_histograms_reproduce_the_published_means(name: str, mean: float, top: int) -> None:
    histogram = HISTOGRAMS[name]
    assert len(histogram.counts) == 128
    assert sum(histogram.counts) == (79_731 if name.startswith("sharegpt") else 52_002)
    lengths = histogram.sample(np.random.default_rng(0), 200_000)
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert lengths.min() >= 1
    assert lengths.max() <= top


def test_pairs_over_the_model_length_are_drawn_again_and_counted() -> None:
    workload = build({**SHAREGPT, "num_requests": 5000})
    assert len(workload.requests) == 5000
    assert max(request.prompt_len + request.output_len for request in workload.requests) <= 2048
    assert 0 < workload.notes["dropped_fit"] == workload.notes["rows_read"] - 5000
    assert workload.banner is None
    short = build({**SHAREGPT, "num_requests": 500}, max_model_len=300)
    assert len(short.requests) == 500
    assert short.banner is not None
    with pytest.raises(WorkloadError, match="fit max_model_len=15"):
        build({**SHORT}, max_model_len=15)


@pytest.mark.parametrize(("cap", "mean"), [(32, 15.3), (128, 53.5), (512, 118.4), (1536, 128.0)])
def test_capped_exponential_draws_again_and_has_no_spike_at_the_cap(cap: int, mean: float) -> None:
    config = {**SHORT, "output": {"kind": "exponential", "mean": 128, "cap": cap}}
    outputs = np.array([request.output_len for request in build(config).requests])
    assert outputs.mean() == pytest.approx(mean, rel=0.03)
    assert outputs.max() <= cap
    assert (outputs == cap).mean() < 2 / cap


def test_lognormal_and_uniform_have_the_asked_moments() -> None:
    config = {**SHORT, "prompt": {"kind": "lognormal", "mean": 200, "cv": 0.8}}
    config["output"] = {"kind": "uniform", "low": 10, "high": 20}
    requests = build(config, max_model_len=100_000).requests
    prompts = np.array([request.prompt_len for request in requests])
    assert prompts.mean() == pytest.approx(200, rel=0.03)
    assert prompts.std() / prompts.mean() == pytest.approx(0.8, rel=0.05)
    assert {request.output_len for request in requests} == set(range(10, 21))


def test_same_seed_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    script = (
        "import sys; from harness.workload import build_workload, export\n"
        "length = lambda name: {'kind': 'histogram', 'histogram': name}\n"
        "config = {'num_requests': 300, 'arrival': 'gamma', 'rate': 3.0, 'cv': 2.0,\n"
        "          'prompt': length('alpaca_input'), 'output': length('alpaca_output')}\n"
        "export(build_workload(config, 2048, 42).requests, sys.argv[1])\n"
    )
    root = Path(__file__).parents[2]
    results = []
    for hash_seed in ("0", "12345"):
        path = tmp_path / f"{hash_seed}.jsonl.gz"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, env=environment, cwd=root)
        results.append(path.read_bytes())
    assert results[0] == results[1]


def test_export_is_the_same_each_time_and_another_seed_is_another_trace(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    export(build(SHAREGPT).requests, first)
    export(build(SHAREGPT).requests, again)
    export(build(SHAREGPT, seed=1).requests, other)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
