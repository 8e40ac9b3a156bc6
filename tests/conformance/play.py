"""Replays in a line, for tests: requests in, tables and sums out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pandas as pd

from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.summary import summarize
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.base import StepResult
from harness.runner.latency.base import Latency
from harness.runner.latency.fitted import FittedLatency
from schedulers.base import Scheduler
from schedulers.request import Batch, Request

SECOND = 1_000_000_000
PAPER = FittedLatency((26_200_000, 420_000, 0, 0, 100_000, 0))  # OPT-13B on an A100: a step takes 26.2 + 0.42 b ms


class Steps:
    """Step times one after the other, the last one for ever; in seconds."""

    def __init__(self, *seconds: float) -> None:
        self.ns = [round(s * SECOND) for s in seconds]

    def step_ns(self, batch: Batch) -> int:
        return self.ns.pop(0) if len(self.ns) > 1 else self.ns[0]


@dataclass
class Runner:
    """Any latency model as a runner; `before` is called with each batch."""

    latency: Latency
    before: Callable[[Batch], None] = lambda batch: None

    def execute(self, batch: Batch) -> StepResult:
        self.before(batch)
        return StepResult(tokens=None, ns=self.latency.step_ns(batch))


@dataclass
class Played:
    """What a replay gave."""

    table: pd.DataFrame
    summary: dict[str, Any]
    recorder: Recorder

    def row(self, request: int = 0) -> dict[str, Any]:
        """A request's row of the table, with None where there is nothing."""
        row = self.table.set_index("id").loc[request]
        return {str(key): None if pd.isna(value) else value for key, value in row.items()}


def play(requests: Iterable[Request], scheduler: Scheduler, latency: Latency = PAPER, *, clock: Clock | None = None,
         concurrency: int | None = None, before: Callable[[Batch], None] = lambda batch: None,
         recorder: Recorder | None = None, depth: int = 1) -> Played:  # fmt: skip
    """Replay fresh copies of `requests`."""
    fresh = [Request(r.id, r.arrival_ns, r.prompt_len, r.output_len, r.max_tokens, n=r.n) for r in requests]
    recorder = recorder or Recorder()
    workload = SimpleNamespace(requests=fresh, concurrency=concurrency)
    engine = Engine(scheduler, Runner(latency, before), recorder, depth)
    replay(Source(workload), [engine], clock or Clock())
    table = request_table(recorder, fresh)
    return Played(table, summarize(recorder, table, scheduler.allocator.capacity), recorder)
