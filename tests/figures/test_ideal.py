"""The ideal scheduler obeys every rule of a scheduler, never preempts and never computes a token twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator
from allocators.paged import Paged
from schedulers.ideal import Ideal, peak
from schedulers.request import Request
from schedulers.reservation import Reservation, on_demand
from tests.conformance.effort import cases
from tests.conformance.jumps import LATENCIES, assert_same, simulate
from tests.conformance.scheduler import SchedulerConformance, serve

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=25)


class TestConformance(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Ideal:
        return Ideal(allocator, reservation, **limits)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=12))
def test_the_peak_is_what_counting_step_by_step_finds(lanes: list[tuple[int, int]]) -> None:
    last = max((left for left, _ in lanes), default=-1)
    counted = [sum(now + step for left, now in lanes if left >= step) for step in range(last + 1)]
    assert peak(lanes) == max(counted, default=0)


@settings(max_examples=cases(60), deadline=None)
@given(LENGTHS, st.sampled_from([1, 4]))
def test_nobody_is_preempted(lengths: list[tuple[int, int]], block_size: int) -> None:
    scheduler = Ideal(Paged(96, 80, block_size), on_demand, max_model_len=80, max_num_seqs=64, watermark=0.3)
    served = serve(scheduler, [Request(i, 7 * i, p, o) for i, (p, o) in enumerate(lengths)])
    assert len(served.finished) == len(lengths)
    assert served.preemptions == 0
    assert all(seq.recomputed == 0 for seq in served.finished)


def test_the_head_is_admitted_in_the_first_step_from_which_the_future_fits() -> None:
    """Two requests of 1 + 8 tokens store 8 each. With 10 slots, the second may hold 2 when the first holds 8: so it
    comes one step before the first one's last, though nobody has finished by then."""
    scheduler = Ideal(Paged(10, 10, 1), on_demand, max_model_len=10)
    for number in range(2):
        scheduler.add(Request(number, 0, 1, 8))
    sizes = []
    for now in range(9):
        batch = scheduler.schedule(now)
        assert (batch.blocked is not None) == (now < 6)
        sizes.append(len(batch.seqs))
        scheduler.complete(batch, None)
    assert sizes == [1] * 6 + [2] * 2 + [1]


@settings(max_examples=cases(30), deadline=None)
@given(LENGTHS, st.integers(0, 20_000))
def test_steps_taken_together_are_the_steps_taken_one_by_one(lengths: list[tuple[int, int]], gap: int) -> None:
    requests = [Request(i, gap * i, p, o) for i, (p, o) in enumerate(lengths)]
    one, other = (
        simulate(Ideal(Paged(96, 80, 1), on_demand, max_model_len=80), requests, LATENCIES["fitted"](), exact)
        for exact in (True, False)
    )
    assert_same(one, other)
