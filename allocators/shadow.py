"""A pool of numbers instead of keys and values: what would lie in every slot, and what every sequence must read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from allocators.base import Allocator, Holder, Move
from allocators.recount import Recount

Key = tuple[Holder, int]  # a sequence and a group of layers


class Shadow:
    """Every token written is a number of its own, so that a copy left out, or off by one, is read by somebody.

    Args:
        cells: in the pool; a token is at the first of its own.
        host_cells: in the host pool.
        cell: units in a cell, of which moves are told.

    Attributes:
        tokens: of every sequence and group, the numbers it must read, in token order.
    """

    def __init__(self, cells: int, host_cells: int = 0, cell: int = 1) -> None:
        self.slots = np.full(cells, -1)
        self.host = np.full(host_cells, -1)
        self.cell = cell
        self.tokens: dict[Key, np.ndarray] = {}
        self._written = 0

    def admit(self, key: Key) -> None:
        self.tokens[key] = np.empty(0, dtype=np.int64)

    def fork(self, parent: Key, child: Key) -> None:
        """`child` reads from now on what `parent` does."""
        self.tokens[child] = self.tokens[parent].copy()

    def adopt(self, key: Key, before: np.ndarray, after: np.ndarray) -> None:
        """Where its tokens lie elsewhere than `before`, a sequence reads from now on what lies there."""
        moved = before != after
        self.tokens[key][: len(after)][moved] = self.slots[after[moved]]

    def free(self, key: Key) -> None:
        self.tokens.pop(key, None)

    def move(self, moves: Sequence[Move]) -> None:
        """Run moves in order, each as if all its sources were read first."""
        for move in moves:
            source = self.host if move.kind == "in" else self.slots
            target = self.host if move.kind == "out" else self.slots
            first, to, length = (size // self.cell for size in (move.source, move.target, move.length))
            target[to:][:length] = source[first:][:length].copy()

    def write(self, key: Key, addresses: np.ndarray) -> None:
        """Further tokens of a sequence are written where `addresses` say."""
        new = self._written + np.arange(len(addresses))
        self._written += len(new)
        self.slots[addresses[addresses >= 0]] = new[addresses >= 0]  # a token may be given up before it is written
        self.tokens[key] = np.concatenate([self.tokens[key], new])


class Device:
    """What a runner would do: writes the tokens of each step where the tables say, and reads them back."""

    def __init__(self, allocator: Allocator, count: Recount) -> None:
        self.allocator, self.count = allocator, count
        self.groups = range(len(count.kept))
        self.shadow = Shadow(count.cells, allocator.host_capacity // count.cell, count.cell)
        self.hits: dict[Holder, int] = {}  # tokens that others write or wrote, until the step is under way
        self.begun: dict[Holder, int] = {}  # tokens that were stored before the coming step
        self.states: dict[Key, int] = {}  # the cell in which a recurrent state was written last

    def admit(self, holder: Holder, hit: int) -> None:
        for group in self.groups:
            self.shadow.admit((holder, group))
        self.begun[holder] = hit
        if hit:
            self.hits[holder] = hit

    def lay(self, holder: Holder) -> np.ndarray:
        """Where the tokens of a sequence lie that are written by now."""
        return self.where(holder, 0)[: len(self.shadow.tokens.get((holder, 0), ()))]

    def fork(self, parent: Holder, child: Holder, lay: np.ndarray | None) -> None:
        """`child` reads from now on what `parent` does, which may lie elsewhere than before (`lay`)."""
        if self.allocator.shares and lay is not None:  # it may have given its copies of found tokens back
            self.shadow.adopt((parent, 0), lay, self.lay(parent))
        self.shadow.fork((parent, 0), (child, 0))
        self.begun[child] = self.begun[parent]
        if len(self.shadow.tokens[child, 0]) < child.stored:  # some are written in the coming step only
            self.hits[child] = child.stored

    def free(self, holder: Holder) -> None:
        self.hits.pop(holder, None)
        self.begun.pop(holder, None)
        for group in self.groups:
            self.shadow.free((holder, group))
            self.states.pop((holder, group), None)

    def needed(self, holder: Holder, group: int) -> np.ndarray:
        """The tokens that the coming step reads, and those of its own that a later one will."""
        kept, begun, stored = self.count.kept[group], self.begun.get(holder, holder.stored), holder.stored
        if kept.state_units:
            return np.empty(0, dtype=np.int64)
        return np.r_[kept.behind(begun) : begun, max(begun, kept.behind(stored)) : stored]

    def where(self, holder: Holder, group: int) -> np.ndarray:
        """The cells of those tokens."""
        return self.count.addresses(holder, group, self.needed(holder, group))

    def step(self, holders: Iterable[Holder]) -> Holder | None:
        """A step computes what is stored now; the first sequence that does not read what it wrote, if any."""
        everybody = list(holders)
        for holder, hit in self.hits.items():
            for group in self.groups:
                self.shadow.tokens[holder, group] = np.full(hit, -1)  # made out below, when the others have written
        lost = [holder for holder in everybody if not self._writes(holder)]
        for holder, hit in self.hits.items():
            for group in self.groups:
                found = self.count.addresses(holder, group, np.arange(hit))
                self.shadow.tokens[holder, group][:hit] = np.where(found < 0, -1, self.shadow.slots[found])
        self.hits.clear()
        lost += [holder for holder in everybody if not self._reads(holder)]
        self.begun.update((holder, holder.stored) for holder in everybody)
        return lost[0] if lost else None

    def skip(self, holders: Iterable[Holder], steps: int, refused: bool) -> None:
        """So many steps of one token each are over, but for the last; that too, if another one was refused."""
        if steps or refused:
            self.begun.update((holder, holder.stored - (not refused)) for holder in holders)

    def _writes(self, holder: Holder) -> bool:
        """Write what is new of a sequence; a state is written over the last one, which must still be there."""
        return all(self._writes_for(holder, group) for group in self.groups)

    def _writes_for(self, holder: Holder, group: int) -> bool:
        known = self.shadow.tokens[holder, group]
        if not self.count.kept[group].state_units:
            new = np.arange(len(known), holder.stored)
            self.shadow.write((holder, group), self.count.addresses(holder, group, new))
            return True
        blocks = self.count.blocks(holder, group)
        if not blocks or holder.stored == self.begun[holder]:
            return True
        cell, before = blocks[-1][0] // self.count.cell, self.states.get((holder, group))
        there = before is None or known[-1] in self.shadow.slots[[before, cell]]
        self.shadow.write((holder, group), np.array([cell]))
        self.states[holder, group] = cell
        return bool(there)

    def _reads(self, holder: Holder) -> bool:
        """Whether a sequence finds all it needs."""
        for group in self.groups:
            tokens, where = self.needed(holder, group), self.where(holder, group)
            there = np.where(where < 0, -2, self.shadow.slots[where])
            if not np.array_equal(there, self.shadow.tokens[holder, group][tokens]):
                return False
        return True
