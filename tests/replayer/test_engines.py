"""Several engines under one clock, and the routers before them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allocators.paged import Paged
from harness.errors import HarnessError
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.replay.clock import Clock, MeasuredClock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.routers.base import Router
from harness.routers.least_requests import LeastRequests
from harness.routers.round_robin import RoundRobin
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand
from schedulers.static import Static
from tests.conformance.play import SECOND, Runner, Steps
from tests.conformance.router import RouterConformance, assert_alike, fleet


class TestRoundRobin(RouterConformance):
    def make(self, num_engines: int) -> Router:
        return RoundRobin(num_engines)


class TestLeastRequests(RouterConformance):
    def make(self, num_engines: int) -> Router:
        return LeastRequests(num_engines)


class TestLeastRequestsToldLate(RouterConformance):
    def make(self, num_engines: int) -> Router:
        return LeastRequests(num_engines, delay_ns=12_345)


class Fixed(Router):
    """Says what it was told to say."""

    def __init__(self, said: Any) -> None:
        super().__init__(2)
        self.said = said

    def route(self, request: Request, now: int, engines: Any) -> int:
        return self.said  # type: ignore[no-any-return]


def at(seconds: float, request: int, prompt: int = 4, output: int = 2) -> Request:
    return Request(request, round(seconds * SECOND), prompt, output)


def engine(max_num_seqs: int = 8) -> Engine:
    """Steps of one second."""
    scheduler = Continuous(Paged(640, 64, block_size=4), on_demand, max_model_len=64, max_num_seqs=max_num_seqs)
    return Engine(scheduler, Runner(Steps(1.0)), Recorder())


def served(requests: list[Request], engines: list[Engine], router: Router, concurrency: int | None = None) -> Any:
    """By request: (its engine, first scheduled, last token), in s."""
    replay(Source(SimpleNamespace(requests=list(requests), concurrency=concurrency)), engines, Clock(), router)
    told = {}
    for number, one in enumerate(engines):
        ids = set(one.recorder.deliveries()[:, 0].tolist())
        table = request_table(one.recorder, [request for request in requests if request.id in ids])
        for row in table.itertuples():
            told[row.id] = (number, row.first_scheduled_s, row.last_token_s)
    return told


def test_two_engines_work_at_the_same_time() -> None:
    """Places for one each: the third request waits for the first, and starts when that is over, not a step later."""
    requests = [at(0, 0), at(0.5, 1, output=3), at(0.6, 2)]
    told = served(requests, [engine(1), engine(1)], RoundRobin(2))
    assert told == {0: (0, 0, 2), 1: (1, 0.5, 3.5), 2: (0, 2, 4)}


def test_who_is_over_is_known_after_the_delay() -> None:
    """Request 0 ends at 1 s on engine 0. At 1.5 s it is known to, or with a delay of 2 s it is not."""
    requests = [at(0, 0, output=1), at(0.1, 1, output=9), at(1.5, 2)]
    assert served(requests, [engine(), engine()], LeastRequests(2))[2][0] == 0
    requests.append(at(1.6, 3))
    late = served([*requests[:2], at(1.5, 2), at(1.6, 3)], [engine(), engine()], LeastRequests(2, 2 * SECOND))
    assert [late[2][0], late[3][0]] == [0, 1]
    soon = served([*requests[:2], at(1.5, 2), at(1.6, 3)], [engine(), engine()], LeastRequests(2))
    assert [soon[2][0], soon[3][0]] == [0, 0]


def test_a_closed_loop_keeps_its_requests_in_flight_over_all_engines() -> None:
    """Two in flight: a third one arrives when one of them is over, wherever that was."""
    requests = [at(0, 0, output=2), at(0, 1, output=4), at(0, 2, output=1), at(0, 3, output=1)]
    told = served(requests, [engine(), engine()], RoundRobin(2), concurrency=2)
    assert told == {0: (0, 0, 2), 1: (1, 0, 4), 2: (0, 2, 3), 3: (1, 3, 4)}


def test_engines_of_their_own_speed() -> None:
    """One is three times as slow: least requests sends it a third as many."""
    slow = engine(1)
    slow.runner = Runner(Steps(3.0))
    requests = [at(0.5 * i, i, output=1) for i in range(40)]
    told = served(requests, [engine(1), slow], LeastRequests(2))
    counts = [sum(one[0] == number for one in told.values()) for number in (0, 1)]
    assert sum(counts) == 40
    assert 1 < counts[0] / counts[1] < 3


@pytest.mark.parametrize("said", [-1, 2, True, "0", None, 1.0])
def test_a_router_must_name_an_engine(said: Any) -> None:
    with pytest.raises(HarnessError, match=r"router: Fixed\.route must return the number of an engine, 0 to 1, and"):
        fleet(Fixed(said), [at(0, 0)])


def test_several_engines_need_a_router_and_a_virtual_clock() -> None:
    with pytest.raises(HarnessError, match="2 engines need a router"):
        replay(Source(SimpleNamespace(requests=[], concurrency=None)), [engine(), engine()], Clock())
    with pytest.raises(HarnessError, match="virtual clock"):
        replay(Source(SimpleNamespace(requests=[], concurrency=None)), [engine(), engine()], MeasuredClock(),
               RoundRobin(2))  # fmt: skip


@pytest.mark.parametrize("delay", [-1, 0.5, True])
def test_a_delay_is_whole_nanoseconds(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"router\.delay_ns"):
        RoundRobin(2, delay_ns=delay)


def test_a_refusal_is_known_as_soon_with_jumps_as_with_exact_steps() -> None:
    """Nobody may join a static batch, so an arrival changes none; that it was refused changes where the next one goes.

    Steps take about 1 µs. Request 2 is too long: it goes to engine 0, which is rid of it before request 3 arrives.
    """
    requests = [Request(0, 0, 4, 30), Request(1, 0, 4, 30), Request(2, 3_000, 30, 30), Request(3, 12_000, 4, 4)]
    one, other = (
        fleet(LeastRequests(2), requests, exact, scheduler=lambda pool: Static(pool, on_demand, max_model_len=40))
        for exact in (True, False)
    )
    assert [engine.ids for engine in one] == [[0, 2, 3], [1]]
    assert_alike(one, other)
