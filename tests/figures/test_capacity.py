"""The search finds the rate it should, whatever it starts from, and writes what it tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf

from harness.errors import HarnessError
from harness.tasks.capacity import Probes, bracket, find_capacity
from harness.tasks.claims import composed

TINY = ["experiment=capacity", "workload.duration_s=10", "workload.output.cap=60", "workload.prompt.cap=60",
        "kv_slots=1024", "max_model_len=128", "search.burst=40", "search.tolerance=0.2"]  # fmt: skip


class Known(Probes):
    """Probes of a system whose capacity is known."""

    def __init__(self, capacity: float) -> None:
        super().__init__(OmegaConf.create({"search": {"metric": "latency", "limit": 0.5}}), Path())
        self.capacity, self.tried = capacity, list[float]()

    def meets(self, rate: float) -> bool:
        self.tried.append(rate)
        return rate <= self.capacity


@pytest.mark.parametrize("start", [0.01, 0.9, 1.0, 1.1, 50.0])
def test_a_bracket_holds_the_capacity(start: float) -> None:
    probes = Known(1.0)
    low, high = bracket(probes, start)
    assert low <= 1.0 < high
    assert len(probes.tried) < 12


@pytest.mark.parametrize(("capacity", "word"), [(1e9, "met"), (0.0, "missed")])
def test_no_bracket_is_an_answer(capacity: float, word: str) -> None:
    with pytest.raises(HarnessError, match=f"is {word} at every rate"):
        bracket(Known(capacity), 1.0)


def run(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    cfg = composed([*TINY, *overrides])
    return find_capacity(cfg, tmp_path, set(), {})


def test_the_search_writes_every_probe(tmp_path: Path) -> None:
    row = run(tmp_path, "system=vllm", "search.rates=[0.5]")
    probes = pd.read_csv(tmp_path / "probes.csv").set_index("rate")
    assert probes["meets"].loc[row["capacity_rate"]]
    assert not probes["meets"].loc[row["capacity_fails_at"]]
    assert row["capacity_fails_at"] <= 1.2001 * row["capacity_rate"]
    assert 0.5 in probes.index
    assert row["probes"] == len(probes)
    for name in probes["dir"]:
        assert (tmp_path / name / "config.yaml").exists()
        assert not (tmp_path / name / "requests.csv").exists()
    assert row["normalized_latency_mean_s"] <= 0.5


@pytest.mark.slow
def test_systems_come_in_the_known_order(tmp_path: Path) -> None:
    rates = [run(tmp_path / system, f"system={system}")["capacity_rate"]
             for system in ("static+contiguous+max_model_len", "orca_max", "orca_oracle", "vllm", "ideal")]  # fmt: skip
    assert rates == sorted(rates)
    assert rates[3] > 1.3 * rates[1]


def test_a_trace_has_a_length(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"workload\.duration_s"):
        run(tmp_path, "workload.duration_s=null")
