"""A real engine, if one is running: KVLAB_SERVER=http://localhost:8000 pytest -m slow tests/live/test_real_engine.py.

vLLM's CPU engine serves a tiny model with random weights on two cores; the lines that start it stand in
`results/reference/live/README.md`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from harness.job import run_job
from harness.live.steps import client_steps
from harness.tasks.claims import composed

URL = os.environ.get("KVLAB_SERVER", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not URL, reason="needs a server: KVLAB_SERVER=http://localhost:8000"),
]
COUNT, PREFIX, PROMPT, TOKENS = 8, 256, 48, 12  # a block of vLLM on a CPU has 128 tokens


def test_every_request_is_served_with_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    overrides = ["device=server", f"server.url={URL}", "workload=fixed", f"workload.prompt.value={PROMPT}",
                 f"workload.output.value={TOKENS}", f"workload.num_requests={COUNT}", "workload.rate=4",
                 f"workload.shared_prefix={PREFIX}"]  # fmt: skip
    row = run_job(composed(overrides), tmp_path, overrides)
    assert row["status"] == "finished", row["error"]
    table = pd.read_csv(tmp_path / "requests.csv")
    assert (table["status"] == "finished").all()
    assert (table["output_tokens"] == TOKENS).all()
    assert table["reason"].isna().all()
    pieces = pd.read_parquet(tmp_path / "pieces.parquet")
    assert (pieces.groupby("request").size() == TOKENS).all(), "an event for each token"
    engine = pd.read_csv(tmp_path / "engine.csv")
    assert engine["output_tokens"].iloc[-1] == COUNT * TOKENS
    assert engine["prompt_tokens"].iloc[-1] == COUNT * (PREFIX + PROMPT)
    assert row["prefix_hit_pct"] > 0
    assert len(client_steps(tmp_path)) >= 0.8 * engine["steps"].iloc[-1], "all but the first after each pause"
    assert row["capacity"] > 0
    told = json.loads((tmp_path / "benchmark.json").read_text())
    assert told["total_output_tokens"] == COUNT * TOKENS
