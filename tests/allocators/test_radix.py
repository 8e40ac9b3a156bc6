"""The radix allocator: what is found, shared, kept and evicted, to the token; and where the books put it."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from allocators.base import Allocator, AllocatorError, Ask, Hit, Holder
from allocators.checker import Checked
from allocators.radix import Radix
from allocators.radix_tree import Node, RadixTree
from tests.allocators.radix_rules import Text, admitted, check_tree
from tests.conformance.allocator import AllocatorConformance, Device
from tests.conformance.effort import cases


class TestRadix(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Radix(capacity, max_model_len)


class TestPages(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Radix(capacity, max_model_len, page_size=4)


class TestPagesThatDoNotFillThePool(AllocatorConformance):
    capacity = 203

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Radix(capacity, max_model_len, page_size=16)


def pool(capacity: int = 32, page_size: int = 1) -> Checked:
    return Checked(Radix(capacity, 200, page_size))


def slots(allocator: Any, seq: Holder) -> list[int]:
    return [slot for start, length in allocator.spans(seq) for slot in range(start, start + length)]


def test_what_is_committed_is_found_to_the_token() -> None:
    allocator = pool()
    first = admitted(allocator, "first", list(range(12)))
    second = admitted(allocator, "second", [*range(7), 99, 98])
    assert slots(allocator, second)[:7] == slots(allocator, first)[:7]
    assert not set(slots(allocator, second)[7:]) & set(slots(allocator, first))
    assert allocator.memory().used == 12 + 2


def test_what_is_not_committed_yet_is_not_found() -> None:
    allocator = pool()
    admitted(allocator, "first", list(range(12)), stored=7)
    assert allocator.lookup(Text("second", list(range(12))), 11) == Hit(7, 7)


def test_what_is_computed_piece_by_piece_and_generated_is_found_too() -> None:
    allocator = pool()
    first = admitted(allocator, "first", list(range(12)), stored=7)
    for _ in range(5):
        allocator.commit([first], [1])
    assert allocator.lookup(Text("second", list(range(12))), 12) == Hit(12, 12)


def test_a_fully_cached_prompt_computes_its_last_token() -> None:
    allocator = pool()
    first = admitted(allocator, "first", list(range(12)))
    allocator.free(first)
    second = admitted(allocator, "second", list(range(12)))
    assert allocator.memory()[0] == 12
    assert allocator.memory().cached == 1  # the last token of the first one; the second computes its own
    allocator.free(second)
    assert (allocator.memory().cached, allocator.memory().free) == (12, 20)


def test_equal_prompts_in_one_step_share_what_the_step_computes() -> None:
    """The first is committed before the second is looked up, as schedulers do."""
    allocator = pool()
    for name in ("first", "second", "third"):
        admitted(allocator, name, list(range(10)))
    assert allocator.memory().used == 10 + 1 + 1


def test_two_copies_of_the_same_tokens_are_kept_until_one_is_left_behind() -> None:
    """Neither finds the other: both compute all, the second one's copy is given back when it goes."""
    allocator = pool()
    twins = [Text(name, list(range(10))) for name in ("first", "second")]
    for seq in twins:
        allocator.admit([seq], Ask(10, final=12))
    allocator.commit(twins, [10, 10])
    assert allocator.memory().used == 20
    assert allocator.lookup(Text("third", list(range(12))), 11) == Hit(10, 10)
    for seq in twins:
        seq.tokens += [70, 71]
        allocator.grow(seq, 12)
    allocator.commit(twins, [2, 2])
    assert allocator.lookup(Text("third", [*range(10), 70, 71, 72]), 12) == Hit(12, 12)
    allocator.free(twins[1])
    assert (allocator.memory().used, allocator.memory().cached) == (12, 0)
    allocator.free(twins[0])
    assert (allocator.memory().used, allocator.memory().cached) == (0, 12)


def test_what_a_second_copy_goes_on_with_is_found_when_it_is_gone() -> None:
    allocator = pool()
    twins = [Text("first", list(range(10))), Text("second", [*range(10), 50, 51])]
    for seq in twins:
        allocator.admit([seq], Ask(len(seq.tokens)))
    allocator.commit(twins, [10, 12])
    asked = Text("third", [*range(10), 50, 51, 52])
    assert allocator.lookup(asked, 12) == Hit(10, 10)
    allocator.free(twins[1])
    assert allocator.lookup(asked, 12) == Hit(12, 10)


def test_splitting_a_node_keeps_slots_where_they_lie_and_its_holders() -> None:
    allocator = pool()
    first = admitted(allocator, "first", list(range(12)))
    before = slots(allocator, first)
    second = admitted(allocator, "second", [0, 1, 2, 90])
    third = admitted(allocator, "third", [*range(8), 91])
    assert slots(allocator, first) == before
    assert slots(allocator, second)[:3] == slots(allocator, third)[:3] == before[:3]
    assert slots(allocator, third)[3:8] == before[3:8]
    allocator.free(first)
    assert (allocator.memory().used, allocator.memory().cached) == (8 + 1 + 1, 4)


def test_cached_tokens_that_are_hit_are_held() -> None:
    allocator = pool()
    allocator.free(admitted(allocator, "first", list(range(14))))
    assert allocator.lookup(Text("again", list(range(14))), 9) == Hit(9, 0)
    admitted(allocator, "second", [*range(9), 80])
    books = allocator.memory()
    assert (books.used, books.cached, books.free) == (10, 5, 17)


def test_idle_but_cached_tokens_are_not_used_and_can_all_be_had() -> None:
    allocator = pool()
    allocator.free(admitted(allocator, "first", list(range(14))))
    assert allocator.free_slots == 32
    assert admitted(allocator, "whole pool", [7] * 32).held == 32
    assert allocator.memory().cached == 0


def test_leaves_go_first_the_least_recently_used_before_the_others_and_no_more_than_needed() -> None:
    allocator = pool(16)
    for tokens in ([0, 1, 2, 10, 11, 12], [0, 1, 2, 20, 21, 22], [0, 1, 2, 10, 11, 12]):  # so the 20s are the oldest
        allocator.free(admitted(allocator, "sequence", tokens))
    asked = [Text("tens", [0, 1, 2, 10, 11, 12]), Text("twenties", [0, 1, 2, 20, 21, 22])]

    def left() -> list[int]:
        return [allocator.lookup(seq, 6).tokens for seq in asked]

    assert left() == [6, 6]
    found = []
    for needed in range(7, 17):
        filler = Text("filler", [99] * 16)
        allocator.admit([filler], Ask(needed))
        found.append(left())
        allocator.free(filler)
    assert found == [[6, 6], [6, 5], [6, 4], [6, 3], [5, 3], [4, 3], [3, 3], [2, 2], [1, 1], [0, 0]]


def test_what_is_held_is_never_evicted() -> None:
    allocator = pool(16)
    first = admitted(allocator, "first", list(range(8)))
    allocator.free(admitted(allocator, "second", [*range(8), 50, 51, 52]))
    assert allocator.admit([Text("too much", [7] * 9)], Ask(9)) is None
    assert admitted(allocator, "third", [7] * 8).held == 8
    assert allocator.lookup(Text("again", [*range(8), 50]), 9) == Hit(8, 8)
    assert slots(allocator, first) == list(range(8))


def test_preempted_partly_evicted_and_resumed() -> None:
    allocator = pool(16)
    victim = admitted(allocator, "victim", list(range(15)))
    allocator.free(victim)
    other = admitted(allocator, "other", [90, 91, 92, 93, 94])
    assert allocator.lookup(victim, 14) == Hit(11, 0)
    allocator.free(other)
    assert allocator.admit([victim], Ask(15, final=15, hit=Hit(11, 0))) == 11
    assert (victim.stored, victim.held) == (11, 15)


def test_a_shared_slot_is_used_as_long_as_one_of_its_sequences_is_not_finished() -> None:
    allocator = pool()
    first, second = (admitted(allocator, name, list(range(9))) for name in ("first", "second"))
    allocator.free(first, hold=True)
    assert allocator.memory()[:2] == (9, 1)
    allocator.free(second, hold=True)
    assert allocator.memory()[:2] == (0, 10)
    third = admitted(allocator, "third", [*range(8), 50])
    assert allocator.memory()[:2] == (9, 2)
    for seq in (second, third, first):
        allocator.free(seq)
    assert (allocator.memory().cached, allocator.memory().free) == (10, 22)


def test_a_hit_on_held_tokens_needs_no_free_ones_and_a_hit_on_cached_ones_does() -> None:
    allocator = pool(16)
    first = admitted(allocator, "first", list(range(12)))
    second = Text("second", list(range(16)))
    hit = allocator.lookup(second, 15)
    assert hit == Hit(12, 12)
    assert allocator.admit([second], Ask(16, spare=1, hit=hit)) is None
    assert allocator.admit([second], Ask(16, hit=hit)) == 12
    allocator.free(first)
    allocator.free(second)
    hit = allocator.lookup(second, 15)
    assert hit.held == 0
    assert allocator.admit([second], Ask(16, spare=1, hit=hit)) is None


def test_a_hit_that_is_not_there_is_an_error_that_names_the_sequence() -> None:
    with pytest.raises(AllocatorError, match="the liar claims a prefix hit of 8 tokens; the pool holds 0"):
        pool().admit([Text("the liar", list(range(12)))], Ask(12, hit=Hit(8, 0)))


def test_whole_pages_are_found_and_kept() -> None:
    allocator = pool(page_size=4)
    allocator.free(admitted(allocator, "first", list(range(11))))
    assert (allocator.memory().cached, allocator.memory().free) == (8, 24)
    assert allocator.lookup(Text("second", [*range(7), 90, 91]), 8) == Hit(4, 0)
    assert admitted(allocator, "third", list(range(12)), stored=8).held == 12


@pytest.mark.parametrize("page_size", [0, 3, 512, 1.0, True])
def test_a_page_size_that_is_no_power_of_two_up_to_256_is_an_error(page_size: Any) -> None:
    with pytest.raises(ValueError, match="page_size must be a power of two from 1 to 256"):
        Radix(64, 64, page_size)


# ---- beside naive models ---------------------------------------------------------------------------------------------


class Trie:
    """Token by token: which contents are kept in a pool, and since when; the oldest leaf is forgotten first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used_at = capacity, dict[tuple[int, ...], int]()
        self.now = count()

    def serve(self, tokens: list[int]) -> int:
        """The hit of a sequence that comes, stores all of its tokens and goes."""
        beginnings = [tuple(tokens[:end]) for end in range(1, len(tokens) + 1)]
        hit = next((i for i, known in enumerate(beginnings[:-1]) if known not in self.used_at), len(tokens) - 1)
        new = len(tokens) - hit
        while len(self.used_at) + new > self.capacity:
            inner = {known[:-1] for known in self.used_at}
            leaves = [known for known in self.used_at if known not in inner and known not in beginnings[:hit]]
            del self.used_at[min(leaves, key=self.used_at.__getitem__)]
        now = next(self.now)
        self.used_at |= dict.fromkeys(beginnings, now)
        return hit


texts = st.lists(
    st.builds(lambda runs: [token for token, length in runs for _ in range(length)],
              st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=5)),
    min_size=1, max_size=25,
)  # fmt: skip


@settings(max_examples=cases(150), deadline=None, derandomize=True)
@given(texts, st.integers(20, 60))
def test_hits_are_those_of_a_trie_of_single_tokens(served: list[list[int]], capacity: int) -> None:
    allocator, trie = Radix(capacity, 200), Trie(capacity)
    for tokens in served:
        seq = Text("sequence", tokens)
        hit = allocator.lookup(seq, len(tokens) - 1)
        assert hit.tokens == trie.serve(tokens)
        assert allocator.admit([seq], Ask(len(tokens), hit=hit)) == hit.tokens
        allocator.commit([seq], [len(tokens) - hit.tokens])
        allocator.free(seq)
        check_tree(allocator)
    assert allocator.memory().cached == len(trie.used_at)


class SharingMachine(RuleBasedStateMachine):
    """Sequences out of few beginnings come, grow, finish and go; each must always read its own tokens."""

    page_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.allocator = pool(40, self.page_size)
        self.device = Device(self.allocator)
        self.live: list[Text] = []
        self.finished: list[Text] = []
        self.gone: list[Text] = []
        self.names = count()

    def store(self, seqs: list[Text], more: list[int]) -> None:
        starts = [seq.stored for seq in seqs]
        self.allocator.commit(seqs, more)
        self.device.start_step()
        for seq, start in zip(seqs, starts, strict=True):
            self.device.write(seq, start, seq.tokens[start : seq.stored])

    @rule(family=st.integers(0, 2), turn=st.integers(1, 14), length=st.integers(2, 18), piece=st.integers(1, 18))
    def arrive(self, family: int, turn: int, length: int, piece: int) -> None:
        """`length` tokens that leave those of their family after `turn`; `piece` of them are computed at once."""
        tokens = [100 * family + i if i < turn else 1000 + i % 2 for i in range(length)]
        self.come(Text(f"sequence {next(self.names)}", tokens), piece)

    @rule(family=st.integers(0, 2), length=st.integers(2, 9))
    def arrive_together(self, family: int, length: int) -> None:
        """Two that begin alike and are not told of each other."""
        twins = [Text(f"sequence {next(self.names)}", [100 * family + i for i in range(length)]) for _ in range(2)]
        if self.allocator.admit(twins, Ask(length, final=length, count=2)) is not None:
            self.store(twins, [length, length])
            self.live += twins

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
            self.store([seq], [tokens - hit.tokens])
            self.live.append(seq)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 30), more=st.integers(1, 6))
    def go_on(self, pick: int, more: int) -> None:
        seq = self.live[pick % len(self.live)]
        self.write_on(seq, seq.stored + more)
        if seq.stored + more <= seq.room or self.allocator.grow(seq, seq.stored + more):
            self.store([seq], [more])

    @precondition(lambda self: self.live)
    @rule(rounds=st.integers(1, 6))
    def jump(self, rounds: int) -> None:
        starts = [seq.stored for seq in self.live]
        for seq in self.live:
            self.write_on(seq, seq.stored + rounds)
        self.allocator.extend(self.live, rounds)
        self.device.start_step()
        for seq, start in zip(self.live, starts, strict=True):
            self.device.write(seq, start, seq.tokens[start : seq.stored])

    def write_on(self, seq: Text, tokens: int) -> None:
        seq.tokens += [2000 + i % 2 for i in range(len(seq.tokens), tokens)]

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

    @invariant()
    def no_slot_is_lost(self) -> None:
        books = self.allocator.memory()
        assert self.allocator.free_slots == books.free + books.cached

    @invariant()
    def what_is_kept_is_where_the_tree_says(self) -> None:
        radix = self.allocator.allocator
        check_tree(radix)
        for node in radix.tree.nodes():
            at = (node.pages[:, None] * radix.page_size + np.arange(radix.page_size)).ravel()
            assert self.device.slots[at].tolist() == node.keys[:, 1].tolist(), "a node's slots hold something else"


@pytest.mark.parametrize("page_size", [1, 4])
def test_whoever_shares_reads_its_own_tokens(page_size: int) -> None:
    effort = settings(max_examples=cases(50), stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(type("Machine", (SharingMachine,), {"page_size": page_size}), settings=effort)


@settings(max_examples=cases(150), deadline=None, derandomize=True)
@given(st.data())
def test_growing_in_bulk_is_growing_one_by_one(data: st.DataObject) -> None:
    """With a pool that runs out of free slots, then of cached ones, in the midst of a round."""
    pools = Radix(60, 60), Radix(60, 60)
    old = data.draw(st.lists(st.integers(1, 12), max_size=4), "cached")
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), min_size=1, max_size=4), "lanes")
    rounds = data.draw(st.integers(1, 20), "rounds")
    told = []
    for allocator in pools:
        for i, length in enumerate(old):
            allocator.free(admitted(allocator, f"old {i}", [i] * length))
        seqs = [Holder(f"lane {i}") for i in range(len(lengths))]
        for seq, (length, more) in zip(seqs, lengths, strict=True):
            assert allocator.admit([seq], Ask(length + more, final=60)) == 0
            allocator.commit([seq], [length])
        before = allocator.memory()
        bulk = allocator is pools[0]
        growth = allocator.extend(seqs, rounds) if bulk else super(Radix, allocator).extend(seqs, rounds)
        check_tree(allocator)
        told.append((growth.books(before, len(seqs)), allocator.memory(), allocator.tables.tolist(),
                     allocator.free_pages(), [(seq.stored, seq.room, seq.held) for seq in seqs]))  # fmt: skip
    assert told[0] == told[1]


# ---- mutations: each of these faults must show -----------------------------------------------------------------------


class KeepsEvicted(RadixTree):
    """What was evicted can still be found."""

    def evict(self, count: int) -> np.ndarray:
        before = [(node, node.keys, node.pages) for node in self.nodes()]
        pages = super().evict(count)
        for node, keys, old in before:
            assert node.parent is not None
            node.keys, node.pages = keys, old
            node.parent.children[self._first(node)] = node
        return pages


class SplitsOffByOne(RadixTree):
    """The lower part of a split node lies one slot further than it did."""

    def _split(self, node: Node, at: int) -> Node:
        upper = super()._split(node, at)
        node.pages = np.roll(node.pages, 1)
        return upper


class ForgetsHolders(RadixTree):
    """The upper part of a split node has one holder only."""

    def _split(self, node: Node, at: int) -> Node:
        upper = super()._split(node, at)
        upper.refs = min(node.refs, 1)
        return upper


class ComparesTheFirstToken(RadixTree):
    """Nodes are told apart by their first token only."""

    def _common(self, node: Node, keys: np.ndarray) -> int:
        return min(len(node.pages), len(keys) // self.page_size)


class AttachesOthers(RadixTree):
    """A new node has the slots of its tokens in another order."""

    def _attach(self, node: Node, keys: np.ndarray, pages: np.ndarray) -> Node:
        return super()._attach(node, keys, pages[::-1])


class FreesFirstCopies(RadixTree):
    """Who leaves what is there already is told to keep it: the copies are lost."""

    def insert(self, node: Node, keys: np.ndarray, pages: np.ndarray) -> int:
        super().insert(node, keys, pages)
        return 0


@pytest.mark.parametrize(
    "broken",
    [KeepsEvicted, SplitsOffByOne, ForgetsHolders, ComparesTheFirstToken, AttachesOthers, FreesFirstCopies],
)
def test_a_broken_tree_is_found_out(broken: type[RadixTree], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the checker and by what sequences read, without a look into the tree."""
    monkeypatch.setattr("allocators.radix.RadixTree", broken)
    monkeypatch.setattr("tests.allocators.test_radix.check_tree", lambda radix: None)
    machine = type("Machine", (SharingMachine,), {"what_is_kept_is_where_the_tree_says": None})
    effort = settings(max_examples=cases(60), stateful_step_count=40, deadline=None, derandomize=True, database=None,
                      phases=[Phase.generate], report_multiple_bugs=False)  # fmt: skip
    with pytest.raises((AssertionError, AllocatorError, IndexError, ValueError)):
        run_state_machine_as_test(machine, settings=effort)
