"""A scheduler may ask how long a step would take."""

from __future__ import annotations

from typing import Any

import numpy as np

from allocators.paged import Paged
from harness.metrics.steps import AT
from harness.runner.latency.fitted import FittedLatency
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.quiet import Quiet
from schedulers.request import Batch, Request
from schedulers.reservation import on_demand
from tests.conformance.jumps import assert_jumps_are_steps, simulate
from tests.conformance.play import Steps, play

MOST_NS = 1_400
LATENCY = FittedLatency((1000.0, 37.0, 0.5, 55.0, 7.0, 0.25))  # of a prompt of 12 tokens: 1,216 ns


class Timed(Continuous):
    """Notes what it is told of each of its steps."""

    def __init__(self, *args: Any, **limits: Any) -> None:
        super().__init__(*args, **limits)
        self.told = list[int | None]()

    def schedule(self, now: int) -> Batch:
        batch = super().schedule(now)
        if batch.seqs:
            self.told.append(self.estimate(batch))
        return batch


class Punctual(Continuous):
    """Takes no prompt into a step that would take longer for it than `MOST_NS`, unless nobody else is in it."""

    def _admit(self, batch: Batch, budget: int) -> None:
        while self.waiting and self._in_time(batch):
            count = self.admit_head(batch, budget)
            if not count:
                break
            budget -= count

    def _in_time(self, batch: Batch) -> bool:
        head = self.waiting[0]
        trial = Batch([*batch.seqs, head], [*batch.counts, head.num_tokens])
        trial.committed = batch.committed
        ns = self.estimate(trial)
        return not batch.seqs or (ns is not None and ns <= MOST_NS)

    def quiet(self, batch: Batch) -> Quiet | None:
        return None if self.waiting else super().quiet(batch)


def some() -> list[Request]:
    return [Request(i, 400 * i, 12 + i, 20 - i) for i in range(8)]


def made(cls: type[Scheduler]) -> Any:
    return cls(Paged(4000, 200), on_demand, max_model_len=200)


def execute(told: dict[str, Any]) -> Any:
    """How long each step took that computed something, and of how many sequences (ns)."""
    steps = told["steps"][told["steps"][:, AT["num_seqs"]] > 0]
    return steps[:, AT["execute"]], steps[:, AT["num_seqs"]]


def test_it_is_told_what_the_step_will_take() -> None:
    scheduler = made(Timed)
    ns, _ = execute(simulate(scheduler, some(), LATENCY, exact=True))
    assert scheduler.told == ns.tolist()
    assert len(set(scheduler.told)) > 10


def test_what_is_planned_and_not_committed_counts_and_stays_as_it_is() -> None:
    told = assert_jumps_are_steps(lambda _: made(Punctual), some(), lambda: LATENCY)
    ns, lanes = execute(told)
    assert ns[lanes > 1].max() <= MOST_NS
    unbound, _ = execute(simulate(made(Continuous), some(), LATENCY, exact=True))
    assert unbound.max() > MOST_NS
    assert told["foretold"]
    assert np.all(told["table"]["status"] == "finished")


def test_nobody_tells_of_a_real_device_or_where_a_model_can_not_be_asked_before() -> None:
    scheduler = made(Timed)
    play([Request(0, 0, 4, 3)], scheduler)
    simulate(scheduler, [Request(0, 0, 4, 3)], Steps(1e-6), exact=True)
    assert scheduler.told == [None] * 6
