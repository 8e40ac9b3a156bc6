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
from allocators.radix import Radix
from allocators.virtual import Virtual
from harness.clock import Clock
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.steps import AT, Totals
from harness.metrics.summary import summarize
from harness.replayer import replay
from harness.runner.base import StepResult
from harness.runner.latency.base import LatencyModel
from harness.runner.latency.fitted import FittedLatency
from harness.runner.latency.roofline import Roofline
from harness.runner.simulated import SimulatedModelRunner
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.guaranteed_no_evict import GuaranteedNoEvict
from schedulers.ideal import Ideal
from schedulers.max_utilization import MaxUtilization
from schedulers.past_future import PastFuture
from schedulers.request import Batch, Request
from schedulers.reservation import RESERVATIONS
from schedulers.static import Static
from schedulers.static_bucketed import StaticBucketed
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
        self.ran: list[list[Move]] = []

    def execute(self, batch: Batch) -> StepResult:
        if batch.moves:
            self.ran.append(batch.moves)
        result = super().execute(batch)
        return replace(result, ns=result.ns + 10 * sum(move.length for move in batch.moves))


def simulate(scheduler: Scheduler, requests: list[Request], latency: LatencyModel, exact: bool,
             concurrency: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Everything that a replay wrote down."""
    fresh = [replace(request) for request in requests]
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
    if hasattr(scheduler.allocator, "tree"):
        tables["_free"] = scheduler.allocator.free_pages()
        tables["tree"] = [(n.pages.tolist(), n.keys.tolist(), n.used_at) for n in scheduler.allocator.tree.nodes()]
    return {"moves": runner.ran, "table": table, "summary": summary, "steps": steps, "gaps": recorder.gaps.counts,
            "left": tables, "saturated": recorder.steps.saturated.by_time}  # fmt: skip


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    if len(one["steps"]):
        assert one["steps"][:, AT["preempted"]].sum() == one["table"]["preemptions"].sum()
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
        "radix",
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
    back, host = draw(st.sampled_from(["front", "back"])), draw(st.sampled_from([0, 40, 200]))

    def make() -> Allocator:
        if kind.startswith("paged"):
            return Paged(capacity, longest, size, "cached" in kind, freed_blocks=back, host_slots=host)
        if kind == "radix":
            return Radix(capacity, longest, page_size=1 if size == 16 else size)
        if kind == "virtual":
            return Virtual(capacity, longest, page_tokens={1: 1, 4: 3, 16: 8}[size], map_us=1.7, **mapping)
        if kind == "buddy":
            return Buddy(capacity, longest)
        return Contiguous(capacity, longest, fit=kind.split()[0], **moving)

    return make


@st.composite
def workloads(draw: st.DrawFn, longest: int) -> list[Request]:
    length, requests, now = st.integers(1, max(2 * longest // 3, 1)), list[Request](), 0
    for number in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0, 0, 700, 5_000, 20_000, 200_000]))
        prompt_len, token_ids = draw(length), None
        if draw(st.booleans()):  # out of two families, so that prefixes are shared
            token_ids = [100 * draw(st.integers(0, 1)) + at for at in range(prompt_len)]
        more = {"max_tokens": draw(st.none() | length), "session": draw(st.sampled_from(["", "a", "b"]))}
        more |= {"priority": draw(st.integers(0, 2)), "token_ids": token_ids}
        more |= {"n": draw(st.sampled_from([1, 1, 2, 3])), "use_beam_search": draw(st.booleans())}
        requests.append(Request(number, now, prompt_len, draw(length), **more))
    return requests


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([2, 7, 30, 100])),
        "chunked_prefill": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.3])),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority", "shortest_first", "longest_prefix"])),
        "length_predictor": draw(st.sampled_from(["oracle", "history", "noisy:0.5"])),
    }


class Swapping(Continuous):
    def __init__(self, allocator: Allocator, *args: Any, **kwargs: Any) -> None:
        super().__init__(allocator, *args, preemption="swap" if allocator.host_capacity else "recompute", **kwargs)


SCHEDULERS = {
    "swapping": (Swapping, {}),
    "continuous": (Continuous, {}),
    "prompts first": (Continuous, {"prefill_first": True}),
    "static": (Static, {}),
    "static, waits": (Static, {"max_wait_s": 3e-6, "compute_finished": False}),
    "static, by prompt": (StaticBucketed, {"bucket_by": "prompt", "max_wait_s": 3e-6}),
    "static, by output": (StaticBucketed, {"bucket_by": "output"}),
    "no evict": (GuaranteedNoEvict, {}),
    "no evict, oracle": (GuaranteedNoEvict, {"promise": "exact"}),
    "max utilization": (MaxUtilization, {}),
    "max utilization, in order": (MaxUtilization, {"policy": "shortest_first"}),
    "past future": (PastFuture, {"length_predictor": "history"}),
    "past future, one": (PastFuture, {"length_predictor": "noisy:0.3", "reserved": 0.2}),
    "ideal": (Ideal, {}),
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
            simulate(cls(wrap(make()), reservation, max_model_len=longest, **bounds | more), requests, latency, exact,
                     concurrency)
            for wrap, exact in ((lambda a: a, True), (Checked, False))
        )  # fmt: skip
        assert_same(one, other)

    check()


def test_what_is_expected_of_an_arrival_depends_on_who_finished_before_it_came() -> None:
    """1 and 2 come while 0 runs: nobody has finished, so their clients' caps of 40 and 35 say who is next."""
    requests = [Request(0, 0, 1, 30), Request(1, 55, 1, 20, 40), Request(2, 56, 1, 20, 35)]
    one, other = (
        simulate(
            Continuous(Paged(100, 60), RESERVATIONS["on_demand"], max_model_len=60, max_num_seqs=1,
                       policy="shortest_first", length_predictor="history"),
            requests, LATENCIES["constant"], exact)
        for exact in (True, False)
    )  # fmt: skip
    assert one["table"].set_index("id")["first_scheduled_s"].rank().tolist() == [1, 3, 2]
    assert_same(one, other)


def test_a_group_that_computes_its_answers_again_gives_no_token_meanwhile() -> None:
    """Two answers of two tokens that were taken away: the first of each is computed again in a step of its own."""
    requests = [Request(0, 0, 1, 4), Request(1, 0, 1, 4, n=2)]
    one, other = (
        simulate(Continuous(Paged(10, 12, block_size=1), RESERVATIONS["on_demand"], max_model_len=12, watermark=0.0),
                 requests, LATENCIES["constant"], exact)
        for exact in (True, False)
    )  # fmt: skip
    assert one["summary"]["preemptions"] == 1
    assert_same(one, other)
