"""Paged placement: blocks of a fixed size, growth on demand."""

from __future__ import annotations

import pytest

from allocators.base import Allocator, Ask, Holder
from allocators.checker import Checked
from allocators.paged import Paged
from tests.conformance.allocator import AllocatorConformance


class TestBlocksOfOne(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Paged(capacity, max_model_len, block_size=1)


class TestBlocksOf4(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Paged(capacity, max_model_len, block_size=4)


class TestBlocksOf16(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Paged(capacity, max_model_len, block_size=16)


class TestWithAHostPool(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Paged(capacity, max_model_len, block_size=4, host_slots=capacity // 2)


class TestBlocksOf256(AllocatorConformance):
    capacity = 3000
    max_model_len = 600

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Paged(capacity, max_model_len, block_size=256)


def row(allocator: Checked, seq: Holder) -> list[int]:
    blocks = seq.held // allocator.block_size
    return allocator.tables[seq.row, :blocks].tolist()


def admitted(allocator: Checked, *lengths: int, final: int = 0) -> list[Holder]:
    seqs = [Holder(f"sequence {i}") for i in range(len(lengths))]
    for seq, length in zip(seqs, lengths, strict=True):
        assert allocator.admit([seq], Ask(length, final=final or length)) == 0
        allocator.commit([seq], [length])
    return seqs


def test_blocks_are_first_handed_out_in_ascending_order() -> None:
    allocator = Checked(Paged(32, 32, block_size=4))
    first, second = admitted(allocator, 9, 4)
    assert (row(allocator, first), row(allocator, second)) == ([0, 1, 2], [3])


def test_the_last_block_of_a_freed_sequence_is_the_first_to_be_reused() -> None:
    """vLLM: P = 9, block size 4, no caching: the free list is then 3, 2, 1, 4, 5, ... (its block 0 is a null block)."""
    allocator = Checked(Paged(32, 32, block_size=4))
    (seq,) = admitted(allocator, 9)
    allocator.free(seq)
    (whole,) = admitted(allocator, 32)
    assert [block + 1 for block in row(allocator, whole)] == [3, 2, 1, 4, 5, 6, 7, 8]


def test_17_tokens_in_blocks_of_16_hold_32_slots_and_use_17() -> None:
    """A gauge of used blocks says 32 and hides the last 15."""
    allocator = Checked(Paged(64, 64))
    (seq,) = admitted(allocator, 17)
    books = allocator.memory()
    assert (seq.held, books.used, books.reserved, books.rounding) == (32, 17, 0, 15)


def test_the_tail_that_will_be_reached_is_reserved() -> None:
    """The same 17 tokens of a sequence that ends with 20: 3 more will be used, 12 never."""
    allocator = Checked(Paged(64, 64))
    admitted(allocator, 17, final=20)
    books = allocator.memory()
    assert (books.used, books.reserved, books.over_reserved, books.rounding) == (17, 3, 0, 12)


def test_a_sequence_grows_by_a_block_at_a_time() -> None:
    allocator = Checked(Paged(64, 64, block_size=16))
    (seq,) = admitted(allocator, 16)
    assert allocator.grow(seq, 17) == 32
    assert row(allocator, seq) == [0, 1]


def test_a_full_pool_refuses_to_grow() -> None:
    allocator = Checked(Paged(64, 64, block_size=16))
    seq, _ = admitted(allocator, 16, 48)
    assert allocator.grow(seq, 17) == 0


def test_three_blocks_asked_with_two_free_take_none() -> None:
    allocator = Checked(Paged(20, 20, block_size=4))
    admitted(allocator, 12)
    assert allocator.admit([Holder("too long")], Ask(9)) is None
    assert allocator.free_slots == 8


def test_slots_behind_the_last_whole_block_are_free_but_never_handed_out() -> None:
    allocator = Checked(Paged(35, 64, block_size=16))
    assert allocator.footprint(33) is None
    admitted(allocator, 32)
    assert (allocator.free_slots, allocator.memory().free) == (0, 3)


@pytest.mark.parametrize("block_size", [0, -1, 3, 24, 520, 16.0, True, None])
def test_a_block_size_that_is_neither_a_power_of_two_nor_of_sixteens_is_an_error(block_size: int) -> None:
    with pytest.raises(ValueError, match="power of two from 1 to 512"):
        Paged(64, 64, block_size=block_size)


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 528])
def test_waste_is_less_than_a_block(block_size: int) -> None:
    allocator = Paged(4096, 1024, block_size=block_size)
    assert max((allocator.footprint(tokens) or 0) - tokens for tokens in range(1, 1025)) == block_size - 1
