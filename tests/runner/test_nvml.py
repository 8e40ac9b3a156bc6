"""The sampler against a made-up card."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from harness.runner.nvml import NvmlSampler


def card(**broken):
    """A `pynvml` whose card draws 100 W at 50 % and counts energy at 200 W."""
    start = time.perf_counter()
    functions = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=50),
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(used=3 * 2**30),
        "nvmlDeviceGetPowerUsage": lambda card: 100_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda card: (time.perf_counter() - start) * 200_000,
    }
    return SimpleNamespace(**functions | broken)


def fail(*_):
    raise RuntimeError("not supported")


def sampled(monkeypatch, pynvml):
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    with NvmlSampler(interval_s=0.01) as sampler:
        time.sleep(0.2)
    return sampler.facts(tokens=10)


def test_means_and_energy_from_the_cards_own_counter(monkeypatch):
    facts = sampled(monkeypatch, card())
    assert (facts["gpu_utilization_pct"], facts["gpu_memory_used_gib"], facts["gpu_power_w"]) == (50, 3, 100)
    assert facts["gpu_samples"] >= 3
    assert facts["gpu_energy_j"] > 30  # 200 W for 0.2 s or more
    assert facts["gpu_energy_per_output_token_j"] == pytest.approx(facts["gpu_energy_j"] / 10)


def test_energy_from_power_where_the_card_does_not_count_it(monkeypatch):
    facts = sampled(monkeypatch, card(nvmlDeviceGetTotalEnergyConsumption=fail))
    assert facts["gpu_energy_j"] >= 20


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetPowerUsage"])
def test_a_card_that_tells_nothing_leaves_nulls_and_a_reason(monkeypatch, broken):
    facts = sampled(monkeypatch, card(**{broken: fail}))
    assert facts["gpu_utilization_pct"] is None
    assert "not supported" in facts["gpu_note"]
