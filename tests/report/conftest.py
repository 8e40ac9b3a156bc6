"""Job folders as the program writes them, made by replaying a synthetic trace with a simulated runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from allocators.base import Allocator
from allocators.buddy import Buddy
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.summary import summarize
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.latency.fitted import FittedLatency
from harness.runner.simulated import SimulatedModelRunner
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import RESERVATIONS
from schedulers.static import Static

LATENCY = FittedLatency((26.2e6, 0.42e6, 10.0, 1e6, 0.1e6, 1.0))
ALLOCATORS: dict[str, type[Allocator]] = {"contiguous": Contiguous, "buddy": Buddy, "paged": Paged}
SCHEDULERS: dict[str, type[Scheduler]] = {"static": Static, "continuous": Continuous}
SYSTEMS = {
    "static + contiguous(max_model_len)": ("contiguous", "max_model_len", "static"),
    "static + paged(on_demand)": ("paged", "on_demand", "static"),
    "continuous + contiguous(max_model_len)": ("contiguous", "max_model_len", "continuous"),
    "Orca (Max)": ("buddy", "max_model_len", "continuous"),
    "Orca (Pow2)": ("buddy", "pow2", "continuous"),
    "Orca (Oracle)": ("buddy", "exact", "continuous"),
    "vLLM": ("paged", "on_demand", "continuous"),
}


def build_scheduler(config: Any, capacity: int) -> Scheduler:
    """What `harness.job.build.build_scheduler` does, for the configurations written here."""
    allocator = ALLOCATORS[config["allocator"]](capacity, config["max_model_len"])
    reservation = RESERVATIONS[config["reservation"]]
    return SCHEDULERS[config["scheduler"]](allocator, reservation, max_model_len=config["max_model_len"])


def trace(n: int, seed: int = 0, rate: float | None = None) -> list[Request]:
    """Skewed lengths that fill a pool of a few thousand slots; all at time 0, or Poisson."""
    rng = np.random.default_rng(seed)
    prompts = np.minimum(rng.lognormal(3.5, 1.2, n), 900).astype(int) + 1
    outputs = np.minimum(rng.exponential(150, n), 900).astype(int) + 1
    arrivals = np.zeros(n) if rate is None else np.cumsum(rng.exponential(1e9 / rate, n))
    rows = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return [Request(i, round(at), p, o) for i, (at, p, o) in enumerate(rows)]


def write_job(path: Path, system: str, requests: list[Request], capacity: int = 8192, max_model_len: int = 2048,
              **more: Any) -> dict[str, Any]:  # fmt: skip
    """Replay `requests` on `system` and write the job's folder; its summary."""
    path.mkdir(parents=True)
    who = dict(zip(("allocator", "reservation", "scheduler"), SYSTEMS[system], strict=True))
    config = {**who, "max_model_len": max_model_len}
    (path / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    recorder = Recorder(path / "steps.csv")
    workload = SimpleNamespace(requests=requests, concurrency=None)
    engine = Engine(build_scheduler(config, capacity), SimulatedModelRunner(LATENCY), recorder)
    replay(Source(workload), [engine], Clock())
    table = request_table(recorder, requests)
    table.to_csv(path / "requests.csv", index=False)
    summary = {
        "system": system, **who, "status": "finished", "error": None, "overrides": [f"system={system}"], "repeat": 0,
        "seed": 0, "workload": "sharegpt", "model": "opt-small", "device": "cpu", "capacity": capacity,
        "block_size": 16, "max_model_len": max_model_len, "max_num_seqs": 256, "warnings": [], "banner": None,
        "workload_notes": {}, **summarize(recorder, table, capacity), **more,
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary, allow_nan=False))
    return summary


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., Path]:
    """Makes a sweep folder: ``sweep(["vLLM", ...], n=32)``."""

    def make(systems: list[str], n: int = 32, **more: Any) -> Path:
        for i, system in enumerate(systems):
            write_job(tmp_path / "sweep" / str(i), system, trace(n), **more)
        return tmp_path / "sweep"

    return make


@pytest.fixture(scope="session")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seven systems of the headline, once for all tests that only read them."""
    folder = tmp_path_factory.mktemp("seven") / "sweep"
    for i, system in enumerate(SYSTEMS):
        write_job(folder / str(i), system, trace(48))
    return folder
