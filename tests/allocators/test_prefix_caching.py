"""Prefix caching in `Paged`: what is found, shared, kept and evicted, and where the books put it."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from allocators.base import Allocator, AllocatorError, Ask, Hit, Holder
from allocators.checker import Checked
from allocators.paged import Paged
from tests.conformance.allocator import AllocatorConformance, Device
from tests.conformance.effort import cases

SIZE = 4


class TestUnknownContents(AllocatorConformance):
    """With caching on, sequences that say nothing of their contents are served as without."""

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Paged(capacity, max_model_len, block_size=4, enable_prefix_caching=True)


class TestFreedToTheBack(AllocatorConformance):
    """vLLM 0.16 - 0.20."""

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Paged(capacity, max_model_len, block_size=4, enable_prefix_caching=True, freed_blocks="back")


class Text(Holder):
    """A sequence of known tokens; a block contains them and all before it."""

    __slots__ = ("tokens",)

    def __init__(self, name: str, tokens: list[int]) -> None:
        super().__init__(name)
        self.tokens = tokens

    def block_hashes(self, block_size: int, count: int) -> list[tuple[int, ...]]:
        return [tuple(self.tokens[: i * block_size]) for i in range(1, min(count, len(self.tokens) // block_size) + 1)]


def pool(blocks: int = 8, freed_blocks: str = "front") -> Checked:
    return Checked(Paged(blocks * SIZE, 200, SIZE, enable_prefix_caching=True, freed_blocks=freed_blocks))  # type: ignore[arg-type]


def admitted(allocator: Checked, name: str, tokens: list[int], stored: int | None = None) -> Text:
    """A sequence, admitted with whatever hit there is; all of its tokens (or `stored`) are committed."""
    seq = Text(name, tokens)
    hit = allocator.lookup(seq, len(tokens) - 1)
    assert allocator.admit([seq], Ask(len(tokens), final=len(tokens), hit=hit)) == hit.tokens
    allocator.commit([seq], [(len(tokens) if stored is None else stored) - seq.stored])
    return seq


def blocks(allocator: Checked, seq: Holder) -> list[int]:
    return [start // SIZE for start, _ in allocator.spans(seq)]


def test_what_is_committed_is_found_by_its_beginning() -> None:
    allocator = pool()
    first = admitted(allocator, "first", list(range(12)))
    second = admitted(allocator, "second", [*range(8), 99, 98])
    assert blocks(allocator, second)[:2] == blocks(allocator, first)[:2]
    assert blocks(allocator, second)[2] not in blocks(allocator, first)


def test_what_is_not_committed_yet_is_not_found() -> None:
    allocator = pool()
    admitted(allocator, "first", list(range(12)), stored=7)
    assert allocator.lookup(Text("second", list(range(12))), 11) == Hit(4, 4)


def test_one_token_is_left_to_compute() -> None:
    """A cached prompt of exactly 3 blocks: two are hit."""
    allocator = pool()
    allocator.free(admitted(allocator, "first", list(range(12))))
    second = admitted(allocator, "second", list(range(12)), stored=8)
    assert second.stored == 8


def test_contents_are_of_no_use_behind_another_beginning() -> None:
    allocator = pool()
    admitted(allocator, "first", list(range(12)))
    assert allocator.lookup(Text("second", [9, *range(1, 12)]), 11) == Hit(0, 0)


def test_idle_but_cached_blocks_are_not_used_and_can_all_be_had() -> None:
    allocator = pool()
    allocator.free(admitted(allocator, "first", list(range(14))))
    books = allocator.memory()
    assert (books.used, books.cached, books.free) == (0, 12, 20)
    assert admitted(allocator, "whole pool", [7] * 32).held == 32
    assert allocator.memory().cached == 0


def test_shared_slots_count_once() -> None:
    allocator = pool()
    first = admitted(allocator, "first", list(range(10)))
    second = admitted(allocator, "second", [*range(8), 90])
    assert allocator.memory().used == 8 + 2 + 1
    allocator.free(first)
    assert allocator.memory().used == 9
    allocator.free(second)
    assert (allocator.memory().used, allocator.memory().cached) == (0, 8)


def test_a_shared_slot_is_used_as_long_as_one_of_its_sequences_is_not_finished() -> None:
    allocator = pool()
    first, second = (admitted(allocator, name, list(range(9))) for name in ("first", "second"))
    allocator.free(first, hold=True)
    assert allocator.memory()[:2] == (9, 4)
    allocator.free(second, hold=True)
    assert allocator.memory()[:2] == (0, 16)
    third = admitted(allocator, "third", [*range(8), 50])
    assert allocator.memory()[:2] == (9, 8)
    for seq in (second, third, first):
        allocator.free(seq)
    assert allocator.memory().free + allocator.memory().cached == 32


def test_an_evicted_beginning_makes_the_rest_useless_and_its_return_useful_again() -> None:
    """A, then B which evicts A's end, then A again: a partial hit, and nothing of B in it."""
    allocator = pool(blocks=4)
    allocator.free(admitted(allocator, "A", list(range(16))))
    allocator.free(admitted(allocator, "B", [50 + i for i in range(8)]))
    again = Text("A again", list(range(16)))
    assert allocator.lookup(again, 15) == Hit(8, 0)
    assert admitted(allocator, "A again", list(range(16))).stored == 16


def test_preempted_partly_evicted_and_resumed() -> None:
    """Its blocks stay until somebody takes them; the last ones go first."""
    allocator = pool(blocks=4)
    victim = admitted(allocator, "victim", list(range(15)))
    allocator.free(victim)
    other = admitted(allocator, "other", [90, 91, 92, 93, 94])
    assert allocator.lookup(victim, 14) == Hit(8, 0)
    allocator.free(other)
    assert allocator.admit([victim], Ask(15, final=15, hit=Hit(8, 0))) == 8
    assert (victim.stored, victim.held) == (8, 16)


def test_a_hit_on_held_blocks_needs_no_free_ones_and_a_hit_on_free_ones_does() -> None:
    allocator = pool(blocks=4)
    first = admitted(allocator, "first", list(range(12)))
    second = Text("second", list(range(16)))
    hit = allocator.lookup(second, 15)
    assert hit == Hit(12, 12)
    assert Ask(16, hit=hit).slots == 4
    assert allocator.admit([second], Ask(16, spare=1, hit=hit)) is None
    assert allocator.admit([second], Ask(16, hit=hit)) == 12
    allocator.free(first)
    allocator.free(second)
    hit = allocator.lookup(second, 15)
    assert hit.held == 0
    assert allocator.admit([second], Ask(16, spare=1, hit=hit)) is None


def test_a_refused_admission_leaves_the_hit_where_it_was() -> None:
    allocator = pool(blocks=4)
    allocator.free(admitted(allocator, "first", list(range(12))))
    order = allocator.pool.free_list()
    second = Text("second", list(range(40)))
    assert allocator.admit([second], Ask(16, must_fit=40, hit=allocator.lookup(second, 39))) is None
    assert (allocator.pool.free_list(), second.stored) == (order, 0)


def test_a_hit_that_is_not_there_is_an_error_that_names_the_sequence() -> None:
    allocator = pool()
    with pytest.raises(AllocatorError, match="the liar claims a prefix hit of 8 tokens; the pool holds 0"):
        allocator.admit([Text("the liar", list(range(12)))], Ask(12, hit=Hit(8, 0)))


def test_without_caching_nothing_is_found() -> None:
    allocator = Checked(Paged(64, 64, SIZE))
    admitted(allocator, "first", list(range(12)))
    assert admitted(allocator, "second", list(range(12)), stored=12).held == 12
    assert allocator.memory().used == 24


class SharingMachine(RuleBasedStateMachine):
    """Sequences out of few beginnings come, grow, finish and go; each must always read its own tokens."""

    freed_blocks = "front"

    def __init__(self) -> None:
        super().__init__()
        self.allocator = pool(blocks=10, freed_blocks=self.freed_blocks)
        self.device = Device(self.allocator)
        self.live: list[Text] = []
        self.finished: list[Text] = []
        self.gone: list[Text] = []
        self.names = count()

    def store(self, seq: Text, more: int) -> None:
        start = seq.stored
        self.allocator.commit([seq], [more])
        self.device.start_step()
        self.device.write(seq, start, seq.tokens[start : seq.stored])

    @rule(family=st.integers(0, 2), turn=st.integers(1, 14), length=st.integers(2, 18), piece=st.integers(1, 18))
    def arrive(self, family: int, turn: int, length: int, piece: int) -> None:
        """`length` tokens that leave those of their family after `turn`; `piece` of them are computed at once."""
        tokens = [100 * family + i if i < turn else 1000 + i % 2 for i in range(length)]
        self.come(Text(f"sequence {next(self.names)}", tokens), piece)

    @precondition(lambda self: self.gone)
    @rule(pick=st.integers(0, 30), piece=st.integers(1, 18))
    def come_back(self, pick: int, piece: int) -> None:
        self.come(self.gone.pop(pick % len(self.gone)), piece)

    def come(self, seq: Text, piece: int) -> None:
        hit = self.allocator.lookup(seq, len(seq.tokens) - 1)
        tokens = min(hit.tokens + piece, len(seq.tokens))
        ask = Ask(tokens, must_fit=len(seq.tokens), final=len(seq.tokens) + 2, hit=hit)
        if self.allocator.admit([seq], ask) is not None:
            self.device.start_step()
            assert self.device.read(seq) == seq.tokens[: seq.stored], "a hit on other tokens"
            self.store(seq, tokens - hit.tokens)
            self.live.append(seq)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 30), more=st.integers(1, 6))
    def go_on(self, pick: int, more: int) -> None:
        seq = self.live[pick % len(self.live)]
        wanted = seq.stored + more
        seq.tokens += [2000 + i % 2 for i in range(len(seq.tokens), wanted)]
        if wanted <= seq.room or self.allocator.grow(seq, wanted):
            self.store(seq, more)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 30), hold=st.booleans())
    def leave(self, pick: int, hold: bool) -> None:
        seq = self.live.pop(pick % len(self.live))
        self.allocator.free(seq, hold)
        (self.finished if hold else self.gone).append(seq)

    @precondition(lambda self: self.finished)
    @rule(pick=st.integers(0, 30))
    def go(self, pick: int) -> None:
        seq = self.finished.pop(pick % len(self.finished))
        self.allocator.free(seq)
        self.gone.append(seq)

    @invariant()
    def everybody_reads_its_own_tokens(self) -> None:
        for seq in self.live + self.finished:
            assert self.device.read(seq) == seq.tokens[: seq.stored], f"{seq.name} reads what is not its own"


@pytest.mark.parametrize("freed_blocks", ["front", "back"])
def test_whoever_shares_reads_its_own_tokens(freed_blocks: str) -> None:
    effort = settings(max_examples=cases(60), stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(type("Machine", (SharingMachine,), {"freed_blocks": freed_blocks}), settings=effort)
