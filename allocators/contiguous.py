"""Contiguous placement: every sequence is one extent, taken whole at admission. Three ways to find it."""

from __future__ import annotations

from typing import Literal

from allocators.base import Allocator, Holder
from allocators.holes import BestFit, FirstFit


class Contiguous(Allocator):
    """One extent per sequence: what servers did before paging.

    Args:
        fit: `slab` cuts the pool into lanes of `lane_slots`, so any free lane will do; `first_fit` takes the lowest
            hole that is large enough; `best_fit` the smallest one.
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
            self._holes = BestFit(capacity) if fit == "best_fit" else FirstFit(capacity)

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
            found = self._holes.take(tokens)
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
