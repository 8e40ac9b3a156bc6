"""Virtual contiguous placement from the configuration: sizes in bytes come from the model, mappings take time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.job.build import build_allocator
from harness.naming.labels import label
from harness.tasks.claims import composed


def allocator(*overrides: str) -> Any:
    return build_allocator(composed(["allocator=virtual", "reservation=on_demand", *overrides]), 10_000)


@pytest.mark.parametrize(
    ("overrides", "tokens", "buffers"),
    [
        (["device=simulated", "model=llama_8b", "device.tensor_parallel=2"], 64, 64),  # Llama-3-8B, as in the paper
        (["device=simulated", "model=llama_8b"], 32, 64),
        (["device=simulated", "model=llama_8b", "allocator.page_bytes=2097152"], 1024, 64),
        (["device=cpu"], 64, 4),  # opt_mini in float32
        (["device=cpu", "allocator.page_tokens=48"], 48, 4),
    ],
)
def test_the_model_says_how_many_tokens_a_page_group_holds(overrides: list[str], tokens: int, buffers: int) -> None:
    made = allocator(*overrides)
    assert made.page_tokens == tokens
    assert made.map_ns == buffers * (40_000 if made.page_tokens == 1024 else 8_600)


def test_mappings_take_time_unless_they_are_hidden(tmp_path: Path) -> None:
    took = {}
    for name, keys in {"free": ["allocator.map_us=0"], "hidden": [],
                       "waited for": ["allocator.background=false", "allocator.deferred=false"]}.items():  # fmt: skip
        overrides = ["system=vattention", "server=opt_13b_a100", "workload.num_requests=30", "kv_slots=4000", *keys]
        row = run_job(composed(overrides), tmp_path / name, overrides)
        assert row["status"] == "finished", row["error"]
        took[name] = row["duration_s"]
    assert took["free"] < took["hidden"] < 1.1 * took["free"]
    assert took["hidden"] < took["waited for"]


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["system=vattention"], "vAttention"),
        (["system=first_fit_compacting+exact"], "continuous + contiguous:first_fit, compacting(exact)"),
        (["system=first_fit_growing+on_demand"], "continuous + contiguous:first_fit, growing(on_demand)"),
        (["system=rebuild+first_fit+exact"], "rebuild + contiguous:first_fit(exact)"),
        (["system=first_fit+exact"], "continuous + contiguous:first_fit(exact)"),
    ],
)
def test_systems_are_named_after_what_they_do(overrides: list[str], name: str) -> None:
    assert label(composed(overrides)) == name
