"""How many requests a second a simulation serves. Run: pytest tests/benchmarks/test_simulation.py --benchmark-only

`requests_per_s` in the result file is the figure; `peak_mib` what the process took at most, everything before included.
The peer's set-up is Vidur's: Llama-2-7B on an A100, total lengths uniform from 96 to 768 with prompt : output = 2 : 1,
Poisson at 6.45 requests a second, at most 256 sequences in a batch (330-400 requests/s in its own loop).
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from pytest_benchmark.fixture import BenchmarkFixture

from allocators.paged import Paged
from harness.layout import layout_of
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table, write_requests
from harness.metrics.summary import summarize
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.latency.roofline import Roofline
from harness.runner.simulated import SimulatedModelRunner
from harness.runner.simulated_device import SimulatedDevice
from harness.workload import Workload, build_workload
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand

REPOSITORY = Path(__file__).parents[2]
MODELS = REPOSITORY / "experiments" / "model"
PAPER: Any = OmegaConf.create({"device": {"latency": "opt-13b-a100-sosp23"}})


def sharegpt(count: int) -> Workload:
    """Fig. 11 lengths, all at time 0."""
    lengths = {name: {"kind": "histogram", "histogram": f"sharegpt_{name}put"} for name in ("in", "out")}
    config = {"num_requests": count, "prompt": lengths["in"], "output": lengths["out"]}
    return build_workload(config, max_model_len=2048, seed=0)


def vidur(count: int) -> Workload:
    """The peer's trace."""
    rng = np.random.default_rng(0)
    totals = rng.integers(96, 769, count)
    arrivals = np.cumsum(rng.exponential(1e9 / 6.45, count)).astype(np.int64)
    rows = zip(arrivals.tolist(), (totals * 2 // 3).tolist(), totals.tolist(), strict=True)
    return Workload([Request(i, at, prompt, total - prompt) for i, (at, prompt, total) in enumerate(rows)])


def serve(
    workload: Workload, latency: Any, slots: int, steps: Path | None = None, exact: bool = False
) -> dict[str, Any]:
    """From requests to the summary row."""
    scheduler = Continuous(Paged(slots, 2048), on_demand, max_model_len=2048)
    recorder = Recorder(steps, keep=False)
    replay(Source(workload), [Engine(scheduler, SimulatedModelRunner(latency, exact), recorder)], Clock())
    table = request_table(recorder, workload.requests)
    if steps:
        write_requests(table, steps.with_name("requests.csv"))
    return summarize(recorder, table, slots)


def measure(benchmark: BenchmarkFixture, count: int, make: Any, *arguments: Any) -> None:
    summary = benchmark.pedantic(serve, setup=lambda: ((make(count), *arguments), {}), rounds=3)
    assert summary["finished"] == count
    benchmark.extra_info["requests_per_s"] = count / benchmark.stats["median"]
    benchmark.extra_info["steps_per_request"] = summary["steps"] / count
    benchmark.extra_info["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("exact", [False, True], ids=["jumps", "every step"])
def test_vidurs_set_up(benchmark: BenchmarkFixture, exact: bool) -> None:
    """Its pool: 90 % of 80 GB less the weights."""
    model: Any = OmegaConf.to_container(OmegaConf.load(MODELS / "llama2_7b.yaml").config)
    latency = Roofline("a100_80gb", model)
    left = int(0.9 * latency.hardware.memory_bytes) - 2 * latency.weights.parameters
    slots = left // layout_of(model).unit_bytes
    measure(benchmark, 2_000, vidur, latency, slots, None, exact)


@pytest.mark.parametrize("count", [1_000, 4_000])
def test_a_saturated_pool(benchmark: BenchmarkFixture, count: int) -> None:
    """ShareGPT through continuous + paged, 15,728 slots: the cost of a request does not grow with their number."""
    measure(benchmark, count, sharegpt, SimulatedDevice(PAPER).latency, 15_728)


@pytest.mark.parametrize("count", [10_000, 50_000])
def test_the_whole_command(benchmark: BenchmarkFixture, tmp_path: Path, count: int) -> None:
    """From the command line to the figures, in a process of its own: `cpu_s` is its CPU time, `peak_mib` its memory.

    `peak_mib` is that of the largest process so far, so run the sizes in this order.
    """
    command = [sys.executable, "-m", "harness", "device=simulated", "model=opt_13b", "system=paged+on_demand",
               f"workload.num_requests={count}", f"hydra.run.dir={tmp_path / 'run'}"]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    benchmark.pedantic(subprocess.run, (command,), {"cwd": REPOSITORY, "check": True, "capture_output": True}, rounds=1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (tmp_path / "run" / "figures").is_dir()
    benchmark.extra_info["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    benchmark.extra_info["peak_mib"] = after.ru_maxrss / 1024


def test_a_saturated_pool_with_its_tables_written(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    measure(benchmark, 2_000, sharegpt, SimulatedDevice(PAPER).latency, 15_728, tmp_path / "steps.csv")
