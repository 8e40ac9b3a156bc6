"""The loop around the model: everything a step costs but `execute`, with 64 and 256 sequences that decode.

Deliver, schedule, allocate, complete, books and records, with a runner that computes nothing. The limits we hold
ourselves to stand in ``extra_info`` beside the measurement and are never asserted.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import quantiles
from types import SimpleNamespace

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from allocators.paged import Paged
from harness.metrics.recorder import Recorder
from harness.replay.clock import MeasuredClock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.base import StepResult
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request
from schedulers.reservation import RESERVATIONS

STEPS, PROMPT = 400, 100
LIMIT_MS = {64: 0.12, 256: 0.4}


class Nothing:
    """Computes nothing and says token 1; notes when it was called."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int, int]] = []  # sequences, entered, left (ns)

    def execute(self, batch: Batch) -> StepResult:
        entered = time.perf_counter_ns()
        tokens = [1 for seq in batch.seqs if seq.stored == seq.num_tokens]
        self.spans.append((len(batch.seqs), entered, time.perf_counter_ns()))
        return StepResult(tokens=tokens)


def steps_around_nothing(sequences: int, folder: Path) -> list[float]:
    """Milliseconds between leaving `execute` and entering it again, of steps with all sequences."""
    runner = Nothing()
    capacity = sequences * (PROMPT + STEPS + 16) // 16 * 16 * 2
    scheduler = Continuous(
        Paged(capacity, 2048, block_size=16), RESERVATIONS["on_demand"], max_model_len=2048, max_num_seqs=sequences,
        max_num_batched_tokens=sequences * PROMPT,
    )  # fmt: skip
    requests = [Request(i, 0, PROMPT, STEPS) for i in range(sequences)]
    workload = SimpleNamespace(requests=requests, concurrency=None)
    replay(Source(workload), [Engine(scheduler, runner, Recorder(folder / "steps.csv"))], MeasuredClock())
    pairs = zip(runner.spans, runner.spans[1:], strict=False)
    return [(entered - left) / 1e6 for (before, _, left), (now, entered, _) in pairs if before == now == sequences]


@pytest.mark.parametrize("sequences", [64, 256])
def test_a_step_without_execute(benchmark: BenchmarkFixture, sequences: int, tmp_path: Path) -> None:
    steps_around_nothing(sequences, tmp_path)
    times = benchmark.pedantic(steps_around_nothing, args=(sequences, tmp_path), rounds=1)
    lower, middle, upper = quantiles(times, n=4)
    benchmark.extra_info.update(
        sequences=sequences, steps=len(times), limit_ms=LIMIT_MS[sequences],
        lower_quartile_ms=lower, median_ms=middle, upper_quartile_ms=upper, within_limit=lower <= LIMIT_MS[sequences],
    )  # fmt: skip
