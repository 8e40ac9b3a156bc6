"""The checker finds every kind of broken allocator: one mutation each of an allocator that is sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from allocators.base import Allocator, Ask, Books, Holder
from allocators.checker import Checked, ContractError
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from tests.conformance.allocator import AllocatorConformance


class Blocks(Paged):
    def __init__(self, capacity: int = 64, max_model_len: int = 64) -> None:
        super().__init__(capacity, max_model_len, block_size=4)


class Extents(Contiguous):
    def __init__(self, capacity: int = 64, max_model_len: int = 64) -> None:
        super().__init__(capacity, max_model_len, fit="first_fit")


class OverlappingExtents(Extents):
    def release(self, holder: Holder) -> None:
        start, slots = self._extents.pop(holder.row)
        self._holes.free(start, slots + 1)  # one slot too many


class OverlappingBlocks(Blocks):
    def release(self, holder: Holder) -> None:
        blocks = self._blocks.pop(holder.row)
        self.pool.free([*blocks, blocks[0]])


class WrongEntry(Blocks):
    def set_row(self, holder: Holder, first: int, entries: Sequence[int] | int) -> None:
        super().set_row(holder, first, entries)
        self.tables[holder.row, 0] += 1


class StaleRow(Blocks):
    """A row is only written when it is new, so the next sequence in it reads the last one's blocks."""

    def set_row(self, holder: Holder, first: int, entries: Sequence[int] | int) -> None:
        if self.tables[holder.row, first] < 0:
            super().set_row(holder, first, entries)


class SmallFootprint(Blocks):
    def footprint(self, tokens: int) -> int | None:
        return tokens


class LargeFootprint(Blocks):
    def footprint(self, tokens: int) -> int | None:
        return 64 if tokens <= 64 else None


class EmptyPromise(Extents):
    """It says what tokens take in an empty pool, and refuses them there."""

    def place(self, holder: Holder, tokens: int) -> int | None:
        return None


class LeakingAdmit(Blocks):
    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        hit = super().admit(seqs, ask)
        if hit is None:
            self.pool.allocate(1)
        return hit


class LeakingGrow(Blocks):
    def widen(self, holder: Holder, tokens: int) -> int:
        added = super().widen(holder, tokens)
        if not added:
            self._blocks[holder.row] += self.pool.allocate(1) or []
        return added


class ShortRoom(Blocks):
    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        hit = super().admit(seqs, ask)
        seqs[0].room -= 4
        return hit


class CountingFork(Blocks):
    """What a child shares with its parent is counted twice."""

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        done = super().fork(parent, child, common)
        self._used += child.stored
        return done


class NoCopyOnWrite(Blocks):
    """A child writes into the last block that it shares with its parent."""

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        done = super().fork(parent, child, common)
        child.room += -child.room % self.block_size
        return done


class KeepingFree(Blocks):
    def free(self, holder: Holder, hold: bool = False) -> None:
        self._leave(holder)


class HalfCommit(Blocks):
    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        super().commit(seqs, [count // 2 for count in counts])


class OutsideThePool(Extents):
    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        return [(start + 60, slots) for start, slots in super().spans(holder)]


def work(allocator: Allocator) -> None:
    """A little of everything, checked."""
    checked = Checked(allocator)
    first, second, third, child = (Holder(name) for name in ("first", "second", "third", "child"))
    checked.admit([first], Ask(5, final=7))
    checked.commit([first], [5])
    checked.admit([second], Ask(12, final=12))
    checked.commit([second], [12])
    checked.free(first)
    checked.admit([third], Ask(6, final=20))
    checked.commit([third], [6])
    checked.fork(third, child)
    checked.grow(third, 12)
    checked.admit([Holder("refused")], Ask(60))
    checked.grow(second, 64)
    for seq in (second, third, child):
        checked.free(seq)


@pytest.mark.parametrize("make", [Blocks, Extents])
def test_a_sound_allocator_passes(make: Callable[[], Allocator]) -> None:
    work(make())


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (OverlappingExtents, "two owners"),
        (OverlappingBlocks, "two owners"),
        (WrongEntry, "not where it lies"),
        (StaleRow, "not where it lies"),
        (SmallFootprint, "not its 5"),
        (LargeFootprint, "not its 64"),
        (EmptyPromise, "an empty pool refused first"),
        (LeakingAdmit, "a refused admit changed something"),
        (LeakingGrow, "a refused grow changed something"),
        (ShortRoom, "admitted with room for 4 of 5 tokens"),
        (CountingFork, "slots are used; counted one by one"),
        (NoCopyOnWrite, "has room 8 in 6 slots"),
        (KeepingFree, "free left slots with first"),
        (HalfCommit, "commit left first with 2 stored tokens"),
        (OutsideThePool, "outside the pool"),
    ],
)
def test_a_broken_allocator_is_found_out(broken: Callable[[], Allocator], complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        work(broken())


@pytest.mark.parametrize("column", ["_used", "_reserved", "_over", "_rounding", "_finished"])
def test_a_column_of_the_books_that_is_off_by_one_is_found_out(column: str) -> None:
    allocator = Blocks()
    checked = Checked(allocator)
    checked.admit([Holder("sequence")], Ask(5, final=7))
    setattr(allocator, column, getattr(allocator, column) + 1)
    with pytest.raises(ContractError, match="counted one by one"):
        checked.memory()


def test_a_slot_missing_from_the_free_column_is_found_out() -> None:
    class Forgetful(Blocks):
        def memory(self, blocked: Ask | None = None) -> Books:
            books = super().memory(blocked)
            return books._replace(free=books.free - 1)

    with pytest.raises(ContractError, match="the books sum to 63 slots, the pool has 64"):
        Checked(Forgetful()).memory()


class SilentRow(Blocks):
    def set_row(self, holder: Holder, first: int, entries: Sequence[int] | int) -> None:
        super().set_row(holder, first, entries)
        self._dirty.clear()


class LostHole(Extents):
    """The end of an extent is not given back; the ledger does not know of it."""

    def release(self, holder: Holder) -> None:
        start, slots = self._extents.pop(holder.row)
        self._holes.free(start, max(slots - 1, 1))


class ReorderingRefusal(Extents):
    def grow(self, holder: Holder, tokens: int) -> int:
        room = super().grow(holder, tokens)
        if not room:
            self._free_rows.reverse()
        return room


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (SilentRow, "test_more_sequences_than_the_tables_had_rows"),
        (LostHole, "test_after_freeing_everything_as_much_fits_as_at_the_start"),
        (ReorderingRefusal, "test_a_refusal_leaves_no_trace"),
    ],
)
def test_what_no_single_call_shows_is_found_by_the_suite(broken: Callable[[int, int], Allocator], test: str) -> None:
    suite = AllocatorConformance()
    suite.make = broken  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        getattr(suite, test)(*([0] if "rows" not in test else []))


class KeepsABlock(Blocks):
    def release(self, holder: Holder) -> None:
        super().release(holder)
        self.pool.allocate(1)


def test_a_leak_is_told_as_soon_as_nobody_holds_anything() -> None:
    checked = Checked(KeepsABlock())
    one, other = Holder("one"), Holder("other")
    for holder in (one, other):
        assert checked.admit([holder], Ask(5)) == 0
    checked.free(one)
    with pytest.raises(ContractError, match="nobody holds anything, and 56 slots are free; at first it were 64"):
        checked.free(other)
