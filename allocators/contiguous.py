"""Contiguous placement: every sequence is one extent. Three ways to find it, and two to live with holes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from allocators.base import Allocator, Growth, Holder, Move
from allocators.compaction import Extent, plan
from allocators.holes import BestFit, FirstFit


class Contiguous(Allocator):
    """One extent per sequence: what servers did before paging.

    Whatever is moved is queued as moves that run in order before the step's attention. A move may overlap itself; then
    all of it is read before any is written, as `kernels` do. Only tokens that are in the pool by then are copied: not
    those committed since the last `take_moves`, which the step itself will write, at the new place.

    Args:
        fit: `slab` cuts the pool into lanes of `lane_slots`, so any free lane will do; `first_fit` takes the lowest
            hole that is large enough; `best_fit` the smallest one.
        lane_slots: length of a slab lane; default `max_model_len`.
        compaction: `on_refusal` slides extents together when enough slots are free but no hole is long enough, as few
            tokens as `allocators.compaction` finds; `never` refuses then. Not for `slab`, which has no such holes.
        growth: slots by which a sequence that outgrew its extent is lengthened, in place where the hole behind it is
            long enough for its next token, else by moving it (as `realloc` does); fewer where only fewer fit. 0 = an
            extent never grows. Not for `slab`.
    """

    def __init__(self, capacity: int, max_model_len: int, fit: Literal["slab", "first_fit", "best_fit"] = "slab",
                 lane_slots: int | None = None, compaction: Literal["never", "on_refusal"] = "never",
                 growth: int = 0) -> None:  # fmt: skip
        if fit not in ("slab", "first_fit", "best_fit"):
            raise ValueError(f"fit must be slab, first_fit or best_fit, got {fit!r}")
        if compaction not in ("never", "on_refusal"):
            raise ValueError(f"compaction must be never or on_refusal, got {compaction!r}")
        if type(growth) is not int or growth < 0:
            raise ValueError(f"growth must be a whole number of slots, 0 or more, got {growth!r}")
        if fit == "slab" and (growth or compaction != "never"):
            raise ValueError("lanes of a slab are neither moved nor lengthened: compaction and growth need first_fit "
                             "or best_fit")  # fmt: skip
        super().__init__(capacity, max_model_len)
        self.fit = fit
        self.lane_slots = max_model_len if lane_slots is None else lane_slots
        self.compaction = compaction
        self.growth = growth
        self.grows = growth > 0
        self._moving = self.grows or compaction != "never"
        self._unwritten: dict[int, int] = {}  # by row: tokens that the coming step will write
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

    def describe_footprint(self, tokens: int) -> str:
        if self.fit != "slab":
            return super().describe_footprint(tokens)
        return f"{'a' if tokens <= self.lane_slots else 'more than a'} lane of {self.lane_slots} slots"

    def place(self, holder: Holder, tokens: int) -> int | None:
        if self.fit == "slab":
            if not self._free_lanes or tokens > self.lane_slots:
                return None
            start, slots = self._free_lanes.pop(), self.lane_slots
        else:
            found = self._holes.allocate(tokens)
            if found is None and self.compaction == "on_refusal":
                found = self._slide(sorted(self._extents, key=self._extents.__getitem__), 0, self.capacity, tokens)
            if found is None:
                return None
            start, slots = found, tokens
        self._extents[holder.row] = start, slots
        self.set_row(holder, 0, start)
        return slots

    def widen(self, holder: Holder, tokens: int) -> int:
        """In place, else to where `growth` more slots fit, else to where fewer do, else by sliding others away."""
        if not self.growth:
            return 0
        order = sorted(self._extents, key=self._extents.__getitem__)
        me, (start, slots) = order.index(holder.row), self._extents[holder.row]
        low = sum(self._extents[order[me - 1]]) if me else 0
        high = self._extents[order[me + 1]][0] if me + 1 < len(order) else self.capacity
        generous, behind = min(max(tokens, slots + self.growth), self.max_model_len), high - start - slots
        if behind >= tokens - slots:
            wanted = min(generous, slots + behind)
            self._holes.cut(start + slots, wanted - slots)
            return self._lengthen(holder, wanted)
        for wanted in (generous, max(tokens, min(generous, high - low)), tokens):
            if self._slide([holder.row], low, high, wanted - slots, 0) is not None or self._elsewhere(holder, wanted):
                return self._lengthen(holder, wanted)
        for wanted in (generous, tokens) if self.compaction == "on_refusal" else ():
            if self._slide(order, 0, self.capacity, wanted - slots, me) is not None:
                return self._lengthen(holder, wanted)
        return 0

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """Ends before the first step in which somebody outgrows its extent, too: moves belong to a step of their own.

        Its steps are computed by the time anything is moved, so their tokens are copied.
        """
        if self.growth:
            rounds = min([rounds, *(seq.room - seq.stored for seq in seqs)])
        growth = super().extend(seqs, rounds)
        self._unwritten.clear()
        return growth

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        super().commit(seqs, counts)
        if self._moving:
            unwritten = self._unwritten
            for holder, count in zip(seqs, counts, strict=True):
                unwritten[holder.row] = unwritten.get(holder.row, 0) + count

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        done = super().fork(parent, child, common)
        if done and self._moving:
            self._unwritten[child.row] = self._unwritten.get(parent.row, 0)
        return done

    def take_moves(self) -> list[Move]:
        self._unwritten.clear()
        return super().take_moves()

    def release(self, holder: Holder) -> None:
        start, slots = self._extents.pop(holder.row)
        self._unwritten.pop(holder.row, None)
        if self.fit == "slab":
            self._free_lanes.append(start)
        else:
            self._holes.free(start, slots)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        return [self._extents[holder.row]]

    def _slide(self, rows: list[int], low: int, high: int, wanted: int, behind: int | None = None) -> int | None:
        """Have `wanted` free slots side by side in [low, high), cut from a hole; where they start, None if too few.

        Args:
            rows: of the extents there, by start.
            behind: which of them the slots must follow; None = any.
        """
        extents = [Extent(*self._extents[row], self._written(self._holders[row])) for row in rows]
        found = plan(extents, low, high, wanted, behind)
        if found is None:
            return None
        for start, slots in found.filled:
            self._holes.cut(start, slots)
        for i, target in found.slides:
            self._move(self._holders[rows[i]], target)
        start, slots = found.hole
        if slots > wanted:
            self._holes.free(start + wanted, slots - wanted)
        return start

    def _lengthen(self, holder: Holder, slots: int) -> int:
        """The slots behind the extent of `holder` are its own now, `slots` in all; how many were added."""
        start, before = self._extents[holder.row]
        self._extents[holder.row] = start, slots
        return slots - before

    def _elsewhere(self, holder: Holder, slots: int) -> bool:
        """Move `holder` into a hole of `slots` or more."""
        start = self._holes.allocate(slots)
        if start is None:
            return False
        old = self._extents[holder.row]
        self._move(holder, start)
        self._holes.free(*old)
        return True

    def _move(self, holder: Holder, target: int) -> None:
        """Let the extent of `holder` start at `target`, and queue the copy of its tokens."""
        start, slots = self._extents[holder.row]
        self._queue_copy([(start, slots)], [(target, slots)], 0, self._written(holder))
        self._extents[holder.row] = target, slots
        self.set_row(holder, 0, target)

    def _written(self, holder: Holder) -> int:
        """Tokens that lie in the pool before the coming step."""
        return holder.stored - self._unwritten.get(holder.row, 0)
