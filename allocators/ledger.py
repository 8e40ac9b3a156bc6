"""The ledger for layers that keep different tokens: what each sequence holds of each group, and the books of that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from allocators.books import Holder, LayoutBooks
from allocators.layout import Kept


class Part(NamedTuple):
    """What a sequence holds for one group of layers.

    Attributes:
        first, end: the part has room for the sequence's tokens `first` to `end` - 1.
        units: units allocated, padding included.
        states: number of states held, for layers that keep a state; all but the last are outdated.
    """

    first: int
    end: int
    units: int
    states: int = 0


class Ledger:
    """What each sequence holds, by its row and by group.

    Args:
        kept: what each group keeps.
        rings: tokens after which a group's extents wrap around; 0 = never.
    """

    def __init__(self, kept: Sequence[Kept], rings: Sequence[int]) -> None:
        self.kept, self.rings = tuple(kept), tuple(rings)
        self.held = 0  # units of all sequences, shared ones counted for each holder
        self._size = 64
        self._parts = np.zeros((len(self.kept), 4, self._size), dtype=np.int64)
        self._ends = np.zeros((3, self._size), dtype=np.int64)  # final, promise, finished
        self._holders: dict[int, Holder] = {}
        self._rows: np.ndarray | None = None

    def update(self, holder: Holder, parts: Sequence[Part]) -> None:
        """Enter what `holder` holds from now on."""
        row = holder.row
        if row not in self._holders:
            self._holders[row] = holder
            self._rows = None
            if row >= self._size:
                self._grow(row)
        elif self._holders[row] is holder:
            self.held -= int(self._parts[:, 2, row].sum())
        for at, part in enumerate(parts):
            self._parts[at, :, row] = part
            self.held += part.units
        self._ends[:, row] = holder.final, holder.promise, holder.finished

    def forget(self, holder: Holder) -> None:
        """Remove a sequence that holds nothing any more."""
        row = holder.row
        self.held -= int(self._parts[:, 2, row].sum())
        self._parts[:, :, row] = 0
        del self._holders[row]
        self._rows = None

    def books(self) -> list[list[int]]:
        """By group, in units: used, finished_held, reserved, over_reserved, rounding, cached (0), then out_of_window,
        padding, state. A shared slot is counted for each sequence that holds it.
        """
        if self._rows is None:
            self._rows = np.fromiter(self._holders, np.int64, len(self._holders))
        rows = self._rows
        stored = np.fromiter([holder.stored for holder in self._holders.values()], np.int64, len(rows))
        final, promise, finished = self._ends[:, rows]
        live = None if not finished.any() else finished == 0
        return [self._group(kept, ring, part[:, rows], stored, final, promise, live)
                for kept, ring, part in zip(self.kept, self.rings, self._parts, strict=True)]  # fmt: skip

    def _group(self, kept: Kept, ring: int, parts: np.ndarray, stored: np.ndarray, final: np.ndarray,
               promise: np.ndarray, live: np.ndarray | None) -> list[int]:  # fmt: skip
        """The columns of one group; all arrays are by sequence."""
        finished = 0
        if live is not None:
            finished = int(parts[2, ~live].sum())
            parts, stored, final, promise = parts[:, live], stored[live], final[live], promise[live]
        first, end, units, states = parts
        if kept.state_units:
            old = int(np.maximum(states - 1, 0).sum()) * kept.state_units
            running = int((states > 0).sum()) * kept.state_units
            return [0, finished, 0, 0, 0, 0, old, int(units.sum()) - old - running, running]
        if ring:
            over = np.maximum(stored - ring, 0)
            first, end = first + over, end + over
            final, promise = np.minimum(final, first + ring), np.minimum(promise, first + ring)
        here = np.minimum(np.maximum(stored, first), end)
        seen = here if kept.reach else first
        if kept.reach:
            seen = np.minimum(np.maximum(behind(kept, stored), first), here)
        last = np.minimum(np.maximum(final, here), end)
        most = np.minimum(np.maximum(promise, last), end)
        marks = [int(mark.sum()) for mark in (first, seen, here, last, most, end)]
        unread, used, reserved, over, rounding = (kept.token_units * (high - low) for low, high in pairwise(marks))
        padding = int(units.sum()) - kept.token_units * (marks[-1] - marks[0])
        return [used, finished, reserved, over, rounding, 0, unread, padding, 0]

    def _grow(self, row: int) -> None:
        more = max(row + 1 - self._size, self._size)
        self._parts = np.concatenate([self._parts, np.zeros((len(self.kept), 4, more), dtype=np.int64)], axis=2)
        self._ends = np.concatenate([self._ends, np.zeros((3, more), dtype=np.int64)], axis=1)
        self._size += more


def behind(kept: Kept, stored: np.ndarray) -> np.ndarray:
    """`Kept.behind`, vectorized."""
    if not kept.reach:
        return np.zeros_like(stored)
    if kept.chunked:
        return stored - stored % kept.reach
    return np.maximum(stored - kept.reach + 1, 0)


def in_sum(groups: Sequence[Sequence[int]], cached: int, unheld: tuple[int, int, int]) -> LayoutBooks:
    """The books of all groups together; `unheld` is (fragmented, short, free)."""
    sums = [sum(column) for column in zip(*groups, strict=True)]
    return LayoutBooks._make([*sums[:5], cached, *unheld, *sums[6:]])
