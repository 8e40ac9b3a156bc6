"""Steps taken together are the steps taken one by one: same requests, times, gaps and books, to the last digit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from allocators.base import Allocator, Ask, Holder, Move
from allocators.buddy import Buddy
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.radix import Radix
from allocators.virtual import Virtual
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.steps import AT, Totals
from harness.metrics.summary import summarize
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.base import StepResult
from harness.runner.latency.base import Latency
from harness.runner.latency.fitted import FittedLatency
from harness.runner.simulated import SimulatedModelRunner
from schedulers.base import Scheduler
from schedulers.request import Batch, Request
from schedulers.reservation import RESERVATIONS, Reservation

MakeAllocator = Callable[[], Allocator]
MakeScheduler = Callable[..., Scheduler]  # (allocator, reservation, **limits)

LATENCIES: dict[str, Callable[[], Latency]] = {
    "fitted": lambda: FittedLatency((1000.4, 37.3, 0.61, 55.5, 7.7, 0.013)),
    "constant": lambda: FittedLatency((10.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
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
    """Keeps the moves of each step, each slot of which takes 10 ns, and how many steps it was asked for at once."""

    def __init__(self, latency: Latency, exact_steps: bool) -> None:
        super().__init__(latency, exact_steps)
        self.ran: list[list[Move]] = []
        self.foretold = 0

    def execute(self, batch: Batch) -> StepResult:
        if batch.moves:
            self.ran.append(batch.moves)
        result = super().execute(batch)
        return replace(result, ns=result.ns + 10 * sum(move.length for move in batch.moves))

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        self.foretold += steps
        return super().further_ns(batch, steps)


def simulate(scheduler: Scheduler, requests: list[Request], latency: Latency, exact: bool,
             concurrency: int | None = None, depth: int = 1) -> dict[str, Any]:  # fmt: skip
    """Everything that a replay wrote down, and under `foretold` how many steps could have been taken together."""
    fresh = [replace(request) for request in requests]
    recorder = Recorder(keep=False)
    recorder.steps.whole = rows = Rows()
    runner = Moving(latency, exact)
    source = Source(SimpleNamespace(requests=fresh, concurrency=concurrency))
    replay(source, [Engine(scheduler, runner, recorder, depth)], Clock())
    table = request_table(recorder, fresh)
    summary = summarize(recorder, table, scheduler.allocator.capacity)
    steps = np.concatenate(rows.rows) if rows.rows else np.zeros((0, 0))
    return {"moves": runner.ran, "table": table, "summary": summary, "steps": steps, "gaps": recorder.gaps.counts,
            "left": left_behind(scheduler.allocator), "saturated": recorder.steps.saturated.by_time,
            "foretold": runner.foretold}  # fmt: skip


def left_behind(allocator: Any) -> dict[str, Any]:
    """How an allocator's own lists lie, as far as the built-in ones have any."""
    left = {name: getattr(allocator, name, None) for name in ("tables", "pool", "_free", "_free_lanes")}
    if left["pool"] is not None:
        left["pool"] = left["pool"].free_list()
    if hasattr(allocator, "tree"):
        left["_free"] = allocator.free_pages()
        left["tree"] = [(n.pages.tolist(), n.keys.tolist(), n.used_at) for n in allocator.tree.nodes()]
    return left


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two simulations wrote down the same."""
    assert one["moves"] == other["moves"]
    assert one["steps"].tolist() == other["steps"].tolist()
    pd.testing.assert_frame_equal(one["table"], other["table"], check_exact=True)
    if len(one["steps"]):
        assert one["steps"][:, AT["preempted"]].sum() == one["table"]["preemptions"].sum()
    assert one["summary"] == other["summary"]
    assert one["gaps"] == other["gaps"]
    assert one["saturated"] == other["saturated"]
    left, right = one["left"], other["left"]
    assert np.array_equal(left.pop("tables"), right.pop("tables"))
    assert left == right


def assert_jumps_are_steps(make: Callable[[bool], Scheduler], requests: list[Request],
                           latency: Callable[[], Latency] = LATENCIES["fitted"],
                           concurrency: int | None = None) -> dict[str, Any]:  # fmt: skip
    """Simulate twice, each with a scheduler and a model of its own: step by step, and with jumps; the latter's result.

    Args:
        make: a scheduler, for exact steps if it is handed True.
    """
    one, other = (simulate(make(exact), requests, latency(), exact, concurrency) for exact in (True, False))
    assert_same(one, other)
    return other


@st.composite
def allocators(draw: st.DrawFn, longest: int) -> MakeAllocator:
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
    moving: dict[str, Any] = {}
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
        return Contiguous(capacity, longest, fit=kind.split()[0], **moving)  # type: ignore[arg-type]

    return make


@st.composite
def workloads(draw: st.DrawFn, longest: int) -> list[Request]:
    """Up to 14 requests, some at once and some far apart, some of which can never be served."""
    length, requests, now = st.integers(1, max(2 * longest // 3, 1)), list[Request](), 0
    for number in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0, 0, 700, 5_000, 20_000, 200_000]))
        prompt_len, token_ids = draw(length), None
        if draw(st.booleans()):  # out of two families, so that prefixes are shared
            token_ids = [100 * draw(st.integers(0, 1)) + at for at in range(prompt_len)]
        more: dict[str, Any] = {"max_tokens": draw(st.none() | length), "priority": draw(st.integers(0, 2))}
        more |= {"session": draw(st.sampled_from(["", "a", "b"])), "token_ids": token_ids}
        more |= {"n": draw(st.sampled_from([1, 1, 2, 3])), "use_beam_search": draw(st.booleans())}
        requests.append(Request(number, now, prompt_len, draw(length), **more))
    return requests


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """Tight and loose ones, that every scheduler takes."""
    return {
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([2, 7, 30, 100])),
        "chunked_prefill": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.3])),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority", "shortest_first", "longest_prefix"])),
    }


def reservations(draw: Callable[[st.SearchStrategy[str], str], str], allocator: Allocator) -> Reservation:
    """Any that `allocator` can do, half of the time the one that lets sequences grow."""
    names = sorted(name for name in RESERVATIONS if allocator.grows or name != "on_demand")
    often = ["on_demand", "on_demand", *names] if allocator.grows else names
    return RESERVATIONS[draw(st.sampled_from(often), "reservation")]


def together(allocator: Allocator, reservation: Reservation, request: Request) -> bool:
    """Whether all answers of a request find room in an empty pool, wherever it must lie.

    A scheduler counts slots; who cuts the pool into lanes of several sizes may have the slots and not the lanes.
    """
    longest = allocator.max_model_len
    need = max(request.prompt_len + request.output_len - 1, reservation(request, longest))
    if request.n == 1 or need > longest:
        return True
    answers = [Holder(f"answer {number}") for number in range(request.n)]
    return allocator.admit(answers, Ask(need, final=need, count=request.n)) is not None


def any_jump_is_its_steps(data: st.DataObject, make: MakeScheduler,
                          more: st.SearchStrategy[dict[str, Any]] | None = None,
                          allocator: MakeAllocator | None = None, longest: int | None = None,
                          models: dict[str, Callable[[], Latency]] = LATENCIES) -> None:  # fmt: skip
    """Any workload under any limits on any allocator.

    Args:
        more: limits that not every scheduler takes.
        allocator: makes the one that is tried, with `longest` tokens a sequence; None = any built-in one.
    """
    longest = longest or data.draw(st.integers(2, 60), "max_model_len")
    fresh = allocator or data.draw(allocators(longest), "allocator")
    reservation = reservations(data.draw, fresh())
    drawn, bounds = data.draw(workloads(longest), "requests"), data.draw(limits(), "limits")
    requests = [request for request in drawn if allocator is None or together(fresh(), reservation, request)]
    if more is not None:
        bounds |= data.draw(more, "more limits")
    latency = models[data.draw(st.sampled_from(sorted(models)), "latency")]
    concurrency = data.draw(st.none() | st.integers(1, 4), "concurrency")

    def scheduler(exact: bool) -> Scheduler:
        pool: Any = fresh() if exact else Checked(fresh())
        return make(pool, reservation, max_model_len=longest, **bounds)

    assert_jumps_are_steps(scheduler, requests, latency, concurrency)
