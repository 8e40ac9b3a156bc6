"""The suite that every latency model inherits.

Yours does so like this:

    class TestMine(LatencyConformance):
        def make(self):
            return Mine(…)

`make` gives the same model each time: one with chance in it begins with the same seed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.runner.latency.base import Latency
from schedulers.continuous import Continuous
from schedulers.quiet import vouched
from schedulers.request import Batch, Request, Sequence

from .effort import cases
from .jumps import any_jump_is_its_steps


@st.composite
def batches(draw: st.DrawFn, longest: int) -> Batch:
    """A step of up to 12 sequences, some with several new tokens, and of finished lanes."""
    seqs, counts = [], []
    for number in range(draw(st.integers(1, 12))):
        stored = draw(st.integers(1, longest))
        counts.append(draw(st.sampled_from([1, 1, 1, min(stored, 40)])))
        seqs.append(Sequence(f"s{number}", request=Request(number, 0, stored, 1), stored=stored))
    idle = draw(st.lists(st.integers(1, longest), max_size=6))
    lanes = [Sequence(f"i{n}", request=Request(n, 0, 1, 1), stored=stored) for n, stored in enumerate(idle)]
    return Batch(seqs=seqs, counts=counts, idle=lanes)


def further(batch: Batch, steps: int) -> list[Batch]:
    """The steps behind `batch` in which each of its sequences goes on to decode."""
    told = []
    for _ in range(steps):
        seqs = [Sequence(seq.name, request=seq.request, stored=seq.stored + 1 + len(told)) for seq in batch.seqs]
        told.append(Batch(seqs=seqs, counts=[1] * len(seqs), idle=batch.idle))
    return told


class LatencyConformance:
    """What holds for every latency model. Override `make`.

    Attributes:
        longest: most tokens of a sequence that it can time.
        effort: how hard hypothesis tries.
        simulations: how hard where each try is two whole simulations.
    """

    longest = 3000
    effort = settings(max_examples=cases(40), deadline=None, derandomize=True)
    simulations = settings(max_examples=cases(15), deadline=None, derandomize=True)

    def make(self) -> Latency:
        raise NotImplementedError("override make()")

    def test_a_step_takes_whole_nanoseconds(self) -> None:
        @given(batches(self.longest))
        def check(batch: Batch) -> None:
            ns = self.make().step_ns(batch)
            assert type(ns) is int, f"step_ns must return whole nanoseconds, not {ns!r}"
            assert ns >= 0

        self.effort(check)()

    def test_the_same_model_says_the_same(self) -> None:
        @given(st.lists(batches(self.longest), min_size=1, max_size=5))
        def check(steps: list[Batch]) -> None:
            one, other = self.make(), self.make()
            assert [one.step_ns(batch) for batch in steps] == [other.step_ns(batch) for batch in steps]

        self.effort(check)()

    def test_further_steps_are_steps(self) -> None:
        """Where it tells many at once."""
        if not vouched(self.make(), "further_ns"):
            pytest.skip("it is asked for each step")

        @given(batches(self.longest), st.integers(1, 120))
        def check(batch: Batch, steps: int) -> None:
            model: Any = self.make()
            model.step_ns(batch)
            foretold = model.further_ns(batch, steps)
            assert all(type(ns) is int for ns in foretold)
            assert foretold == [model.step_ns(step) for step in further(batch, steps)]

        self.effort(check)()

    def test_who_asks_for_an_estimate_changes_nothing(self) -> None:
        asked: Any = self.make()
        if not hasattr(asked, "estimate"):
            pytest.skip("it has none")

        @given(st.lists(batches(self.longest), min_size=1, max_size=5))
        def check(steps: list[Batch]) -> None:
            one, other = self.make(), self.make()
            told = []
            for batch in steps:
                first = one.estimate(batch)  # type: ignore[attr-defined]
                assert first == one.estimate(batch) >= 0  # type: ignore[attr-defined]
                told.append(one.step_ns(batch))
            assert told == [other.step_ns(batch) for batch in steps]

        self.effort(check)()

    def test_a_simulation_is_the_same_with_jumps_as_with_exact_steps(self) -> None:
        @given(st.data())
        def check(data: st.DataObject) -> None:
            any_jump_is_its_steps(data, Continuous, models={"mine": self.make})

        self.simulations(check)()
