"""Schedulers over models whose layers keep different tokens: served, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.tasks.claims import composed

RUN = ["device=simulated", "device.latency=roofline", "device.hardware=l4", "model=gemma3_mini",
       "workload.num_requests=5", "workload.rate=50", "workload.fit=scale", "max_model_len=256", "kv_slots=500",
       "memory_map=false", "debug=true"]  # fmt: skip


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    return run_job(composed([*RUN, *overrides]), folder, [*RUN, *overrides])


@pytest.mark.parametrize("scheduler", ["ideal", pytest.param("past_future", marks=pytest.mark.slow)])
def test_who_foresees_slots_needs_slots(tmp_path: Path, scheduler: str) -> None:
    """Every token kept in every layer is a slot, and what was foreseen comes: nobody is preempted."""
    refused = run(tmp_path / "a", f"scheduler={scheduler}", "allocator=vllm_hybrid")
    assert refused["status"] == "failed"
    assert "foresees a slot for each token, and here layers lie apart" in refused["error"]
    row = run(tmp_path / "b", f"scheduler={scheduler}", "allocator=paged", "allocator.block_size=1")
    assert (row["status"], row["finished"]) == ("finished", 5), row["error"]
    if scheduler == "ideal":
        assert row["preemptions"] == 0 < row["saturated_s"]


@pytest.mark.parametrize("allocator", ["vllm_hybrid", pytest.param("jenga", marks=pytest.mark.slow)])
def test_one_step_ahead_of_what_is_given_back_behind_a_window(tmp_path: Path, allocator: str) -> None:
    """The books sum in every step (the checker looks), all are served, and what a window has left is given back."""
    steps = {}
    for name in ("false", "true"):
        row = run(tmp_path / name, "scheduler=vllm_v1", f"allocator={allocator}", f"simulation.async_scheduling={name}")
        assert (row["status"], row["finished"]) == ("finished", 5), row["error"]
        steps[name] = pd.read_csv(tmp_path / name / "steps.csv")
    books = ["used", "finished_held", "reserved", "over_reserved", "rounding", "cached", "fragmented", "short", "free",
             "out_of_window", "padding", "state"]  # fmt: skip
    sums = {total for table in steps.values() for total in table[books].sum(axis=1)}
    assert len(sums) == 1
    assert steps["true"]["used.full"].max() > 0 < steps["true"]["preempted"].sum() + steps["true"]["waiting"].max()
    worst = {name: table["out_of_window"].max() / table["used"].max() for name, table in steps.items()}
    assert worst["true"] <= 1.5 * worst["false"] + 0.1  # a step later at most
