"""The books of a pool counted cell by cell, from nothing but what an allocator says of where its sequences lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import gcd
from typing import Any

import numpy as np

from allocators.base import Allocator, Holder
from allocators.layout import Kept

# In which column a cell is; one that several sequences hold is in the first of theirs.
USED, FINISHED, RESERVED, OVER, ROUNDING, UNREAD, PADDING, STATE, NOBODY = range(9)
COLUMNS = ("used", "finished_held", "reserved", "over_reserved", "rounding", "out_of_window", "padding", "state")


class Faulty(Exception):
    """What is told can't be; the message says which rule is broken."""


class Recount:
    """Where sequences lie, in cells: the largest number of units that everything is a multiple of (slots, mostly)."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.by_layer = not allocator.by_slot  # else each group lies in the same slots
        self.kept = allocator.kept if self.by_layer else (Kept("slots", 1),)
        self.forgets = self.by_layer and any(kept.reach or kept.state_units for kept in self.kept)
        sizes = [size for grid in allocator.grids for size in (grid.stride, grid.origin)]
        sizes += [size for kept in self.kept for size in (kept.token_units, kept.state_units)]
        self.cell = gcd(*sizes)
        self.cells = allocator.capacity // self.cell

    def held(self, holder: Holder, group: int) -> np.ndarray:
        """The cells that a sequence holds for a group of layers, in token order."""
        cells = self.runs(self.blocks(holder, group) if self.by_layer else self.allocator.spans(holder))
        if len(cells) and not (cells.min() >= 0 and cells.max() < self.cells):
            raise Faulty(f"{holder.name} holds slots outside the pool")
        return cells

    def blocks(self, holder: Holder, group: int) -> list[tuple[int, int]]:
        """(first unit, units) of each block, or of the extent, that its table says it holds for a group of layers."""
        grid, part = self.allocator.grids[group], self.allocator.occupied(holder)[group]
        row = self.allocator.group_tables[group][holder.row].tolist()
        if not grid.block_size:
            return [(grid.origin + row[0] * self.kept[group].token_units, part.units)] if part.units else []
        if not self.kept[group].state_units:
            row = row[part.first // grid.block_size : -(-part.end // grid.block_size)]
            if min(row, default=0) < 0:
                raise Faulty(f"{holder.name} has room for tokens {part.first} to {part.end}, and no block for some")
        return [(grid.origin + entry * grid.stride, grid.stride) for entry in row if entry >= 0]

    def runs(self, spans: Iterable[tuple[int, int]]) -> np.ndarray:
        runs = [np.arange(start // self.cell, (start + length) // self.cell) for start, length in spans]
        return np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)

    def addresses(self, holder: Holder, group: int, tokens: np.ndarray) -> np.ndarray:
        """The first cell of each of these tokens: where the kernels will look for it."""
        row, grid = self.allocator.group_tables[group][holder.row], self.allocator.grids[group]
        size = self.kept[group].token_units
        if grid.ring:
            tokens = tokens % grid.ring
        if grid.block_size:
            blocks = row[tokens // grid.block_size].astype(np.int64)
            at = grid.origin + blocks * grid.stride + tokens % grid.block_size * size
            at[blocks < 0] = -1
            return at // self.cell
        return (grid.origin + (row[0] + tokens) * size) // self.cell

    def codes(self, holder: Holder, group: int) -> np.ndarray:
        """The column of each cell that a sequence holds for a group, as if nobody else held it."""
        kept, cells = self.kept[group], len(self.held(holder, group))
        if holder.finished:
            return np.full(cells, FINISHED)
        if kept.state_units:
            return self._states(kept, self.blocks(holder, group), cells)
        first, end, padded, stride = 0, holder.held, 0, 1
        final, promise = holder.final, holder.promise
        if self.by_layer:
            part, grid = self.allocator.occupied(holder)[group], self.allocator.grids[group]
            first, end = part.first, part.end
            if grid.block_size:
                stride, padded = grid.block_size, grid.stride - grid.block_size * kept.token_units
                first -= first % stride
            if grid.ring:  # it holds the last so many tokens
                over = max(holder.stored - grid.ring, 0)
                first, end = first + over, end + over
                final, promise = min(final, first + grid.ring), min(promise, first + grid.ring)
        at, size = np.arange(first, end), kept.token_units // self.cell
        unread = at < (kept.behind(holder.stored) if self.by_layer else 0)
        codes = np.select(
            [unread, at < holder.stored, at < final, at < promise],
            [UNREAD, USED, RESERVED, OVER],
            ROUNDING,
        )
        codes = np.repeat(codes, size)
        if padded:  # behind the tokens of each block
            blocks = codes.reshape(-1, stride * size)
            codes = np.pad(blocks, ((0, 0), (0, padded // self.cell)), constant_values=PADDING).ravel()
        return np.pad(codes, (0, max(cells - len(codes), 0)), constant_values=PADDING)

    def _states(self, kept: Kept, spans: list[tuple[int, int]], cells: int) -> np.ndarray:
        """A state at the start of each run, all but the last one old."""
        codes, at = np.full(cells, PADDING), 0
        for number, (_, length) in enumerate(spans, start=1):
            codes[at : at + kept.state_units // self.cell] = STATE if number == len(spans) else UNREAD
            at += length // self.cell
        return codes

    def books(self, holders: dict[Holder, int], shares: bool) -> Any:
        """Units in each of `COLUMNS`, looking at every cell of every sequence; shared ones count once.

        Args:
            holders: by sequence, its family: only forks of one sequence may lie in the same slots unless `shares`.
        """
        column = np.full(self.cells, NOBODY)
        family = np.zeros(self.cells, dtype=np.int64)
        for holder, mine in holders.items():
            cells = [self.held(holder, group) for group in range(len(self.kept))]
            for group, there in enumerate(cells):
                codes = self.codes(holder, group)
                if len(codes) != len(there):
                    raise Faulty(f"{holder.name} holds {len(there)} slots, not {holder.held}")
                np.minimum.at(column, there, codes)
            every = np.concatenate(cells)
            if not (shares or bool(np.isin(family[every], (0, mine)).all())):
                raise Faulty("a slot has two owners")
            if len(np.unique(every)) != len(every):
                raise Faulty(f"{holder.name} holds a slot twice: it has two owners")
            family[every] = mine
        for start, length in self.allocator.cached_spans():
            if family[start // self.cell : (start + length) // self.cell].any():
                raise Faulty("a slot is held and counted as cached")
        return (np.bincount(column, minlength=NOBODY + 1)[:NOBODY] * self.cell).tolist()

    def unread(self, kept: Kept, holders: Iterable[Holder]) -> int:
        """Slots of live sequences with tokens that none of them will read again in layers that keep `kept`."""
        stored, read = np.zeros(self.cells, dtype=bool), np.zeros(self.cells, dtype=bool)
        for holder in holders:
            if not holder.finished:
                cells = self.held(holder, 0)
                stored[cells[: holder.stored]] = True
                read[cells[kept.behind(holder.stored) :]] = True
        return int((stored & ~read).sum())

    def units(self, slots: int) -> int:
        """Slots, in the units of a layout that the placement was made without."""
        if self.by_layer or not self.allocator.extra_columns:
            return slots
        return slots * sum(kept.token_units for kept in self.allocator.kept)

    def in_units(self, naive: list[int], holders: Collection[Holder]) -> list[int]:
        """The books of slots in the units of a layout that the placement was made without."""
        if self.by_layer or not self.allocator.extra_columns:
            return naive
        counted = [self.units(slots) for slots in naive]
        for kept in self.allocator.kept:
            unread = kept.token_units * self.unread(kept, holders)
            counted[USED] -= unread
            counted[UNREAD] += unread
            for holder in holders:  # whose state lies beside the slots
                counted[FINISHED if holder.finished else STATE] += kept.state_units
        return counted


def column_values(books: Any) -> list[int]:
    """The values of `COLUMNS` in the books; 0 for those that they lack."""
    return [getattr(books, name) if name in books._fields else 0 for name in COLUMNS]
