"""What the memory map costs a replay. Run: pytest tests/benchmarks/test_memory_map_cost.py --benchmark-only

The same requests with and without a map, in turn, so that a busy machine is busy for both; writing the map is counted.
In a simulation steps cost least, so the map's share is largest there. `cost_pct` in the result file is the figure; the
limit that we hold ourselves to stands beside it and is not asserted.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from omegaconf import OmegaConf
from pytest_benchmark.fixture import BenchmarkFixture

from harness.job import infrequent_gc, make_recorder, open_device
from harness.job.build import build_scheduler
from harness.metrics.memory_map import MappedRecorder
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.tasks.claims import composed
from harness.workload import build_workload

LIMIT_PCT = 5
ROUNDS = 5


def seconds(system: str, requests: int, mapped: bool, folder: Path) -> float:
    """How long a replay takes, the writing of its map included."""
    overrides = ["device=simulated", f"system={system}", f"workload.num_requests={requests}"]
    cfg = composed([*overrides, f"memory_map={'auto' if mapped else 'false'}"])
    settings: Any = OmegaConf.to_container(cfg.workload, resolve=True)
    workload = build_workload(settings, cfg.max_model_len, cfg.seed)
    device = open_device(cfg, set())
    scheduler = build_scheduler(cfg, device.capacity, set(), device.layout)
    recorder = make_recorder(cfg, scheduler.allocator, folder)
    engine = Engine(scheduler, device.runner(scheduler.allocator), recorder, 1)
    with infrequent_gc():
        begun = time.perf_counter()
        replay(Source(workload), [engine], Clock())
        if isinstance(recorder, MappedRecorder):
            recorder.write(folder)
        return time.perf_counter() - begun


@pytest.mark.parametrize(("system", "requests"), [
    ("vllm", 2000), ("orca_pow2", 2000), ("static+contiguous+max_model_len", 1000)])  # fmt: skip
def test_a_map_of_a_simulation(benchmark: BenchmarkFixture, system: str, requests: int, tmp_path: Path) -> None:
    def rounds() -> list[tuple[float, float]]:
        return [(seconds(system, requests, False, tmp_path), seconds(system, requests, True, tmp_path))
                for _ in range(ROUNDS)]  # fmt: skip

    found = benchmark.pedantic(rounds, rounds=1)
    without, mapped = (median(times) for times in zip(*found, strict=True))
    cost = 100 * (median(one / other for other, one in found) - 1)
    benchmark.extra_info.update(
        system=system, requests=requests, without_s=without, with_s=mapped, cost_pct=cost, limit_pct=LIMIT_PCT,
    )  # fmt: skip
