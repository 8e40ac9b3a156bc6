"""A latency model of somebody's own with chance in it, kept outside: right with jumps and with exact steps."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.runner.latency.base import Latency
from harness.tasks.claims import composed
from tests.conformance.latency import LatencyConformance
from tests.strangers.conftest import Bring


class TestConforms(LatencyConformance):
    @pytest.fixture(autouse=True)
    def _outside(self, bring: Bring) -> None:
        self.cls = bring("jittery").Jittery

    def make(self) -> Latency:
        return self.cls(seed=3)


@pytest.mark.parametrize("scheduler", ["continuous", "vllm_v1", "static"])
def test_the_command_runs_it_and_jumps_change_nothing(tmp_path: Path, bring: Bring, scheduler: str) -> None:
    bring("jittery")
    keys = ["device=simulated", "device.latency={_target_: jittery.Jittery, sigma: 0.2}", f"scheduler={scheduler}",
            "workload.num_requests=60", "workload.rate=3", "kv_slots=6000"]  # fmt: skip
    for name, exact in (("jumps", "false"), ("exact", "true")):
        overrides = [*keys, f"simulation.exact_steps={exact}"]
        row = run_job(composed(overrides), tmp_path / name, overrides)
        assert row["status"] == "finished", row["error"]
    for table in ("requests.csv", "steps.csv"):
        assert (tmp_path / "jumps" / table).read_bytes() == (tmp_path / "exact" / table).read_bytes()
    steps = pd.read_csv(tmp_path / "jumps" / "steps.csv")
    assert steps["execute_ms"][steps["num_seqs"] > 0].nunique() > 500
