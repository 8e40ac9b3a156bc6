"""The suite that every router inherits.

Yours does so like this:

    class TestMine(RouterConformance):
        def make(self, num_engines):
            return Mine(num_engines, …)

`make` gives the same router each time: one that draws begins with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.checker import Checked
from allocators.paged import Paged
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.routers.base import Router, Snapshot
from harness.runner.simulated import SimulatedModelRunner
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand
from schedulers.static import Static

from .effort import cases
from .jumps import LATENCIES, Rows, workloads

LONGEST = 40
REQUESTS = workloads(LONGEST + 30)  # so some prompts are too long, and refused


class Served(NamedTuple):
    """What one of several engines wrote down.

    Attributes:
        ids: of the requests that it was handed.
        table: of these.
        steps: `[n, columns]`, see `harness.metrics.steps`.
    """

    ids: list[int]
    table: pd.DataFrame
    steps: np.ndarray


def fleet(router: Router, requests: list[Request], exact: bool = False, concurrency: int | None = None,
          scheduler: Callable[[Any], Scheduler] | None = None) -> list[Served]:  # fmt: skip
    """Replay fresh copies of `requests` on the engines of `router`, each with a pool and books of its own."""
    fresh = [replace(request) for request in requests]
    make = scheduler or (lambda pool: Continuous(pool, on_demand, max_model_len=LONGEST, max_num_seqs=3))
    engines, rows = [], []
    for _ in range(router.num_engines):
        recorder = Recorder()
        recorder.steps.whole = kept = Rows()
        rows.append(kept)
        pool: Any = Checked(Paged(96, LONGEST, block_size=4))  # type: ignore[abstract]
        engines.append(Engine(make(pool), SimulatedModelRunner(LATENCIES["fitted"](), exact), recorder))
    replay(Source(SimpleNamespace(requests=fresh, concurrency=concurrency)), engines, Clock(), router)
    served = []
    for engine, kept in zip(engines, rows, strict=True):
        engine.recorder.steps.flush()
        ids = engine.recorder.deliveries()[:, 0].tolist()
        table = request_table(engine.recorder, [request for request in fresh if request.id in set(ids)])
        served.append(Served(ids, table, np.concatenate(kept.rows) if kept.rows else np.zeros((0, 0))))
    return served


def assert_alike(one: list[Served], other: list[Served]) -> None:
    """Two fleets wrote down the same."""
    for mine, yours in zip(one, other, strict=True):
        assert mine.ids == yours.ids
        pd.testing.assert_frame_equal(mine.table, yours.table, check_exact=True)
        assert mine.steps.tolist() == yours.steps.tolist()


class RouterConformance:
    """What holds for every router. Override `make`.

    Attributes:
        effort: how hard hypothesis tries.
        simulations: how hard where each try is whole simulations.
    """

    effort = settings(max_examples=cases(40), deadline=None, derandomize=True)
    simulations = settings(max_examples=cases(20), deadline=None, derandomize=True)

    def make(self, num_engines: int) -> Router:
        raise NotImplementedError("override make()")

    def test_it_names_an_engine_and_the_same_one_again(self) -> None:
        """Whatever the engines are at; and what it is shown, it leaves alone."""

        @given(st.integers(1, 5), REQUESTS, st.data())
        def check(num_engines: int, requests: list[Request], data: st.DataObject) -> None:
            one, other = self.make(num_engines), self.make(num_engines)
            shown = [Snapshot(number) for number in range(num_engines)]
            for request in requests:
                before, asked = deepcopy(shown), replace(request)
                at = one.route(request, request.arrival_ns, shown)
                assert type(at) is int, f"route must return the number of an engine, not {at!r}"
                assert 0 <= at < num_engines
                assert shown == before, "route must not change what it is shown"
                assert request == asked, "route must not change the request"
                assert other.route(asked, asked.arrival_ns, before) == at
                shown[at].sent += 1
                shown[at].sent_tokens += request.prompt_len
                for engine in shown:
                    if engine.requests and data.draw(st.booleans(), "one is over"):
                        engine.ended += 1
                        engine.ended_tokens = min(engine.sent_tokens, engine.ended_tokens + 5)

        self.effort(check)()

    def test_every_request_is_served_once_or_refused(self) -> None:
        """Injected = finished + rejected over all engines, each with books of its own."""

        @given(st.integers(1, 4), REQUESTS, st.none() | st.integers(1, 4))
        def check(num_engines: int, requests: list[Request], concurrency: int | None) -> None:
            served = fleet(self.make(num_engines), requests, concurrency=concurrency)
            assert sorted(number for engine in served for number in engine.ids) == [r.id for r in requests]
            for engine in served:
                assert set(engine.table["status"]) <= {"finished", "rejected"}
                done = engine.table[engine.table["status"] == "finished"]
                assert done["output_tokens"].sum() == sum(
                    min(requests[i].output_len, LONGEST - requests[i].prompt_len) * requests[i].n for i in done["id"]
                )

        self.simulations(check)()

    def test_it_is_the_same_again(self) -> None:
        @given(st.integers(1, 4), REQUESTS)
        def check(num_engines: int, requests: list[Request]) -> None:
            assert_alike(fleet(self.make(num_engines), requests), fleet(self.make(num_engines), requests))

        self.simulations(check)()

    def test_jumps_are_steps(self) -> None:
        """Of any scheduler, also one that lets no arrival into its batch."""

        @given(st.integers(1, 4), REQUESTS, st.none() | st.integers(1, 4), st.booleans())
        def check(num_engines: int, requests: list[Request], concurrency: int | None, static: bool) -> None:
            cls = Static if static else Continuous
            one, other = (
                fleet(self.make(num_engines), requests, exact, concurrency,
                      lambda pool: cls(pool, on_demand, max_model_len=LONGEST, max_num_seqs=3))
                for exact in (True, False)
            )  # fmt: skip
            assert_alike(one, other)

        self.simulations(check)()

    def test_an_engine_does_what_it_would_do_alone(self) -> None:
        """With the requests that it was sent, at their times; but for its idle time after the last of them."""

        @given(st.integers(2, 4), REQUESTS)
        def check(num_engines: int, requests: list[Request]) -> None:
            for engine in fleet(self.make(num_engines), requests):
                [alone] = fleet(self.make(1), [requests[number] for number in sorted(engine.ids)])
                pd.testing.assert_frame_equal(alone.table, engine.table, check_exact=True)
                there = len(alone.steps)
                assert len(engine.steps) - there in (0, 1)
                assert alone.steps.tolist() == engine.steps[:there].tolist()

        self.simulations(check)()
