"""Starting over where free slots lie in pieces."""

from __future__ import annotations

from typing import Any

from allocators.base import Allocator
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from schedulers.base import Scheduler
from schedulers.rebuild import Rebuild
from schedulers.request import Batch, Request
from schedulers.reservation import Reservation, exact, max_model_len
from tests.conformance.scheduler import SchedulerConformance, finish


class TestRebuild(SchedulerConformance):
    def make(self, allocator: Allocator, reservation: Reservation, **limits: Any) -> Scheduler:
        return Rebuild(allocator, reservation, **limits)


def pieces(**limits: Any) -> tuple[Any, Rebuild, Batch]:
    """A of 3, B of 10 and C of 5 slots fill the pool; A and C end with the first step, and D asks for 8."""
    allocator: Any = Checked(Contiguous(18, 18, fit="first_fit"))
    scheduler = Rebuild(allocator, exact, max_model_len=18, **limits)
    for number, (prompt, output) in enumerate([(3, 1), (4, 7), (5, 1)]):
        assert scheduler.add(Request(number, 0, prompt, output)) is None
    scheduler.complete(scheduler.schedule(0), None)
    assert scheduler.add(Request(3, 0, 7, 2)) is None
    batch = scheduler.schedule(0)
    return allocator, scheduler, batch


def test_all_start_over_and_the_head_gets_in() -> None:
    allocator, scheduler, batch = pieces()
    assert batch.blocked is not None
    scheduler.complete(batch, None)
    batch = scheduler.schedule(0)
    assert [(seq.request.id, count) for seq, count in zip(batch.seqs, batch.counts, strict=True)] == [(1, 6), (3, 7)]
    b, d = batch.seqs
    assert (allocator.spans(b), allocator.spans(d)) == ([(0, 10)], [(10, 8)])
    assert (b.preemptions, b.recomputed) == (1, 5)
    assert not batch.preempted, "nobody is left without memory"


def test_who_does_not_fit_the_step_follows_before_the_head() -> None:
    _, scheduler, batch = pieces(max_num_batched_tokens=12)
    scheduler.complete(batch, None)
    order = [[seq.request.id for seq in batch.seqs] for batch in finish(scheduler)]
    assert order[:2] == [[1], [1, 3]]


def test_where_all_slots_side_by_side_would_not_do_nobody_starts_over() -> None:
    """Equal lanes: what is left of the pool is less than a lane."""
    allocator: Any = Checked(Contiguous(25, 10))
    scheduler = Rebuild(allocator, max_model_len, max_model_len=10)
    for number in range(3):
        assert scheduler.add(Request(number, 0, 2, 6)) is None
    finish(scheduler)
    assert not any(seq.preemptions for seq in scheduler.waiting)


def test_a_rebuild_that_does_not_help_is_not_repeated_until_somebody_finishes() -> None:
    class Stubborn(Contiguous):
        """Refuses whatever is longer than 6."""

        def place(self, holder: Any, tokens: int) -> int | None:
            return super().place(holder, tokens) if tokens <= 6 or not self._extents else None

    scheduler = Rebuild(Stubborn(30, 30, fit="first_fit"), exact, max_model_len=30)
    for number, (prompt, output) in enumerate([(3, 4), (4, 9)]):
        assert scheduler.add(Request(number, 0, prompt, output)) is None
    first = scheduler.waiting[0]
    finish(scheduler)
    assert first.preemptions == 1
