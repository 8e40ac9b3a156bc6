"""The suite that every allocator inherits.

Yours does so like this:

    class TestMine(AllocatorConformance):
        def make(self, capacity: int, max_model_len: int) -> Allocator:
            return Mine(capacity, max_model_len)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from allocators.base import Allocator, AllocatorError, Ask, Holder
from allocators.checker import Checked
from allocators.layout import SLOT, Kept
from schedulers.continuous import Continuous
from schedulers.static import Static
from schedulers.vllm_v1 import VllmV1

from .effort import cases
from .jumps import any_jump_is_its_steps

Make = Callable[[int, int], Allocator]


class Device:
    """A naive device: one value per unit, and a copy of the tables that only `take_dirty` keeps up to date."""

    def __init__(self, allocator: Checked | Allocator) -> None:
        self.allocator = allocator
        self.slots = np.full(allocator.capacity, -1)
        self.host = np.full(allocator.host_capacity, -1)
        self.tables = [table.copy() for table in allocator.group_tables]

    def start_step(self) -> None:
        """What a runner does before a step's attention: mend the tables, then run the moves in order."""
        dirty = self.allocator.take_dirty()
        for group, table in enumerate(self.allocator.group_tables):
            more = len(table) - len(self.tables[group])
            if more > 0:
                self.tables[group] = np.vstack([self.tables[group], np.full((more, table.shape[1]), -1)])
            self.tables[group][dirty] = table[dirty]
        for move in self.allocator.take_moves():
            source = self.host if move.kind == "in" else self.slots
            target = self.host if move.kind == "out" else self.slots
            assert max(move.source + move.length - len(source), move.target + move.length - len(target)) <= 0
            target[move.target :][: move.length] = source[move.source :][: move.length].copy()

    def write(self, holder: Holder, first: int, values: list[int]) -> None:
        for group in self._of_tokens:
            at = self._addresses(holder, group, first, first + len(values))
            self.slots[at[at >= 0]] = np.array(values)[at >= 0]

    def read(self, holder: Holder, group: int = 0, first: int = 0) -> list[int]:
        """The values of its tokens from `first` on, in the layers of a group."""
        return self.slots[self._addresses(holder, group, first, holder.stored)].tolist()

    def reads(self, holder: Holder, values: list[int]) -> bool:
        """Whether it finds `values`, those of them that some layer will read."""
        first = [kept.behind(holder.stored) for kept in self._kept]
        return all(self.read(holder, group, first[group]) == values[first[group] :] for group in self._of_tokens)

    @property
    def _of_tokens(self) -> list[int]:
        """The groups of layers that keep tokens, and not states."""
        return [group for group, kept in enumerate(self._kept) if kept.token_units]

    @property
    def _kept(self) -> Collection[Kept]:
        return self.allocator.kept if len(self.tables) > 1 or self.allocator._ledger else (SLOT,)

    def _addresses(self, holder: Holder, group: int, first: int, end: int) -> np.ndarray:
        at, row, grid = np.arange(first, end), self.tables[group][holder.row], self.allocator.grids[group]
        size = list(self._kept)[group].token_units
        if grid.ring:
            at = at % grid.ring
        if grid.block_size:
            blocks = row[at // grid.block_size]
            return np.where(blocks < 0, -1, grid.origin + blocks * grid.stride + at % grid.block_size * size)
        return grid.origin + (row[0] + at) * size


class Churned(NamedTuple):
    """The sequences that are there after some random calls, and the numbers of the calls that were refused."""

    live: list[Holder]
    refused: list[int]


def allocator_machine(make: Make, capacity: int, max_model_len: int) -> type[RuleBasedStateMachine]:
    """Any calls in any order, beside a model that knows only which tokens each sequence has stored."""
    tokens, picks = st.integers(1, max_model_len), st.integers(0, 7)

    class AllocatorMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.allocator = Checked(make(capacity, max_model_len))
            self.device = Device(self.allocator)
            self.stored: dict[Holder, list[int]] = {}  # live sequences and their tokens
            self.finished: dict[Holder, list[int]] = {}  # held until their batch is over
            self.hosted: list[dict[Holder, list[int]]] = []  # groups on the host
            self.gone: list[Holder] = []
            self.values, self.names = count(), count()

        def new(self) -> Holder:
            return Holder(f"sequence {next(self.names)}")

        def live(self, pick: int) -> Holder:
            return list(self.stored)[pick % len(self.stored)]

        @rule(
            group=st.integers(1, 3), tokens=tokens, promise=st.just(0) | tokens, must_fit=st.just(0) | tokens,
            spare=st.just(0) | st.integers(0, capacity), final=st.integers(0, max_model_len),
        )  # fmt: skip
        def admit(self, group: int, tokens: int, promise: int, must_fit: int, spare: int, final: int) -> None:
            ask = Ask(tokens, promise, must_fit, spare, final, count=group)
            seqs, empty = [self.new() for _ in range(group)], not self.stored and not self.finished
            fits = self.allocator.footprint(max(ask.need, must_fit)) is not None
            unheld = self.allocator.unheld
            hit = self.allocator.admit(seqs, ask)
            if hit is None:
                assert not (empty and fits and group == 1 and not spare), "refused by an empty pool"
                return
            assert hit == 0, "a prefix hit without any content"
            assert fits
            assert self.allocator.asked(ask) <= unheld
            assert self.allocator.free_slots >= spare
            self.stored |= {seq: [] for seq in seqs}

        @precondition(lambda self: self.stored)
        @rule(pick=picks, more=st.integers(1, 20))
        def grow(self, pick: int, more: int) -> None:
            seq = self.live(pick)
            self.allocator.grow(seq, min(seq.stored + more, max_model_len))

        @precondition(lambda self: self.stored)
        @rule(rounds=st.integers(1, 8))
        def extend(self, rounds: int) -> None:
            seqs, longest = list(self.stored), max(seq.stored for seq in self.stored)
            starts = [seq.stored for seq in seqs]
            done = self.allocator.extend(seqs, min(rounds, max_model_len - longest)).rounds
            self.device.start_step()
            for seq, start in zip(seqs, starts, strict=True):
                values = [next(self.values) for _ in range(done)]
                self.device.write(seq, start, values)
                self.stored[seq] += values

        @precondition(lambda self: self.stored)
        @rule(wanted=st.lists(st.integers(0, 20), min_size=1, max_size=8))
        def step(self, wanted: list[int]) -> None:
            """Store as many new tokens as were granted, then read every sequence back."""
            seqs = list(self.stored)[: len(wanted)]
            starts = [seq.stored for seq in seqs]
            counts = [min(n, min(seq.room, max_model_len) - seq.stored) for seq, n in zip(seqs, wanted, strict=False)]
            self.allocator.commit(seqs, counts)
            self.device.start_step()
            for seq, start, n in zip(seqs, starts, counts, strict=True):
                values = [next(self.values) for _ in range(n)]
                self.device.write(seq, start, values)
                self.stored[seq] += values
            for seq, values in (self.stored | self.finished).items():
                assert self.device.reads(seq, values), f"{seq.name} reads what it did not write"

        @precondition(lambda self: self.stored and self.allocator.can_fork)
        @rule(pick=picks)
        def fork(self, pick: int) -> None:
            parent, child = self.live(pick), self.new()
            if self.allocator.fork(parent, child):
                self.stored[child] = list(self.stored[parent])

        @precondition(lambda self: len(self.stored) > 1 and self.allocator.can_fork)
        @rule(pick=picks, other=picks)
        def fork_onto(self, pick: int, other: int) -> None:
            """The child loses what it had, but for the beginning that is the same."""
            parent, child = self.live(pick), self.live(other)
            if parent is child:
                with pytest.raises(AllocatorError):
                    self.allocator.fork(parent, child)
                return
            new, old = self.stored[parent], self.stored[child]
            common = next(
                (i for i, (a, b) in enumerate(zip(new, old, strict=False)) if a != b), min(map(len, (new, old)))
            )
            if self.allocator.fork(parent, child, common):
                self.stored[child] = list(new)

        @precondition(lambda self: self.stored and self.allocator.host_capacity)
        @rule(size=st.integers(1, 3))
        def swap_out(self, size: int) -> None:
            group = [seq for seq in self.stored if seq.stored][:size]
            if group and self.allocator.swap(group, to_host=True):
                self.hosted.append({seq: self.stored.pop(seq) for seq in group})

        @precondition(lambda self: self.hosted)
        @rule(spare=st.just(0) | st.integers(0, capacity))
        def swap_in(self, spare: int) -> None:
            group = self.hosted[0]
            if self.allocator.swap(list(group), to_host=False, spare=spare):
                assert self.allocator.free_slots >= spare
                self.stored |= self.hosted.pop(0)

        @precondition(lambda self: self.stored and self.allocator.host_capacity)
        @rule(pick=picks)
        def swap_in_what_is_here(self, pick: int) -> None:
            with pytest.raises(AllocatorError):
                self.allocator.swap([self.live(pick)], to_host=False)

        @precondition(lambda self: self.stored)
        @rule(pick=picks)
        def free(self, pick: int) -> None:
            seq = self.live(pick)
            self.allocator.free(seq)
            del self.stored[seq]
            self.gone.append(seq)

        @precondition(lambda self: self.stored)
        @rule(pick=picks)
        def finish_but_hold(self, pick: int) -> None:
            seq = self.live(pick)
            self.allocator.free(seq, hold=True)
            self.finished[seq] = self.stored.pop(seq)

        @precondition(lambda self: self.finished)
        @rule()
        def end_of_the_batch(self) -> None:
            for seq in self.finished:
                self.allocator.free(seq)
            self.gone += self.finished
            self.finished.clear()

        @precondition(lambda self: self.gone)
        @rule(pick=picks)
        def free_twice(self, pick: int) -> None:
            with pytest.raises(AllocatorError):
                self.allocator.free(self.gone[pick % len(self.gone)])

        @precondition(lambda self: self.finished)
        @rule(hold=st.booleans())
        def use_a_finished_one(self, hold: bool) -> None:
            seq = next(iter(self.finished))
            with pytest.raises(AllocatorError):
                self.allocator.free(seq, hold=True) if hold else self.allocator.grow(seq, max_model_len)

        @precondition(lambda self: self.stored)
        @rule(pick=picks)
        def grow_past_the_longest(self, pick: int) -> None:
            with pytest.raises(AllocatorError):
                self.allocator.grow(self.live(pick), max_model_len + 1)

        @invariant()
        def books_agree(self) -> None:
            books = self.allocator.memory()  # the checker sums them up, and looks for slots with two owners
            held = sum(seq.held for seq in self.stored)
            if not (self.allocator.forks_share or self.allocator.shares):
                lengths = [len(values) for values in self.stored.values()]
                kept = self.device._kept
                assert books.used == sum(k.token_units * (n - k.behind(n)) for k in kept for n in lengths)
                free = books.finished_held + books.fragmented + books.short + books.free
                assert sum(books) - free == held
                assert books.finished_held == sum(seq.held for seq in self.finished)

    return AllocatorMachine


def churn(allocator: Allocator | Checked, seed: int, calls: int, skip: Collection[int] = ()) -> Churned:
    """Random admissions (of one or of a group), steps and frees from `seed`, without the calls numbered in `skip`."""
    draw, live, refused = random.Random(seed), list[Holder](), list[int]()
    for number in range(calls):
        action, tokens, pick = draw.randrange(4), draw.randint(1, allocator.max_model_len), draw.randrange(100)
        promise = draw.choice([0, tokens, allocator.max_model_len])
        if number in skip:
            if action == 2:  # what no layer reads is given back even when more is refused
                allocator.free_unread(live[pick % len(live)])
            continue
        if action < 2:
            size = 1 + 3 * action
            group = [Holder(f"sequence {number}.{i}") for i in range(size)]
            if allocator.admit(group, Ask(tokens, promise, final=tokens, count=size)) is None:
                refused.append(number)
            else:
                live += group
        elif action == 2 and live:
            seq = live[pick % len(live)]
            wanted = min(seq.stored + pick % 7, allocator.max_model_len)
            if wanted <= seq.room or allocator.grow(seq, wanted):
                allocator.commit([seq], [wanted - seq.stored])
            else:
                refused.append(number)
        elif action == 3 and live:
            allocator.free(live.pop(pick % len(live)))
    return Churned(live, refused)


def fill(allocator: Allocator | Checked, tokens: int) -> Iterator[Holder]:
    """Admit sequences of `tokens` tokens until the pool refuses."""
    for number in count():
        seq = Holder(f"filler {number}")
        if allocator.admit([seq], Ask(tokens, promise=tokens)) is None:
            return
        yield seq


def places(allocator: Allocator | Checked, seqs: list[Holder]) -> dict[str, list[tuple[int, int]]]:
    return {seq.name: allocator.spans(seq) for seq in seqs}


class AllocatorConformance:
    """What holds for every allocator. Override `make`, and the sizes where your placement needs a larger pool.

    Attributes:
        capacity: slots of the pools made here; at least four sequences of `max_model_len` should fit.
        max_model_len: longest sequence.
        effort: how hard hypothesis tries.
        simulations: how hard where each try is two whole simulations.
        extends_past_growth: False where `extend` ends before a step in which somebody asks for room, granted or not.
    """

    capacity = 200
    max_model_len = 48
    effort = settings(max_examples=cases(20), stateful_step_count=30, deadline=None, derandomize=True)
    simulations = settings(max_examples=cases(12), deadline=None, derandomize=True)
    extends_past_growth = True

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        raise NotImplementedError("override make(capacity, max_model_len)")

    @pytest.fixture
    def allocator(self) -> Checked:
        return Checked(self.make(self.capacity, self.max_model_len))

    def test_any_calls_in_any_order_agree_with_a_naive_model(self) -> None:
        machine = allocator_machine(self.make, self.capacity, self.max_model_len)
        run_state_machine_as_test(machine, settings=self.effort)

    def test_steps_taken_together_are_the_steps_taken_one_by_one(self) -> None:
        @given(st.data())
        def check(data: st.DataObject) -> None:
            capacity = data.draw(st.integers(self.max_model_len, self.capacity), "capacity")
            any_jump_is_its_steps(
                data, data.draw(st.sampled_from([Continuous, VllmV1, Static]), "scheduler"),
                allocator=lambda: self.make(capacity, self.max_model_len), longest=self.max_model_len,
            )  # fmt: skip

        self.simulations(check)()

    def test_an_empty_pool_is_free(self, allocator: Checked) -> None:
        assert allocator.memory().free == self.capacity

    @pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
    def test_random_calls_lose_no_slot(self, allocator: Checked, seed: int) -> None:
        for seq in churn(allocator, seed, calls=cases(1000)).live:
            allocator.free(seq)
        assert allocator.memory().free == self.capacity

    @pytest.mark.parametrize("seed", range(3))
    def test_after_freeing_everything_as_much_fits_as_at_the_start(self, seed: int) -> None:
        fresh, used = (self.make(self.capacity, self.max_model_len) for _ in range(2))
        for seq in churn(used, seed, calls=300).live:
            used.free(seq)
        for tokens in (self.max_model_len, 1):
            fillers = [list(fill(allocator, tokens)) for allocator in (fresh, used)]
            assert len(fillers[0]) == len(fillers[1]) > 0
            for allocator, seqs in zip((fresh, used), fillers, strict=True):
                for seq in seqs:
                    allocator.free(seq)

    def test_a_group_is_admitted_whole_or_not_at_all(self, allocator: Checked) -> None:
        """One more is asked for than there is room for: nothing changes, and the others still fit."""
        full = list(fill(allocator, self.max_model_len))
        for seq in full[:2]:
            allocator.free(seq)
        again = list(fill(allocator, self.max_model_len))  # two, or more where what was left over lay apart
        for seq in again:
            allocator.free(seq)
        assert len(again) >= 2
        before = allocator.memory(), allocator.free_slots, places(allocator, full[2:])
        group = [Holder(f"member {i}") for i in range(len(again) + 1)]
        assert allocator.admit(group, Ask(1, promise=self.max_model_len, count=len(group))) is None
        assert (allocator.memory(), allocator.free_slots, places(allocator, full[2:])) == before
        assert all(member.row == -1 and member.held == member.room == 0 for member in group)
        assert allocator.admit(group[:-1], Ask(1, promise=self.max_model_len, count=len(again))) == 0

    @pytest.mark.parametrize("seed", range(3))
    def test_a_refusal_leaves_no_trace(self, seed: int) -> None:
        """With and without the refused calls, everything lies in the same place."""
        asked, spared = (self.make(self.capacity, self.max_model_len) for _ in range(2))
        with_them = churn(asked, seed, calls=300)
        without = churn(spared, seed, calls=300, skip=with_them.refused)
        assert with_them.refused
        assert not without.refused
        assert places(asked, with_them.live) == places(spared, without.live)
        assert [seq.row for seq in with_them.live] == [seq.row for seq in without.live]

    def test_admission_to_an_empty_pool_takes_the_footprint(self, allocator: Checked) -> None:
        for tokens in range(1, self.max_model_len + 1):
            seq = Holder(f"{tokens} tokens")
            footprint = allocator.footprint(tokens)
            hit = allocator.admit([seq], Ask(tokens))
            if footprint is None:
                assert hit is None
            else:
                assert (hit, seq.held) == (0, footprint)
                allocator.free(seq)

    def test_footprint_covers_its_tokens_and_never_shrinks(self, allocator: Checked) -> None:
        footprints = [allocator.footprint(tokens) for tokens in range(1, self.max_model_len + 1)]
        there = [slots for slots in footprints if slots is not None]
        assert there == sorted(there)
        assert all(tokens <= slots <= self.capacity for tokens, slots in enumerate(there, start=1))
        assert footprints == there + [None] * (len(footprints) - len(there)), "what fits no longer fits when shorter"

    def test_more_tokens_than_slots_never_fit(self) -> None:
        allocator = self.make(self.capacity, 2 * self.capacity)
        assert allocator.footprint(self.capacity + 1) is None
        assert allocator.admit([Holder("giant")], Ask(self.capacity + 1)) is None

    def test_spare_slots_stay_free(self, allocator: Checked) -> None:
        tokens = self.max_model_len // 2
        spare = self.capacity - 2 * (allocator.footprint(tokens) or 0)
        for number in range(self.capacity):
            if allocator.admit([Holder(f"sequence {number}")], Ask(tokens, spare=spare)) is None:
                break
        assert number > 0
        assert allocator.free_slots >= spare

    def test_extend_does_what_repeated_steps_would(self) -> None:
        """Same slots in the same order, same tokens stored, and the same books after every round."""
        for rounds in (1, 3, self.max_model_len // 2):
            bulk, single = (self.make(self.capacity, self.max_model_len) for _ in range(2))
            seqs, twins = (list(fill(pool, self.max_model_len // 3)) for pool in (bulk, single))
            before = bulk.memory()
            books = bulk.extend(seqs, rounds).books(before, len(seqs))
            expected = []
            if not self.extends_past_growth and len(books) < rounds:
                assert any(seq.stored == seq.room for seq in seqs), "it ended before anybody asked for room"
                rounds = len(books)
            while len(expected) < rounds and all(
                seq.room > seq.stored or single.grow(seq, seq.stored + 1) for seq in twins
            ):
                single.commit(twins, [1] * len(twins))
                expected.append(single.memory())
            assert books == expected
            assert bulk.memory() == single.memory()
            assert places(bulk, seqs) == places(single, twins)
            assert [seq.stored for seq in seqs] == [seq.stored for seq in twins]

    def test_more_sequences_than_the_tables_had_rows(self) -> None:
        """A runner that mends its copy of the tables row by row still reads every sequence."""
        allocator = self.make(100 * self.capacity, self.max_model_len)
        device, rows = Device(allocator), len(allocator.tables)
        seqs = [Holder(f"sequence {i}") for i in range(3 * rows)]
        for number, seq in enumerate(seqs):
            assert allocator.admit([seq], Ask(1)) == 0
            allocator.commit([seq], [1])
            device.start_step()
            device.write(seq, 0, [number])
        assert all(device.reads(seq, [number]) for number, seq in enumerate(seqs))

    def test_a_finished_sequence_holds_its_slots_until_it_is_freed(self, allocator: Checked) -> None:
        seq = Holder("lane")
        allocator.admit([seq], Ask(5, final=9))
        allocator.commit([seq], [5])
        held = seq.held
        allocator.free(seq, hold=True)
        books = allocator.memory()
        assert (books.finished_held, books.free) == (held, self.capacity - held)
        allocator.free(seq)
        assert allocator.memory().free == self.capacity

    def test_freed_twice_is_an_error_that_names_the_sequence(self, allocator: Checked) -> None:
        seq = Holder("the twice freed")
        allocator.admit([seq], Ask(1))
        allocator.free(seq)
        with pytest.raises(AllocatorError, match="the twice freed"):
            allocator.free(seq)

    def test_freeing_an_unknown_sequence_is_an_error_that_names_it(self, allocator: Checked) -> None:
        with pytest.raises(AllocatorError, match="the stranger"):
            allocator.free(Holder("the stranger"))

    def test_freeing_a_sequence_of_another_pool_is_an_error(self, allocator: Checked) -> None:
        other, seq = self.make(self.capacity, self.max_model_len), Holder("the neighbour")
        allocator.admit([Holder("resident")], Ask(1))
        other.admit([seq], Ask(1))
        with pytest.raises(AllocatorError, match="the neighbour"):
            allocator.free(seq)

    def test_admitted_twice_is_an_error_that_names_the_sequence(self, allocator: Checked) -> None:
        seq = Holder("the twice admitted")
        allocator.admit([seq], Ask(1))
        with pytest.raises(AllocatorError, match="the twice admitted"):
            allocator.admit([seq], Ask(1))

    def test_listed_twice_in_a_group_is_an_error_that_names_it_and_takes_nothing(self, allocator: Checked) -> None:
        seq, before = Holder("the twin"), allocator.free_slots
        with pytest.raises(AllocatorError, match="the twin is listed twice"):
            allocator.admit([seq, seq], Ask(1, count=2))
        assert (allocator.free_slots, seq.row, seq.held) == (before, -1, 0)

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_a_group_of_another_size_than_asked_is_an_error(self, allocator: Checked, count: int) -> None:
        with pytest.raises(AllocatorError, match=f"{count} sequences are asked for, but given are 2: one, two"):
            allocator.admit([Holder("one"), Holder("two")], Ask(1, count=count))

    def test_growing_past_the_longest_sequence_is_an_error_that_names_it(self, allocator: Checked) -> None:
        seq = Holder("the giant")
        allocator.admit([seq], Ask(1))
        with pytest.raises(AllocatorError, match="the giant"):
            allocator.grow(seq, self.max_model_len + 1)

    def test_asking_past_the_longest_sequence_is_an_error_that_names_it(self, allocator: Checked) -> None:
        free = allocator.free_slots
        with pytest.raises(AllocatorError, match="the giant"):
            allocator.admit([Holder("the giant")], Ask(self.max_model_len + 1))
        assert allocator.free_slots == free

    def test_asking_for_nothing_is_an_error(self, allocator: Checked) -> None:
        with pytest.raises(AllocatorError, match="the empty"):
            allocator.admit([Holder("the empty")], Ask(0))
        assert next(fill(allocator, self.max_model_len)).held
