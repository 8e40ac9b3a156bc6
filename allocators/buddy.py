"""Buddy placement: power-of-two chunks, as the PagedAttention paper assumes for Orca (its section 6.1)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from allocators.base import Allocator, Growth, Holder


class Buddy(Allocator):
    """Every sequence is one chunk of a power of two slots; freed chunks join their free buddies at once.

    The pool need not be a power of two: it starts as the largest aligned chunks that tile it (15,728 = 8192 + 4096 +
    2048 + 1024 + 256 + 64 + 32 + 16), and no chunk ever grows past those. The lowest free chunk of the smallest
    sufficient size is split.
    """

    def __init__(self, capacity: int, max_model_len: int) -> None:
        super().__init__(capacity, max_model_len)
        self._free: list[list[int]] = [[] for _ in range(capacity.bit_length())]  # by order: ascending starts
        self._chunks: dict[int, tuple[int, int]] = {}  # by row: (start, order)
        start = 0
        for order in range(capacity.bit_length() - 1, -1, -1):
            if capacity >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    def footprint(self, tokens: int) -> int | None:
        slots = 1 << (tokens - 1).bit_length()
        return slots if slots <= self.capacity else None

    def describe_footprint(self, tokens: int) -> str:
        return f"a chunk of {1 << (tokens - 1).bit_length()} slots"

    def place(self, holder: Holder, tokens: int) -> int | None:
        wanted = (tokens - 1).bit_length()
        for order in range(wanted, len(self._free)):
            if self._free[order]:
                break
        else:
            return None
        start = self._free[order].pop(0)
        while order > wanted:
            order -= 1
            insort(self._free[order], start + (1 << order))
        self._chunks[holder.row] = start, order
        self.set_row(holder, 0, start)
        return 1 << order

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """A chunk never grows, so there is nothing but the ledger to keep."""
        return super().extend(seqs, rounds)

    def release(self, holder: Holder) -> None:
        start, order = self._chunks.pop(holder.row)
        while True:
            chunks, buddy = self._free[order], start ^ 1 << order
            at = bisect_left(chunks, buddy)
            if at == len(chunks) or chunks[at] != buddy:
                chunks.insert(bisect_left(chunks, start), start)
                return
            del chunks[at]
            start, order = min(start, buddy), order + 1

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        start, order = self._chunks[holder.row]
        return [(start, 1 << order)]
