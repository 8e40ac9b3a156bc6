"""Contiguous placement: every sequence is one extent, taken whole at admission. Three ways to find it."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Literal

from allocators.base import Allocator, Holder


class Contiguous(Allocator):
    """One extent per sequence: what servers did before paging.

    Args:
        fit: `slab` cuts the pool into lanes of `lane_slots`, so any free lane will do; `first_fit` takes the lowest hole
            that is large enough; `best_fit` the smallest one.
        lane_slots: length of a slab lane; default `max_model_len`.
    """

    def __init__(self, capacity: int, max_model_len: int, fit: Literal["slab", "first_fit", "best_fit"] = "slab",
                 lane_slots: int | None = None) -> None:  # fmt: skip
        if fit not in ("slab", "first_fit", "best_fit"):
            raise ValueError(f"fit must be slab, first_fit or best_fit, got {fit!r}")
        super().__init__(capacity, max_model_len)
        self.fit = fit
        self.lane_slots = max_model_len if lane_slots is None else lane_slots
        self._extents: dict[int, tuple[int, int]] = {}  # by row: (start, slots)
        if fit == "slab":
            if not isinstance(self.lane_slots, int) or self.lane_slots <= 0:
                raise ValueError(f"lane_slots must be a positive whole number, got {lane_slots!r}")
            lanes = capacity // self.lane_slots
            self._free_lanes = [lane * self.lane_slots for lane in range(lanes - 1, -1, -1)]
        else:
            self._holes = Holes(capacity)

    def footprint(self, tokens: int) -> int | None:
        if self.fit == "slab":
            return self.lane_slots if tokens <= self.lane_slots <= self.capacity else None
        return tokens if tokens <= self.capacity else None

    def place(self, holder: Holder, tokens: int) -> int | None:
        if self.fit == "slab":
            if not self._free_lanes or tokens > self.lane_slots:
                return None
            start, slots = self._free_lanes.pop(), self.lane_slots
        else:
            found = self._holes.take(tokens, smallest=self.fit == "best_fit")
            if found is None:
                return None
            start, slots = found, tokens
        self._extents[holder.row] = start, slots
        self.set_row(holder, 0, start)
        return slots

    def release(self, holder: Holder) -> None:
        start, slots = self._extents.pop(holder.row)
        if self.fit == "slab":
            self._free_lanes.append(start)
        else:
            self._holes.give(start, slots)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        return [self._extents[holder.row]]


class Holes:
    """The free runs of a pool, neighbours always joined, searchable by address and by length."""

    def __init__(self, capacity: int) -> None:
        self._starts = [0]  # ascending
        self._length = {0: capacity}
        self._by_length = [(capacity, 0)]  # ascending: (slots, start)

    def take(self, slots: int, smallest: bool) -> int | None:
        """Cut `slots` from the front of the smallest or the lowest hole that is large enough; its start, or None."""
        at = bisect_left(self._by_length, (slots, -1))
        if at == len(self._by_length):
            return None
        if smallest:
            start = self._by_length[at][1]
        else:
            start = min(start for _, start in self._by_length[at:])
        length = self._length[start]
        self._remove(start)
        if length > slots:
            self._add(start + slots, length - slots)
        return start

    def give(self, start: int, slots: int) -> None:
        """Return a run and join it with the holes on both sides."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + slots:
            slots += self._remove(start + slots)
        if at and self._starts[at - 1] + self._length[self._starts[at - 1]] == start:
            before = self._starts[at - 1]
            slots += self._remove(before)
            start = before
        self._add(start, slots)

    def _add(self, start: int, slots: int) -> None:
        insort(self._starts, start)
        self._length[start] = slots
        insort(self._by_length, (slots, start))

    def _remove(self, start: int) -> int:
        slots = self._length.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        del self._by_length[bisect_left(self._by_length, (slots, start))]
        return slots
