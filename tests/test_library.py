"""kvlab in a notebook: the documented lines run, and say what the command line says."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import harness
import harness.__main__  # (its resolvers)
from allocators.paged import Paged
from allocators.virtual import Virtual
from harness.errors import HarnessError
from harness.job import run_job
from harness.routers.round_robin import RoundRobin
from harness.tasks.claims import composed
from schedulers.continuous import Continuous
from schedulers.request import Batch
from schedulers.vllm_v1 import VllmV1
from tests.conformance.play import PAPER

ROOT = Path(__file__).parents[1]


def test_the_documented_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(import harness.*?|from functools.*?)```", text, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(block, scope)
    run, two = scope["run"], scope["two"]
    assert len(run.requests) == len(two.requests) == 60
    assert set(run.requests["status"]) == {"finished"}
    assert run.steps["used"].max() <= 8_000
    assert set(two.requests["engine"]) == {0, 1}
    assert sum(one["finished"] for one in two.summary["engines"]) == two.summary["finished"] == 60
    assert len(capsys.readouterr().out.splitlines()) >= 3


def test_it_says_what_the_command_says(tmp_path: Path) -> None:
    overrides = ["device=simulated", "workload.num_requests=40", "workload.rate=5", "kv_slots=6000", "memory_map=false"]
    row = run_job(composed(overrides), tmp_path, overrides)
    workload = harness.load_workload("sharegpt", num_requests=40, rate=5)
    limits = {"max_num_batched_tokens": 2560, "watermark": 0.01, "chunked_prefill": False}
    for _ in range(2):  # the workload is left as it is
        run = harness.simulate(workload, partial(Paged, block_size=16), partial(Continuous, **limits),
                               kv_slots=6_000, debug=True)  # fmt: skip
        for table, name in ((run.requests, "requests.csv"), (run.steps, "steps.csv")):
            table.to_csv(tmp_path / "mine.csv", index=False)
            mine, theirs = (pd.read_csv(tmp_path / file) for file in ("mine.csv", name))
            pd.testing.assert_frame_equal(mine[theirs.columns], theirs)
        assert run.summary["output_throughput"] == row["output_throughput"]


def test_parts_of_ones_own() -> None:
    class Second:
        def step_ns(self, batch: Batch) -> int:
            return 1_000_000_000

    workload = harness.make_workload([4, 4], [3, 2], [0.0, 0.5], priority=[1, 0])
    assert [request.priority for request in workload.requests] == [1, 0]
    run = harness.simulate(workload, Paged(640, 64), latency=Second())
    assert run.requests["last_token_s"].tolist() == [3, 3]
    ahead = harness.simulate(workload, scheduler=VllmV1, latency=Second(), depth=2)
    assert ahead.requests["last_token_s"].tolist() == [3, 4]
    closed = harness.simulate(harness.make_workload([4, 4], [3, 2], concurrency=1), latency=Second())
    assert closed.requests["last_token_s"].tolist() == [3, 5]


def test_a_device_brings_its_layout_and_its_pool() -> None:
    device = harness.open_device("model=llama_8b", "device.hardware=h100", "device.latency=roofline", "kv_slots=4096")
    workload = harness.make_workload(np.full(20, 500), np.full(20, 50))
    run = harness.simulate(workload, Virtual, latency=device, debug=True)
    [engine] = run.engines
    assert run.summary["finished"] == 20
    assert engine.scheduler.allocator.capacity == 4096
    slow = harness.simulate(workload, latency=harness.open_device("model=llama_8b", "device.hardware=l4",
                                                                  "device.latency=roofline"))  # fmt: skip
    assert slow.summary["duration_s"] > run.summary["duration_s"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(lambda w: harness.simulate(w, latency="rooflin"), "did you mean roofline"),
     (lambda w: harness.simulate(w, latency="roofline"), r"needs device\.hardware"),
     (lambda w: harness.simulate(w, engines=2), "2 engines need a router"),
     (lambda w: harness.simulate(w, Paged(64, 64), engines=2, router=RoundRobin), "an allocator each"),
     (lambda w: harness.simulate(w, partial(Paged, 16)), "name its arguments"),
     (lambda w: harness.simulate(w, partial(Paged, block=16)), "allocator: Paged refuses its arguments"),
     (lambda w: harness.simulate(w, reservation="exact", allocator=Virtual, latency=PAPER), "Virtual"),
     (lambda w: harness.load_workload("sharegtp"), "sharegpt"),
     (lambda w: harness.load_workload("sharegpt", rat=4), "rat"),
     (lambda w: harness.make_workload([1, 2], [1]), "prompt_tokens 2, output_tokens 1"),
     (lambda w: harness.make_workload([1, 0], [1, 1]), "prompt_tokens must be whole numbers"),
     (lambda w: harness.make_workload([1, 1], [1, 1], [1.0, 0.5]), "in order"),
     (lambda w: harness.make_workload([1], [1], colour=["red"]), "colour")],
)  # fmt: skip
def test_a_mistake_is_one_line(wrong: Any, message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        wrong(harness.make_workload([4, 4], [3, 2]))


def test_importing_it_costs_nothing() -> None:
    code = "import sys, harness; assert not {'pandas', 'numpy', 'torch', 'hydra'} & set(sys.modules), 'not lazy'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert {"simulate", "make_workload"} <= set(dir(harness))
    with pytest.raises(AttributeError, match="no attribute 'simulator'"):
        _ = harness.simulator
