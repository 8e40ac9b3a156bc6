"""A pool of numbers instead of keys and values: what would lie in every slot, and what every sequence must read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allocators.base import Holder, Move


class Shadow:
    """Every token written is a number of its own, so that a copy left out, or off by one, is read by somebody.

    Args:
        capacity: slots in the pool.
        host_capacity: slots in the host pool.

    Attributes:
        tokens: of every sequence, the numbers it must read, in token order.
    """

    def __init__(self, capacity: int, host_capacity: int = 0) -> None:
        self.slots = np.full(capacity, -1)
        self.host = np.full(host_capacity, -1)
        self.tokens: dict[Holder, np.ndarray] = {}
        self._written = 0

    def admit(self, holder: Holder) -> None:
        self.tokens[holder] = np.empty(0, dtype=np.int64)

    def fork(self, parent: Holder, child: Holder) -> None:
        """`child` reads from now on what `parent` does."""
        self.tokens[child] = self.tokens[parent].copy()

    def adopt(self, holder: Holder, before: np.ndarray, after: np.ndarray) -> None:
        """Where its tokens lie elsewhere than `before`, `holder` reads from now on what lies there."""
        moved = before != after
        self.tokens[holder][: len(after)][moved] = self.slots[after[moved]]

    def free(self, holder: Holder) -> None:
        self.tokens.pop(holder, None)

    def move(self, moves: Sequence[Move]) -> None:
        """Run moves in order, each as if all its sources were read first."""
        for move in moves:
            source = self.host if move.kind == "in" else self.slots
            target = self.host if move.kind == "out" else self.slots
            target[move.target :][: move.length] = source[move.source :][: move.length].copy()

    def write(self, holder: Holder, addresses: np.ndarray) -> None:
        """The tokens of `holder` that are not there yet are written where the last of `addresses` say.

        Args:
            addresses: ``[stored]``, the slot of each of its tokens.
        """
        known = self.tokens[holder]
        new = self._written + np.arange(len(addresses) - len(known))
        self._written += len(new)
        self.slots[addresses[len(known) :]] = new
        self.tokens[holder] = np.concatenate([known, new])

    def reads(self, holder: Holder, addresses: np.ndarray) -> bool:
        """Whether `holder` finds its tokens at these slots."""
        return np.array_equal(self.slots[addresses], self.tokens[holder])
