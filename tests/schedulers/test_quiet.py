"""Whose word is taken for steps to come, and that nobody who never heard of jumps gets other numbers for them."""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from allocators.base import Allocator, Holder
from allocators.paged import Paged
from allocators.renamed import ALLOCATOR_HOOKS
from harness.runner.latency.fitted import FittedLatency
from harness.runner.simulated import SimulatedModelRunner
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.quiet import SCHEDULER_HOOKS, Quiet, vouched
from schedulers.request import Batch, Request, Sequence
from schedulers.reservation import max_model_len, on_demand
from schedulers.static import Static
from tests.conformance.jumps import LATENCIES, assert_jumps_are_steps

FITTED = (1000.4, 37.3, 0.61, 55.5, 7.7, 0.013)


def simulated(cls: Callable[..., Scheduler], requests: list[Request], latency: Any = LATENCIES["constant"],
              pool: type[Paged] = Paged, **limits: Any) -> dict[str, Any]:  # fmt: skip
    """With jumps, after it was seen that exact steps give the same."""
    limits = {"max_model_len": 200, "max_num_seqs": 4} | limits
    return assert_jumps_are_steps(lambda _: cls(pool(4000, 200), on_demand, **limits), requests, latency)


def some(count: int = 12, gap: int = 35, output: int = 60) -> list[Request]:
    """A step takes 10 ns: `gap` ns apart, all come while the first run."""
    return [Request(i, gap * i, 1 + i % 5, output - 3 * (i % 7), priority=-i % 3) for i in range(count)]


class Latest(Continuous):
    """The last to come goes first."""

    def enqueue(self, seq: Sequence) -> None:
        self.waiting.appendleft(seq)


class EarliestDeadline(Continuous):
    """Who must be done first goes first."""

    def enqueue(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=lambda seq: seq.request.arrival_ns + 90 * (1 - seq.request.priority))


class Waker:
    """Wants to be woken every 7.3 steps, and notes when it first is."""

    def __init__(self, *args: Any, **limits: Any) -> None:
        super().__init__(*args, **limits)
        self.ticks = 0
        self.woken = list[int]()

    def schedule(self, now: int) -> Batch:
        if now >= 73 * self.ticks:
            self.ticks = now // 73 + 1
            self.woken.append(now)
        return super().schedule(now)  # type: ignore[misc, no-any-return]

    def wake_at(self) -> int | None:
        return 73 * self.ticks


class Waking(Waker, Continuous):
    pass


class WakingAndQuiet(Waker, Continuous):
    def quiet(self, batch: Batch) -> Quiet | None:
        return super().quiet(batch)


class WakingStatic(Waker, Static):
    def quiet(self, batch: Batch) -> Quiet | None:
        return super().quiet(batch)


@pytest.mark.parametrize("cls", [Latest, EarliestDeadline, Waking])
def test_who_changes_a_part_and_says_nothing_of_jumps_has_each_step_taken_by_itself(cls: type[Scheduler]) -> None:
    told = simulated(cls, some())
    assert told["foretold"] == 0
    assert told["table"]["status"].eq("finished").all()


@pytest.mark.parametrize("cls", [WakingAndQuiet, WakingStatic])
def test_a_wake_up_comes_in_time(cls: type[Scheduler]) -> None:
    """Static batches, and full ones, take nobody in: nothing else would bound their jumps."""
    woken: list[Any] = []

    def make(*args: Any, **limits: Any) -> Scheduler:
        scheduler: Any = cls(*args, **limits)
        woken.append(scheduler.woken)
        return scheduler

    assert simulated(make, some())["foretold"] > 0
    assert woken[0] == woken[1]
    assert len(woken[0]) > 10


@pytest.mark.parametrize("cls", [Waking, WakingAndQuiet, WakingStatic])
def test_a_replay_ends_though_somebody_wants_to_be_woken_for_ever(cls: type[Scheduler]) -> None:
    late = [*some(3), Request(3, 10**12, 4, 4)]  # nor is it woken ten billion times before the last
    table = simulated(cls, late)["table"]
    assert table["status"].eq("finished").all()


def test_until_bounds_a_jump() -> None:
    class Watched(Continuous):
        def __init__(self, *args: Any, **limits: Any) -> None:
            super().__init__(*args, **limits)
            self.seen = list[int]()

        def schedule(self, now: int) -> Batch:
            self.seen.append(now)
            return super().schedule(now)

        def quiet(self, batch: Batch) -> Quiet | None:
            quiet = super().quiet(batch)
            return quiet._replace(until=105) if quiet and self.seen[-1] < 105 else quiet

    seen = []

    def make(*args: Any, **limits: Any) -> Scheduler:
        scheduler = Watched(*args, **limits)
        seen.append(scheduler.seen)
        return scheduler

    simulated(make, [Request(0, 0, 4, 50)])
    assert seen[0] == list(range(0, 501, 10))
    assert seen[1] == [0, 110, 500]


# ---- latency models


class Jitter(FittedLatency):
    """Every third step takes longer."""

    calls: ClassVar = [0]

    def step_ns(self, batch: Batch) -> int:
        self.calls[0] += 1
        return super().step_ns(batch) + 100 * (self.calls[0] % 3 == 0)


class Slower(FittedLatency):
    def line(self, stats: Any) -> tuple[float, float]:
        self.asked.append(stats)  # type: ignore[attr-defined]
        return 10.0 + len(self.asked), 0.0  # type: ignore[attr-defined]

    asked: ClassVar = list[Any]()


class Around:
    """Hands on what it does not know, `further_ns` too."""

    def __init__(self) -> None:
        self.model, self.calls = FittedLatency(FITTED), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def step_ns(self, batch: Batch) -> int:
        self.calls += 1
        return self.model.step_ns(batch) + 7 * (self.calls % 2)


def jitter() -> Jitter:
    Jitter.calls[0] = 0
    return Jitter(FITTED)


def slower() -> Slower:
    Slower.asked.clear()
    return Slower(FITTED)


@pytest.mark.parametrize("latency", [jitter, slower, Around])
def test_a_model_that_is_changed_is_asked_for_each_step(latency: Any) -> None:
    assert simulated(Continuous, some(), latency)["foretold"] == 0


def test_exact_steps_are_exact_steps() -> None:
    model = FittedLatency(FITTED)
    assert SimulatedModelRunner(model).predicts_further
    assert not SimulatedModelRunner(model, exact_steps=True).predicts_further


# ---- allocators


class Counting(Paged):
    """Gives a block back, and counts, with each step's tokens: not what many steps at once tell it."""

    commits: ClassVar = list[int]()

    def commit(self, seqs: Any, counts: Any) -> None:
        self.commits.append(len(seqs))
        super().commit(seqs, counts)


class Reluctant(Paged):
    """Refuses every fifth wish to grow."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, block_size=4)
        self.wishes = 0

    def widen(self, holder: Holder, tokens: int) -> int:
        self.wishes += 1
        return 0 if self.wishes % 5 == 0 else super().widen(holder, tokens)


@pytest.mark.parametrize("pool", [Counting, Reluctant])
def test_an_allocator_that_is_changed_is_asked_for_each_step(pool: type[Paged]) -> None:
    Counting.commits.clear()
    assert simulated(Continuous, some(), pool=pool)["foretold"] == 0
    half = len(Counting.commits) // 2
    assert Counting.commits[:half] == Counting.commits[half:]


# ---- the rule


class Mixin:
    def enqueue(self, seq: Sequence) -> None:
        self.waiting.append(seq)  # type: ignore[attr-defined]


class MixedIn(Mixin, Continuous):
    pass


class Behind(Continuous, Mixin):
    """Here the mix-in changes nothing: `Continuous` comes first."""


class Again(MixedIn):
    def quiet(self, batch: Batch) -> Quiet | None:
        return super().quiet(batch)


class Prepared(Continuous):
    """Sets something up, and has something of its own."""

    def __init__(self, *args: Any, **limits: Any) -> None:
        super().__init__(*args, **limits)
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


class Below(Again):
    def arrivals_could_join(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("cls", "trusted"),
    [(Continuous, True), (Prepared, True), (Behind, True), (Again, True), (MixedIn, False), (Below, False),
     (Latest, False), (Waking, False)],
)  # fmt: skip
def test_the_word_of_a_class_is_taken_for_what_nobody_below_it_changed(cls: type[Scheduler], trusted: bool) -> None:
    assert vouched(cls(Paged(64, 64), on_demand, max_model_len=64), "quiet") == trusted


class Lanes(Allocator):
    """Writes what is left open, and nothing else."""

    def __init__(self, capacity: int, max_model_len: int) -> None:
        super().__init__(capacity, max_model_len)
        self.free_lanes = list(range(0, capacity - max_model_len + 1, max_model_len))
        self.lane = dict[int, int]()

    def footprint(self, tokens: int) -> int | None:
        return self.max_model_len

    def place(self, holder: Holder, tokens: int) -> int | None:
        if not self.free_lanes:
            return None
        self.lane[holder.row] = self.free_lanes.pop()
        self.set_row(holder, 0, self.lane[holder.row])
        return self.max_model_len

    def release(self, holder: Holder) -> None:
        self.free_lanes.append(self.lane.pop(holder.row))

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        return [(self.lane[holder.row], self.max_model_len)]


class OtherLanes(Lanes):
    """Others first."""

    def release(self, holder: Holder) -> None:
        self.free_lanes.insert(0, self.lane.pop(holder.row))


class SlowLanes(Lanes):
    def take_delay(self) -> int:
        return 7


@pytest.mark.parametrize(("cls", "trusted"), [(Lanes, True), (OtherLanes, False), (SlowLanes, False)])
def test_to_write_what_was_left_open_changes_nothing(cls: Any, trusted: bool) -> None:
    assert vouched(cls(64, 16), "extend") == trusted
    told = assert_jumps_are_steps(
        lambda _: Continuous(cls(800, 200), max_model_len, max_model_len=200, max_num_seqs=4),
        some(),
        LATENCIES["fitted"],
    )
    assert bool(told["foretold"]) == trusted


def test_nor_is_it_taken_where_the_object_itself_was_changed() -> None:
    scheduler: Any = Continuous(Paged(64, 64), on_demand, max_model_len=64)
    scheduler.reserve_full_isl = False  # which `quiet` looks at
    assert vouched(scheduler, "quiet")
    scheduler.enqueue = scheduler.waiting.appendleft
    assert not vouched(scheduler, "quiet")


def test_whoever_has_no_such_word_has_every_step_taken_by_itself() -> None:
    assert not vouched(object(), "further_ns")


@pytest.mark.parametrize(("name", "new"), SCHEDULER_HOOKS.items())
def test_a_hook_of_before_is_refused_by_its_name_with_the_new_one(name: str, new: str) -> None:
    cls: Any = type("Mine", (Continuous,), {name: property(lambda self: True)})
    with pytest.raises(TypeError, match=f"Mine defines {name}, which is asked no more; it is {re.escape(new)}"):
        cls(Paged(64, 64), on_demand, max_model_len=64)
    assert hasattr(Continuous, new.split("(")[0])


@pytest.mark.parametrize(("name", "new"), ALLOCATOR_HOOKS.items())
def test_so_is_one_of_an_allocator(name: str, new: str) -> None:
    cls: Any = type("Mine", (Paged,), {name: lambda self: True})
    with pytest.raises(TypeError, match=f"Mine defines {name}, which is asked no more; it is {re.escape(new)}"):
        cls(64, 64)
    assert hasattr(Paged, new.split("(")[0])


def test_an_empty_batch_leaves_its_moves_for_the_next() -> None:
    """Nobody runs it, so nobody would make them."""
    pool = Paged(64, 64, block_size=4)
    scheduler = Continuous(pool, on_demand, max_model_len=64)
    parent, child = (scheduler.add(Request(i, 0, 6, 4)) or scheduler.waiting[-1] for i in range(2))
    scheduler.complete(scheduler.schedule(0), None)
    pool.fork(parent, child)
    pool.grow(child, 8)  # the block that both hold is copied before it is written
    waiting = pool.pending_moves
    assert waiting
    assert scheduler.close(Batch()).moves == []
    assert pool.pending_moves == waiting
    assert scheduler.close(Batch([child], [1])).moves == list(waiting)
