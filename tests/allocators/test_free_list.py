"""The block pool: vLLM's order of the free list, eviction, sharing; beside a model that keeps one plain list."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from allocators.block_pool import BlockPool
from tests.conformance.effort import cases


def held(pool: BlockPool, contents: str) -> list[int]:
    """Blocks with these contents, one letter each; a dot is a block without."""
    blocks = pool.allocate(len(contents)) or []
    for block, content in zip(blocks, contents, strict=True):
        if content != ".":
            pool.register([block], [content])
    return blocks


def test_without_content_the_last_block_of_a_sequence_is_the_next_to_be_used() -> None:
    """vLLM: 9 tokens in blocks of 4, no caching: the list is 3, 2, 1, 4, 5 in its ids, which start at 1."""
    pool = BlockPool(5)
    pool.free(held(pool, "..."))
    assert pool.free_list() == [2, 1, 0, 3, 4]


def test_blocks_with_content_go_to_the_back_last_one_first() -> None:
    """The same with caching: 3, 4, 5, 6, 7, 2, 1."""
    pool = BlockPool(7)
    pool.free(held(pool, "ab."))
    assert pool.free_list() == [2, 3, 4, 5, 6, 1, 0]


def test_older_versions_put_every_freed_block_at_the_back() -> None:
    pool = BlockPool(5, freed_to_back=True)
    pool.free(held(pool, "..."))
    assert pool.free_list() == [3, 4, 2, 1, 0]
    pool.free(held(pool, "a.b"))
    assert pool.free_list() == [1, 0, 2, 4, 3]
    assert (pool.num_cached, pool.cached()) == (2, [2, 3])


def test_contents_are_evicted_when_their_blocks_are_handed_out_and_only_then() -> None:
    pool = BlockPool(3)
    pool.free(held(pool, "abc"))
    assert (pool.num_free, pool.num_cached) == (3, 3)
    assert pool.allocate(1) == [2]
    assert set(pool.first) == {"a", "b"}


def test_a_hit_takes_a_free_block_out_of_the_middle() -> None:
    pool = BlockPool(3)
    pool.free(held(pool, "abc"))
    pool.touch([1])
    assert pool.free_list() == [2, 0]
    assert not pool.shared
    pool.free([1])
    assert pool.free_list() == [2, 0, 1]


def test_a_shared_block_is_free_when_its_last_holder_is_gone() -> None:
    pool = BlockPool(3)
    blocks = held(pool, "a")
    pool.touch(blocks)
    pool.touch(blocks)
    for left in (2, 1, 0):
        assert pool.shared.get(0, 0) == left
        assert pool.count_free([0]) == 0
        pool.free(blocks)
    assert pool.count_free([0]) == 1


def test_of_several_blocks_with_one_content_the_oldest_is_found() -> None:
    pool = BlockPool(3)
    blocks = held(pool, "aaa")
    assert pool.first == {"a": 0}
    pool.free([blocks[0]])
    assert pool.allocate(1) == [0]
    assert pool.first == {"a": 1}
    pool.free([2])
    assert pool.allocate(1) == [2]
    assert pool.first == {"a": 1}
    pool.free([1])
    assert pool.allocate(1) == [1]
    assert pool.first == {}


def test_more_blocks_than_there_are_free_leave_everything_as_it_was() -> None:
    pool = BlockPool(4)
    pool.free(held(pool, "ab"))
    assert pool.allocate(5) is None
    assert (pool.free_list(), pool.cached()) == ([2, 3, 1, 0], [1, 0])


def test_no_block_is_a_request_too() -> None:
    pool = BlockPool(4)
    assert pool.allocate(0) == []
    assert pool.num_free == 4


class Machine(RuleBasedStateMachine):
    """Any calls, beside one plain list walked block by block as the engine does."""

    to_back = False

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, self.to_back)
        self.free = list(range(12))
        self.content: dict[int, str] = {}  # oldest first
        self.holders: list[list[int]] = []

    @rule(count=st.integers(1, 13))
    def allocate(self, count: int) -> None:
        blocks = self.pool.allocate(count)
        if count > len(self.free):
            assert blocks is None
            return
        expected, self.free = self.free[:count], self.free[count:]
        for block in expected:
            self.content.pop(block, None)
        assert blocks == expected
        self.holders.append(expected)

    @precondition(lambda self: self.holders)
    @rule(pick=st.integers(0, 20), content=st.sampled_from("abc"))
    def register(self, pick: int, content: str) -> None:
        holder = self.holders[pick % len(self.holders)]
        blank = [block for block in holder if block not in self.content]
        if blank:
            self.pool.register(blank[:1], [content])
            self.content[blank[0]] = content

    @precondition(lambda self: self.content)
    @rule(pick=st.integers(0, 20))
    def hit(self, pick: int) -> None:
        content = list(self.content.values())[pick % len(self.content)]
        block = self.pool.first[content]
        self.pool.touch([block])
        if block in self.free:
            self.free.remove(block)
        self.holders.append([block])

    @precondition(lambda self: self.holders)
    @rule(pick=st.integers(0, 20))
    def give_back(self, pick: int) -> None:
        holder = self.holders.pop(pick % len(self.holders))
        self.pool.free(holder)
        still = {block for other in self.holders for block in other}
        gone = [block for block in reversed(holder) if block not in still]
        blank = [block for block in gone if block not in self.content and not self.to_back]
        self.free = blank + self.free + [block for block in gone if block not in blank]

    @invariant()
    def agrees(self) -> None:
        assert self.pool.free_list() == self.free
        assert self.pool.num_free == len(self.free)
        assert self.pool.cached() == [block for block in self.free if block in self.content]
        assert self.pool.num_cached == len(self.pool.cached())
        oldest: dict[str, int] = {}
        for block, content in self.content.items():
            oldest.setdefault(content, block)
        assert self.pool.first == oldest
        holders = [block for holder in self.holders for block in holder]
        assert self.pool.shared == {block: holders.count(block) - 1 for block in holders if holders.count(block) > 1}


def test_any_calls_agree_with_a_plain_list() -> None:
    effort = settings(max_examples=cases(100), stateful_step_count=50, deadline=None, derandomize=True)
    run_state_machine_as_test(Machine, settings=effort)
    run_state_machine_as_test(type("ToBack", (Machine,), {"to_back": True}), settings=effort)
