"""Virtual contiguous placement: page groups, what mapping them costs, and what is mapped already."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.base import Allocator, Ask, Holder
from allocators.checker import Checked
from allocators.paged import Paged
from allocators.virtual import Virtual
from tests.conformance.allocator import AllocatorConformance


class TestVirtual(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Virtual(capacity, max_model_len, page_tokens=8)


class TestGroupsOfNoPowerOfTwo(AllocatorConformance):
    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Virtual(capacity, max_model_len, page_tokens=6)


class TestInTheForeground(AllocatorConformance):
    extends_past_growth = False

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        return Virtual(capacity, max_model_len, page_tokens=5, background=False, deferred=False)


MAP = 40_000  # ns


def pool(pages: int = 8, page_tokens: int = 10, **keys: Any) -> Any:
    return Checked(Virtual(pages * page_tokens, 100, page_tokens, map_us=40, **keys, buffers=1))


def admitted(allocator: Any, *lengths: int) -> list[Holder]:
    seqs = [Holder(f"sequence {i} of {length}") for i, length in enumerate(lengths)]
    for seq, length in zip(seqs, lengths, strict=True):
        assert allocator.admit([seq], Ask(length, final=length)) == 0
    return seqs


@pytest.mark.parametrize(
    ("page_bytes", "token_bytes", "tokens"),
    [
        (65536, 4 * 128 * 2, 64),  # Yi-6B on one device, Llama-3-8B on two: as the paper says
        (2 << 20, 4 * 128 * 2, 2048),
        (65536, 40 * 128 * 2, 6),  # OPT-13B: 6.4
    ],
)
def test_page_groups_in_bytes_hold_whole_tokens(page_bytes: int, token_bytes: int, tokens: int) -> None:
    allocator = Virtual(10_000, 4096, page_bytes=page_bytes, token_bytes=token_bytes)
    assert allocator.page_tokens == tokens
    assert allocator.block_size & (allocator.block_size - 1) == 0, "our kernels shift by it"
    assert tokens % allocator.block_size == 0


def test_the_rest_of_a_page_group_is_rounding_and_what_is_not_held_is_free() -> None:
    allocator = pool()
    admitted(allocator, 23)
    assert allocator.memory()._replace(free=0) == (0, 0, 23, 0, 7, 0, 0, 0, 0)
    assert allocator.memory().free == 50


def test_a_prompt_waits_for_its_page_groups_and_a_decode_does_not() -> None:
    allocator = pool()
    (seq,) = admitted(allocator, 23)
    assert (allocator.take_delay(), allocator.take_delay()) == (3 * MAP, 0)
    assert allocator.grow(seq, 31) == 40
    assert allocator.take_delay() == 0


def test_in_the_foreground_a_decode_waits_too() -> None:
    allocator = pool(background=False)
    (seq,) = admitted(allocator, 23)
    allocator.take_delay()
    assert allocator.grow(seq, 31) == 40
    assert allocator.take_delay() == MAP


def test_every_buffer_is_mapped_by_a_call_of_its_own() -> None:
    """Yi-34B: 60 layers, 120 calls, about 5 ms for a step in which one sequence needs a page group."""
    allocator = Virtual(1000, 100, page_tokens=10, page_bytes=1 << 21, buffers=120)
    admitted(allocator, 10)
    assert allocator.take_delay() == pytest.approx(5e6, rel=0.05)


def test_small_page_groups_are_mapped_at_the_bandwidth_of_the_modified_driver() -> None:
    allocator = Virtual(1000, 100, page_tokens=10, page_bytes=65536, buffers=1)
    admitted(allocator, 10)
    assert 65536 / allocator.take_delay() == pytest.approx(7.6, rel=0.01)  # bytes/ns = GB/s


def test_the_next_sequence_finds_the_page_groups_of_the_last_one_mapped() -> None:
    allocator = pool()
    (seq,) = admitted(allocator, 50)
    allocator.take_delay()
    allocator.free(seq)
    assert allocator.memory().free == 80
    (after,) = admitted(allocator, 60)
    assert allocator.take_delay() == MAP
    assert after.held == 60


def test_not_so_where_they_are_unmapped_at_once() -> None:
    allocator = pool(deferred=False)
    (seq,) = admitted(allocator, 50)
    allocator.take_delay()
    allocator.free(seq)
    admitted(allocator, 60)
    assert allocator.take_delay() == 6 * MAP


def test_a_shorter_sequence_grows_into_what_is_mapped() -> None:
    allocator = pool(background=False)
    (seq,) = admitted(allocator, 50)
    allocator.free(seq)
    (after,) = admitted(allocator, 5)
    allocator.take_delay()
    for tokens in (20, 50):
        allocator.grow(after, tokens)
    assert allocator.take_delay() == 0
    allocator.grow(after, 51)
    assert allocator.take_delay() == MAP


def test_what_is_mapped_for_nobody_is_taken_when_no_other_is_free() -> None:
    allocator = pool(pages=5)
    first, second = admitted(allocator, 20, 30)
    allocator.free(first)
    assert allocator.grow(second, 50) == 50
    assert allocator.free_slots == 0
    assert allocator.admit([Holder("no more")], Ask(1)) is None


def test_a_refusal_costs_nothing() -> None:
    allocator = pool(pages=3)
    (seq,) = admitted(allocator, 25)
    allocator.take_delay()
    assert allocator.admit([Holder("too long")], Ask(10)) is None
    assert allocator.grow(seq, 31) == 0
    assert allocator.take_delay() == 0


def test_it_holds_what_paging_with_such_blocks_holds() -> None:
    """Only the mapping and the walk through the page table differ."""
    lengths = (3, 17, 40, 8, 25)
    virtual, paged = Virtual(512, 64, page_tokens=16), Paged(512, 64, block_size=16)
    for allocator in (virtual, paged):
        admitted(allocator, *lengths)
    assert virtual.memory() == paged.memory()
    assert virtual.tables.shape == paged.tables.shape


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"page_tokens": 0}, "page_tokens must be"),
        ({"page_bytes": None}, "page_bytes must be"),
        ({"page_bytes": 65536}, "needs token_bytes"),
        ({"page_bytes": 512, "token_bytes": 1024}, "holds no token"),
        ({"page_tokens": 8, "map_us": -1}, "map_us"),
        ({"page_tokens": 8, "map_us": float("nan")}, "map_us"),
        ({"page_tokens": 8, "buffers": 0}, "buffers"),
    ],
)
def test_options_that_make_no_sense_are_errors(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Virtual(1000, 100, **keys)
