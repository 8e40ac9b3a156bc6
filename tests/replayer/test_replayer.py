"""The loop: what arrives when, what is late, and when it gives up."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from allocators.paged import Paged
from harness.metrics.recorder import Recorder
from harness.replay.clock import Clock, MeasuredClock, WallClock
from harness.replay.engine import Engine, StalledError
from harness.replay.replayer import Source, replay
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request
from schedulers.reservation import on_demand
from schedulers.static import Static
from tests.conformance.play import SECOND, Runner, Steps, play

MS = 1_000_000


def continuous(slots: int = 640) -> Continuous:
    return Continuous(Paged(slots, 64), on_demand, max_model_len=64)


def test_a_stalled_step_does_not_hide_from_those_it_made_wait() -> None:
    """Arrivals 10 ms apart and a first step of 1 s: the second is delivered late, and its latency says so."""
    played = play([Request(0, 0, 5, 1), Request(1, 10 * MS, 5, 1)], continuous(), Steps(1.0, 0.02))
    row = played.row(1)
    assert row["lateness_s"] == pytest.approx(0.99)
    assert row["ttft_ms"] == pytest.approx(1010)
    assert played.summary["lateness_max_s"] == pytest.approx(0.99)


def test_whoever_is_on_time_is_not_late() -> None:
    requests = [Request(i, i * 5 * SECOND, 5, 2) for i in range(3)]
    assert play(requests, continuous(), Steps(1.0)).table["lateness_s"].tolist() == [0, 0, 0]


def test_nothing_runs_before_the_first_arrival() -> None:
    row = play([Request(0, 3 * SECOND, 5, 1)], continuous(), Steps(1.0)).row()
    assert (row["first_scheduled_s"], row["ttft_ms"]) == (3.0, 1000)


def test_an_empty_workload_is_over_at_once() -> None:
    assert play([], continuous()).summary["steps"] == 0


def test_the_waiting_of_a_static_batch_is_idle_time() -> None:
    scheduler = Static(Paged(64, 64), on_demand, max_model_len=64, max_wait_s=2.0)
    played = play([Request(0, 0, 5, 1)], scheduler, Steps(1.0))
    assert played.row()["ttft_ms"] == 3000
    assert played.summary["busy_fraction"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_closed_loop_keeps_so_many_in_flight(concurrency: int) -> None:
    scheduler = continuous()
    in_flight: list[int] = []
    requests = [Request(i, 0, 5, 1 + i % 4) for i in range(12)]
    played = play(
        requests, scheduler, Steps(1.0), concurrency=concurrency,
        before=lambda batch: in_flight.append(scheduler.num_requests),
    )  # fmt: skip
    while in_flight[-1] < concurrency:  # nobody is left to take the place of the last ones
        in_flight.pop()
    assert set(in_flight) == {concurrency}
    assert played.summary["finished"] == 12


def test_in_a_closed_loop_a_request_arrives_when_another_is_over() -> None:
    played = play([Request(i, 0, 5, 2) for i in range(3)], continuous(), Steps(1.0), concurrency=1)
    assert played.table["arrival_s"].tolist() == [0, 2, 4]
    assert played.table["ttft_ms"].tolist() == [1000] * 3


def test_a_closed_loop_goes_on_after_a_rejection() -> None:
    requests = [Request(i, 0, 60 if i % 2 else 5, 30) for i in range(6)]
    summary = play(requests, continuous(), Steps(1.0), concurrency=2).summary
    assert (summary["finished"], summary["rejected"]) == (3, 3)


def test_a_closed_loop_of_nothing_but_rejections_ends() -> None:
    assert play([Request(i, 0, 60, 30) for i in range(5)], continuous(), concurrency=2).summary["rejected"] == 5


class Lazy(Continuous):
    """Schedules nothing, ever."""

    def schedule(self, now: int) -> Batch:
        return self.close(Batch())


class Snoozing(Lazy):
    """Schedules nothing, and wants to be woken at once."""

    def wake_at(self) -> int | None:
        return 0


class Thrashing(Continuous):
    """Preempts whatever it has just computed."""

    def schedule(self, now: int) -> Batch:
        for seq in list(self.running):
            self.preempt(seq, Batch())
        return super().schedule(now)


class Losing(Continuous):
    """Forgets a request."""

    def schedule(self, now: int) -> Batch:
        if self.waiting:
            self.waiting.pop()
        return super().schedule(now)


@pytest.mark.parametrize("broken", [Lazy, Snoozing, Losing])
def test_a_scheduler_that_leaves_work_lying_is_an_error(broken: type[Scheduler]) -> None:
    scheduler = broken(Paged(64, 64), on_demand, max_model_len=64)
    with pytest.raises(StalledError, match="request"):
        play([Request(0, 0, 5, 3)], scheduler)


def test_the_error_names_who_waits() -> None:
    with pytest.raises(StalledError, match="request 7"):
        play([Request(7, 0, 5, 3)], Lazy(Paged(64, 64), on_demand, max_model_len=64))


def test_a_scheduler_that_only_repeats_old_work_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.replay.engine.MAX_REPEATS", 50)
    scheduler = Thrashing(Paged(64, 64), on_demand, max_model_len=64, chunked_prefill=True, max_num_batched_tokens=4)
    with pytest.raises(StalledError, match="repeated old work"):
        play([Request(0, 0, 8, 3)], scheduler)


def test_progress_is_told_after_each_step() -> None:
    told: list[tuple[int, int]] = []
    workload = SimpleNamespace(requests=[Request(0, 0, 5, 1), Request(1, 0, 5, 3)], concurrency=None)
    engine = Engine(continuous(), Runner(Steps(1.0)), Recorder())
    replay(Source(workload), [engine], Clock(), on_progress=lambda *done: told.append(done))
    assert told == [(1, 2), (1, 3), (2, 4)]


def test_the_parts_of_a_step_are_measured_apart() -> None:
    """A measured clock: scheduling, computing and completing take 3, 5 and 2 ms at least, recording takes nothing."""

    class Slow(Continuous):
        def schedule(self, now: int) -> Batch:
            time.sleep(0.003)
            return super().schedule(now)

        def complete(self, *args):  # type: ignore[no-untyped-def]
            time.sleep(0.002)
            return super().complete(*args)

    class SlowRecorder(Recorder):
        def completed(self, *args) -> None:  # type: ignore[no-untyped-def]
            time.sleep(0.2)
            super().completed(*args)

    scheduler = Slow(Paged(64, 64), on_demand, max_model_len=64)
    played = play(
        [Request(0, 0, 5, 4)], scheduler, Steps(999.0), clock=MeasuredClock(), recorder=SlowRecorder(),
        before=lambda batch: time.sleep(0.005),
    )  # fmt: skip
    summary = played.summary
    assert summary["schedule_ms_per_step"] >= 3
    assert summary["execute_ms_per_step"] >= 5
    assert summary["complete_ms_per_step"] >= 2
    assert 4 * 0.010 - 0.002 <= summary["duration_s"] < 0.2 * 4


def test_a_wall_clock_waits_for_arrivals() -> None:
    before = time.perf_counter()
    row = play([Request(0, 0, 5, 1), Request(1, 50 * MS, 5, 1)], continuous(), clock=WallClock()).row(1)
    assert time.perf_counter() - before >= 0.05
    assert 0 <= float(row["lateness_s"] or 0) < 1


class Fickle(Continuous):
    """Waits until 5 s, and asks to be woken then; with two requests it starts at once."""

    def schedule(self, now: int) -> Batch:
        if now < 5 * SECOND and self.num_requests < 2:
            return self.close(Batch())
        return super().schedule(now)

    def wake_at(self) -> int | None:
        return 5 * SECOND


def test_a_wake_up_that_is_out_of_date_starts_nothing() -> None:
    """The second request starts a step of 10 s; when the alarm goes off and a third has arrived, it still runs."""
    requests = [Request(i, at * SECOND, 5, 1) for i, at in enumerate((0, 1, 3))]
    played = play(requests, Fickle(Paged(64, 64), on_demand, max_model_len=64), Steps(10.0))
    assert played.table["first_token_s"].tolist() == [11, 11, 21]
    assert played.table["lateness_s"].tolist() == [0, 0, 8]
