"""Models whose layers keep different tokens: steps taken together are those taken one by one, to the last byte."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.tasks.claims import composed

RUN = ["device=simulated", "device.latency=roofline", "device.hardware=h100", "max_model_len=8192", "workload=trace",
       "workload.path=${repository:}/experiments/data/chat_rounds.jsonl", "workload.limit=40",
       "kv_bytes=2000000000"]  # fmt: skip
HYBRID = ["scheduler=vllm_v1", "allocator=vllm_hybrid", "allocator.enable_prefix_caching=true"]
SYSTEMS = {
    "windows": ["model=gemma3_12b", *HYBRID],
    "states": ["model=qwen3_next_80b_a3b", *HYBRID],
    "chunks": ["model=llama4_scout", *HYBRID],
    "jenga": ["model=gemma3_12b", "scheduler=vllm_v1", "allocator=jenga"],
    "jenga, prefixes": [
        "model=gemma3_12b",
        "scheduler=vllm_v1",
        "allocator=jenga",
        "allocator.enable_prefix_caching=true",
    ],
    "dual pool": ["model=jamba_mini", "allocator=dual_pool"],
    "rings": ["model=gemma3_12b", "allocator=split", "reservation=exact"],
    "virtual rings": ["model=gemma3_12b", "allocator=split", "allocator.placement=virtual"],
}


@pytest.mark.parametrize("system", [pytest.param(name, marks=() if name in ("windows", "states") else
                                                 pytest.mark.slow) for name in SYSTEMS])  # fmt: skip
def test_jumps_are_exact_steps(system: str, tmp_path: Path) -> None:
    for name in ("false", "true"):
        keys = [*RUN, *SYSTEMS[system], f"simulation.exact_steps={name}"]
        row = run_job(composed(keys), tmp_path / name, keys)
        assert row["status"] == "finished", row["error"]
        assert row["finished"] == 40
    for table in ("requests.csv", "steps.csv"):
        assert (tmp_path / "false" / table).read_bytes() == (tmp_path / "true" / table).read_bytes()
