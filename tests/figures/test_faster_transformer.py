"""FasterTransformer's row: lanes as long as the experiment's longest request, steps of its own."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.job.build import resolve_lane_slots
from harness.runner.simulated_device import SimulatedDevice
from harness.tasks.claims import composed
from schedulers.request import Request

SERVERS = {"opt_13b_a100": 23.8, "opt_66b_4a100": 37.8, "opt_175b_8a100_80gb": 55.8}  # ms a token, Fig. 12, 0.01/s


def test_as_many_requests_at_once_as_lanes_of_the_longest_fit(tmp_path: Path) -> None:
    job = ["server=opt_13b_a100", "workload=alpaca", "system=faster_transformer", "workload.num_requests=200"]
    row = run_job(composed(job), tmp_path, job)
    assert (row["status"], row["system"], row["rejected"]) == ("finished", "FasterTransformer", 0)
    requests, steps = (pd.read_csv(tmp_path / name) for name in ("requests.csv", "steps.csv"))
    longest = (requests["prompt_tokens"] + requests["output_tokens"]).max()
    assert longest < 1024
    assert steps["num_seqs"].max() == 15_728 // longest


def test_other_lanes_stay_as_they_are() -> None:
    requests = [Request(0, 0, 5, 7), Request(1, 0, 9, 2)]
    assert resolve_lane_slots(composed(["system=faster_transformer"]), requests).allocator.lane_slots == 12
    fixed = ["system=static+contiguous+max_model_len", "allocator.lane_slots=9"]
    for other in (["system=static+contiguous+max_model_len"], ["system=vllm"], fixed):
        cfg = composed(other)
        assert resolve_lane_slots(cfg, requests) is cfg


@pytest.mark.parametrize("server", SERVERS)
def test_a_lone_request_takes_what_it_took_there(server: str) -> None:
    latency = SimulatedDevice(composed([f"server={server}", "system=faster_transformer"])).latency
    assert (latency.base_ns + latency.lane_ns) / 1e6 == pytest.approx(SERVERS[server], abs=0.15)
