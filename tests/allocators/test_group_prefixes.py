"""Prefix caching over groups of layers in `Jenga` and `DualPool`: the longest prefix that every group still has."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import pytest

from allocators.base import Allocator, AllocatorError, Ask, Hit, Holder
from allocators.checker import Checked
from allocators.dual_pool import DualPool
from allocators.jenga import Jenga
from allocators.layout import KVLayout
from tests.allocators.test_group_pages import CHUNK, STATES, WINDOW
from tests.allocators.test_prefix_caching import Text
from tests.conformance.allocator import AllocatorConformance, Device, places

Make = Callable[..., Allocator]
SIZE = 4


def jenga(capacity: int, max_model_len: int, layout: KVLayout = WINDOW) -> Allocator:
    return Jenga(capacity, max_model_len, layout, SIZE, enable_prefix_caching=True)


def dual_pool(capacity: int, max_model_len: int, layout: KVLayout = WINDOW) -> Allocator:
    return DualPool(capacity, max_model_len, layout, SIZE, enable_prefix_caching=True)


@pytest.mark.slow
class TestUnknownContents(AllocatorConformance):
    """With caching on, sequences that say nothing of their contents are served as without."""

    capacity, max_model_len = 3000, 48

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return jenga(max(capacity, 120), max_model_len)


@pytest.fixture(params=[jenga, dual_pool])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def stored(allocator: Checked, name: str, tokens: list[int]) -> Text:
    """A sequence that was admitted with whatever hit there is, and stored."""
    seq = Text(name, tokens)
    hit = allocator.lookup(seq, len(tokens) - 1)
    assert allocator.admit([seq], Ask(len(tokens), final=len(tokens), hit=hit)) == hit.tokens
    allocator.commit([seq], [len(tokens) - seq.stored])
    return seq


def test_what_lies_behind_a_window_is_not_needed_for_a_hit(make: Make) -> None:
    """Of 24 tokens a window of ten still has those from 12 on, 24 - 10 + 1 rounded down to a page."""
    allocator = Checked(make(4000, 48))
    first = stored(allocator, "first", list(range(24)))
    allocator.free_unread(first)
    hit = allocator.lookup(Text("second", list(range(30))), 29)
    assert hit.tokens == 24
    assert [table.count(-1) for table in hit.found.tables] == [15 // SIZE, 0]
    assert hit.held == 3 * 6 * SIZE + 6 * 4 * SIZE
    second = stored(allocator, "second", list(range(30)))
    assert allocator.saved_slots == hit.held
    assert second.held == hit.held + 2 * SIZE * 10
    assert allocator.spans(second)[:3] == allocator.spans(first)[:3]


def test_a_prefix_that_one_group_lost_is_no_hit() -> None:
    """What its windows had is evicted for windows of others, though the full layers still have it all."""
    allocator = Checked(DualPool(1200, 48, WINDOW, SIZE, window_ratio=0.5, enable_prefix_caching=True))
    allocator.free(stored(allocator, "first", list(range(24))))
    again = Text("again", list(range(30)))
    assert allocator.lookup(again, 29).tokens == 24
    for number in range(3):
        seq = stored(allocator, f"other {number}", list(range(100 * number + 100, 100 * number + 124)))
        allocator.free(seq)
    windows, full = allocator.contents._pages
    assert all(content in full for content in again.block_hashes(SIZE, 6))
    assert not all(content in windows for content in again.block_hashes(SIZE, 6)[-3:])
    assert allocator.lookup(again, 29).tokens < 24


def test_a_chunk_is_needed_from_its_beginning_only(make: Make) -> None:
    allocator = Checked(make(2000, 48, CHUNK))
    seq = stored(allocator, "first", list(range(32)))
    allocator.free_unread(seq)
    hit = allocator.lookup(Text("second", list(range(32))), 28)
    assert (hit.tokens, hit.found.tables[0].count(-1)) == (28, 24 // SIZE)


def test_a_claimed_hit_must_be_there(make: Make) -> None:
    with pytest.raises(AllocatorError, match="claims a prefix hit of 4 tokens; the pool holds 0"):
        make(2400, 48).admit([Holder("liar")], Ask(8, hit=Hit(4)))


def test_states_are_not_kept_for_reuse_and_it_says_so(make: Make) -> None:
    with pytest.raises(ValueError, match="recurrent layers are not kept for reuse here; use vllm_hybrid, or"):
        make(2400, 48, STATES)


def test_large_pages_of_others_that_rest_are_evicted_whole() -> None:
    """Twelve large pages; what one sequence leaves in the four of its windows goes to the full layers of another."""
    allocator = Checked(jenga(12 * 48, 200))
    allocator.free(stored(allocator, "first", list(range(40))))
    assert allocator.free_slots == 12 * 48
    assert allocator.cached_slots == 10 * (24 + 16)
    seq = stored(allocator, "second", list(range(100, 148)))
    assert seq.held == 12 * (24 + 16)
    assert allocator.lookup(Text("again", list(range(40))), 39).tokens == 0


def naive_hit(allocator: Checked, seq: Text, most: int) -> int:
    """The longest beginning of whole pages of which each group has every page that the next token's layers read."""
    contents, found = seq.block_hashes(SIZE, most // SIZE), allocator.contents._pages
    for pages in range(len(contents), 0, -1):
        read = [contents[kept.behind(pages * SIZE) // SIZE : pages] for kept in allocator.kept]
        if all(found[group].keys() >= set(each) for group, each in enumerate(read)):
            return pages * SIZE
    return 0


@pytest.mark.parametrize("layout", [WINDOW, CHUNK], ids=["window", "chunk"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_any_workload_of_sequences_that_begin_alike(make: Make, layout: KVLayout, seed: int) -> None:
    """Steps of a small server: the checker sees to the books and to what is read; a naive model knows what may be hit.

    Everybody reads in every group what the tokens are, also where they were computed by others long gone.
    """
    draw, names, hits = random.Random(seed), count(), 0
    allocator = Checked(make(1300 if layout is WINDOW else 420, 60, layout))
    device, live = Device(allocator), dict[Text, int]()
    prompts = [[1000 * number + at for at in range(60)] for number in range(3)]
    for _ in range(60):
        prompt = draw.choice(prompts)[: draw.randint(1, 40)]
        new = Text(f"{next(names)}", [*prompt, *[10_000 + next(names) * 100 + at for at in range(draw.randint(1, 20))]])
        hit = allocator.lookup(new, len(prompt) - 1)
        assert hit.tokens == naive_hit(allocator, new, len(prompt) - 1)
        before = allocator.memory(), allocator.free_slots, allocator.cached_spans(), places(allocator, list(live))
        if allocator.admit([new], Ask(len(prompt), final=len(new.tokens), hit=hit)) is None:
            assert before == (allocator.memory(), allocator.free_slots, allocator.cached_spans(),
                              places(allocator, list(live)))  # fmt: skip
        else:
            live[new] = hit.tokens
            hits += hit.tokens
            allocator.commit([new], [len(prompt) - new.stored])
        for seq in list(live):
            if seq is not new and seq.stored < len(seq.tokens):
                if seq.stored + 1 > seq.room and not allocator.grow(seq, seq.stored + 1):
                    allocator.free(seq)
                    del live[seq]
                    continue
                allocator.commit([seq], [1])
        device.start_step()
        for seq, written in live.items():
            device.write(seq, written, seq.tokens[written : seq.stored])
            live[seq] = seq.stored
        for seq in list(live):
            assert device.reads(seq, seq.tokens[: seq.stored]), seq.name
            if seq.stored == len(seq.tokens):
                allocator.free(seq)
                del live[seq]
    for seq in live:
        allocator.free(seq)
    books = allocator.memory()
    assert hits > 100
    assert books.free + books.cached == allocator.capacity
    assert books.cached > 0
