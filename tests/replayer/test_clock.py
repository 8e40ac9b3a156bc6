"""What takes time under each clock."""

from __future__ import annotations

import time

import pytest

from harness.replay.clock import CLOCKS, Clock, MeasuredClock, WallClock

MS = 1_000_000


def test_the_clocks_are_known_by_name() -> None:
    assert [CLOCKS[name] for name in ("virtual", "measured", "wall")] == [Clock, MeasuredClock, WallClock]


def test_only_predicted_time_passes_on_a_virtual_clock() -> None:
    clock = Clock()
    mark = clock.tick()
    time.sleep(0.002)
    assert clock.charge(mark) == 0
    assert clock.charge(mark, 7) == 7
    assert clock.ends(clock.now, 7) == 7
    assert clock.now == 0  # until somebody waits for the end
    clock.wait_until(7)
    assert clock.now == 7


@pytest.mark.parametrize("clock", [Clock(), MeasuredClock()])
def test_idle_gaps_are_skipped(clock: Clock) -> None:
    before = time.perf_counter()
    clock.wait_until(3600 * 1000 * MS)
    assert clock.now == 3600 * 1000 * MS
    assert time.perf_counter() - before < 1


@pytest.mark.parametrize("clock", [Clock(), MeasuredClock()])
def test_time_never_runs_backwards(clock: Clock) -> None:
    clock.wait_until(10)
    clock.wait_until(5)
    assert clock.now == 10


def test_only_charged_work_passes_on_a_measured_clock() -> None:
    clock = MeasuredClock()
    time.sleep(0.005)  # recording, say
    mark = clock.tick()
    time.sleep(0.002)
    spent = clock.charge(mark, simulated_ns=10**15)
    assert spent == clock.now == clock.ends(0, spent)
    assert 2 * MS <= clock.now < 10**12
    time.sleep(0.005)
    assert clock.now == spent


def test_everything_passes_on_a_wall_clock() -> None:
    clock = WallClock()
    time.sleep(0.003)
    mark = clock.tick()
    time.sleep(0.002)
    assert clock.charge(mark) >= 2 * MS
    assert clock.now >= 5 * MS


def test_a_wall_clock_sleeps_until_the_time_has_come() -> None:
    clock = WallClock()
    clock.wait_until(10 * MS)
    assert 10 * MS <= clock.now < 1000 * MS
