"""A scheduler of somebody's own, kept outside: its limits are kept, and it is right with jumps and with exact steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from allocators.paged import Paged
from harness.job import run_job
from harness.tasks.claims import composed
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand
from tests.conformance.jumps import assert_jumps_are_steps
from tests.conformance.play import PAPER
from tests.conformance.scheduler import SchedulerConformance
from tests.strangers.conftest import Bring

SECOND = 1_000_000_000


class TestConforms(SchedulerConformance):
    fcfs = False

    @pytest.fixture(autouse=True)
    def _outside(self, bring: Bring) -> None:
        self.cls = bring("earliest_deadline").EarliestDeadline

    def make(self, allocator: Any, reservation: Any, **limits: Any) -> Scheduler:
        return self.cls(allocator, reservation, look_ms=20e-6, ttft_ms=100e-6, tpot_ms=10e-6, **limits)  # 10 ns a step


def requests() -> list[Request]:
    """Three in a hurry among forty that are not, faster than they are served."""
    told = []
    for number in range(40):
        hurry = number % 13 == 12
        limits = {"ttft_slo_ms": 900.0 if hurry else 60_000.0, "tpot_slo_ms": 40.0 if hurry else 500.0}
        told.append(Request(number, number * SECOND // 20, 100 + 7 * number % 300, 40 + 11 * number % 200, **limits))
    return told


def served(cls: Any, **more: Any) -> Any:
    """Over a pool of some ten requests."""
    told = assert_jumps_are_steps(
        lambda _: cls(Paged(3008, 1024), on_demand, max_model_len=1024, **more), requests(), lambda: PAPER
    )
    return told["table"].set_index("id")


def test_those_in_a_hurry_are_in_time_where_first_come_first_served_lets_them_wait(bring: Bring) -> None:
    cls = bring("earliest_deadline").EarliestDeadline
    mine, fcfs = served(cls, chunked_prefill=True), served(Continuous)
    assert (mine["status"] == "finished").all()
    hurried = [12, 25, 38]
    assert (mine["ttft_ms"][hurried] <= 900).all()
    assert (fcfs["ttft_ms"][hurried] > 900).sum() == 2


@pytest.mark.parametrize("more", [(), ("device.latency={_target_: jittery.Jittery}",)])
def test_the_command_runs_it_and_jumps_change_nothing(tmp_path: Path, bring: Bring, more: tuple[str, ...]) -> None:
    bring("earliest_deadline")
    bring("jittery")
    keys = ["device=simulated", "scheduler._target_=earliest_deadline.EarliestDeadline", "+scheduler.ttft_ms=900",
            "workload.num_requests=40", "workload.rate=5", "kv_slots=4000", *more]  # fmt: skip
    for name, exact in (("jumps", "false"), ("exact", "true")):
        overrides = [*keys, f"simulation.exact_steps={exact}"]
        row = run_job(composed(overrides), tmp_path / name, overrides)
        assert (row["status"], row["finished"]) == ("finished", 40), row["error"]
    for table in ("requests.csv", "steps.csv"):
        assert (tmp_path / "jumps" / table).read_bytes() == (tmp_path / "exact" / table).read_bytes()
