"""An allocator that lets sequences share what they begin with, written with only `allocators/base.py` at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.job import run_job
from harness.tasks.claims import composed
from tests.strangers.test_two_page_sizes import copied

RUN = ["allocator._target_=prefix_blocks.PrefixBlocks", "device=simulated", "workload.num_requests=16",
       "workload.shared_prefix=100", "kv_slots=3000", "max_model_len=1024"]  # fmt: skip


@pytest.mark.parametrize("scheduler", [
    "vllm_v1", pytest.param("continuous", marks=pytest.mark.slow), pytest.param("static", marks=pytest.mark.slow),
])  # fmt: skip
def test_it_is_right_in_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str) -> None:
    copied("prefix_blocks", tmp_path, monkeypatch)
    tables = set()
    for name, keys in {"jumps": [], "exact": ["simulation.exact_steps=true"], "checked": ["debug=true"]}.items():
        overrides = [*RUN, f"scheduler={scheduler}", *keys]
        row = run_job(composed(overrides), tmp_path / name, overrides)
        assert row["status"] == "finished", row["error"]
        assert row["prefix_hit_pct"] > 20
        tables.add((tmp_path / name / "requests.csv").read_bytes())
    assert len(tables) == 1
