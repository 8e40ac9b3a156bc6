"""Steps taken together are the steps taken one by one: same requests, times, gaps and books, to the last digit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator, Move
from allocators.buddy import Buddy
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.virtual import Virtual
from harness.clock import Clock
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.steps import Totals
from harness.metrics.summary import summarize
from harness.replayer import replay
from harness.runner.base import StepResult
from harness.runner.latency.base import LatencyModel
from harness.runner.latency.fitted import FittedLatency
from harness.runner.latency.roofline import Roofline
from harness.runner.simulated import SimulatedModelRunner
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request
from schedulers.reservation import RESERVATIONS
from schedulers.static import Static
from schedulers.vllm_v1 import VllmV1
from tests.latency.models import TINY

LATENCIES: dict[str, LatencyModel] = {
    "fitted": FittedLatency((1000.4, 37.3, 0.61, 55.5, 7.7, 0.013)),
    "constant": FittedLatency((10.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    "roofline": Roofline("l4", TINY, step_overhead_us=0.1, sequence_overhead_us=0.01),
}


class Rows(Totals):
    """Totals that keep what they add up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        super().add(rows)
        self.rows.append(rows.copy())


class Moving(SimulatedModelRunner):
    """Keeps the moves of each step, each slot of which takes 10 ns, and any waiting for the allocator."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.moves: list[list[Move]] = []

    def execute(self, batch: Batch) -> StepResult:
        if batch.moves:
            self.moves.append(batch.moves)
        result = super().execute(batch)
        return replace(result, ns=result.ns + 10 * sum(move.length for move in batch.moves))


def simulate(scheduler: Scheduler, requests: list[Request], latency: LatencyModel, exact: bool,
             concurrency: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Everything that a replay wrote down."""
    fresh = [Request(r.id, r.arrival_ns, r.prompt_len, r.output_len, r.max_tokens) for r in requests]
    recorder = Recorder(keep=False)
    recorder.steps.whole = rows = Rows()
    workload = SimpleNamespace(requests=fresh, concurrency=concurrency)
    runner = Moving(latency, exact)
    replay(workload, scheduler, runner, Clock(), recorder)
    table = request_table(recorder, fresh)
    summary = summarize(recorder, table, scheduler.allocator.capacity)
    steps = np.concatenate(rows.rows) if rows.rows else np.zeros((0, 0))
    tables = {name: getattr(scheduler.allocator, name, None) for name in ("tables", "pool", "_free", "_free_lanes")}
    if tables["pool"] is not None:
        tables["pool"] = tables["pool"].free_list()
    return {"moves": runner.moves, "table": table, "summary": summary, "steps": steps, "gaps": recorder.gaps.counts,
            "left": tables, "saturated": recorder.steps.saturated.by_time}  # fmt: skip


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["moves"] == other["moves"]
    assert one["steps"].tolist() == other["steps"].tolist()
    pd.testing.assert_frame_equal(one["table"], other["table"], check_exact=True)
    assert one["summary"] == other["summary"]
    assert one["gaps"] == other["gaps"]
    assert one["saturated"] == other["saturated"]
    left, right = one["left"], other["left"]
    assert np.array_equal(left.pop("tables"), right.pop("tables"))
    assert left == right


@st.composite
def allocators(draw: st.DrawFn, longest: int) -> Any:
    """Makes the same allocator any number of times."""
    capacity = draw(st.integers(4, 200))
    kinds = [
        "paged",
        "paged",
        "paged cached",
        "slab",
        "first_fit",
        "best_fit",
        "first_fit moving",
        "best_fit moving",
        "buddy",
        "virtual",
    ]
    kind = draw(st.sampled_from(kinds))
    moving = {}
    if "moving" in kind:
        compaction = draw(st.sampled_from(["never", "on_refusal"]))
        moving = {"compaction": compaction, "growth": draw(st.sampled_from([0, 1, 3, 16]))}
    mapping = {key: draw(st.booleans()) for key in ("background", "deferred")} if kind == "virtual" else {}
    size = draw(st.sampled_from([1, 4, 16]))
    back = draw(st.sampled_from(["front", "back"]))

    def make() -> Allocator:
        if kind.startswith("paged"):
            return Paged(capacity, longest, size, enable_prefix_caching="cached" in kind, freed_blocks=back)
        if kind == "virtual":
            return Virtual(capacity, longest, page_tokens={1: 1, 4: 3, 16: 8}[size], map_us=1.7, **mapping)
        return (
            Buddy(capacity, longest)
            if kind == "buddy"
            else Contiguous(capacity, longest, fit=kind.split()[0], **moving)
        )

    return make


@st.composite
def workloads(draw: st.DrawFn, longest: int) -> list[Request]:
    length, requests, now = st.integers(1, max(2 * longest // 3, 1)), list[Request](), 0
    for number in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0, 0, 700, 5_000, 20_000, 200_000]))
        requests.append(Request(number, now, draw(length), draw(length), draw(st.none() | length)))
    return requests


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([2, 7, 30, 100])),
        "chunked_prefill": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.3])),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority", "shortest_first", "longest_prefix"])),
    }


SCHEDULERS = {
    "continuous": (Continuous, {}),
    "prompts first": (Continuous, {"prefill_first": True}),
    "static": (Static, {}),
    "static, waits": (Static, {"max_wait_s": 3e-6, "compute_finished": False}),
    "vllm v1": (VllmV1, {}),
    "vllm v1, in pieces": (VllmV1, {"long_prefill_token_threshold": 3, "scheduler_reserve_full_isl": False}),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_jump_is_its_steps(name: str) -> None:
    cls, more = SCHEDULERS[name]

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        longest = data.draw(st.integers(2, 60), "max_model_len")
        make = data.draw(allocators(longest), "allocator")
        names = sorted(n for n in RESERVATIONS if make().grows or n != "on_demand")
        reservation = RESERVATIONS[data.draw(st.sampled_from(["on_demand", *names] if make().grows else names))]
        requests, bounds = data.draw(workloads(longest), "requests"), data.draw(limits(), "limits")
        latency = LATENCIES[data.draw(st.sampled_from(sorted(LATENCIES)), "latency")]
        concurrency = data.draw(st.none() | st.integers(1, 4), "concurrency")
        one, other = (
            simulate(cls(wrap(make()), reservation, max_model_len=longest, **bounds, **more), requests, latency, exact,
                     concurrency)
            for wrap, exact in ((lambda a: a, True), (Checked, False))
        )  # fmt: skip
        assert_same(one, other)

    check()
