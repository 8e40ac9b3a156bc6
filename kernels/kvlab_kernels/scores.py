"""What of a context a query sees, and what is done to its scores: the one description that every kernel takes."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Scores(NamedTuple):
    """Beyond ``softmax(scale * q·k)`` over all positions up to the query's own.

    Attributes:
        window: a query at position p sees positions ``p - window + 1 … p`` alone (W keys, itself among them); 0 = all.
        chunk: it sees those of its own chunk alone, of equal ``p // chunk``; 0 = all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 = as they are.
        sinks: ``[Hq]``, a further score of each head that takes part in the softmax and brings no value; None = none.
    """

    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None

    @property
    def are_plain(self) -> bool:
        """Whether there is nothing beyond the softmax."""
        return not (self.window or self.chunk or self.softcap) and self.sinks is None

    @property
    def reach(self) -> int:
        """The most positions that a query sees; 0 = all."""
        return min((size for size in (self.window, self.chunk) if size), default=0)

    def first_seen(self, position: torch.Tensor) -> torch.Tensor:
        """The first position that a query sees, for queries at `position` (any shape, integers)."""
        first = torch.zeros_like(position)
        if self.window:
            first = torch.maximum(first, position - (self.window - 1))
        if self.chunk:
            first = torch.maximum(first, position // self.chunk * self.chunk)
        return first

    def first_of(self, position: int) -> int:
        """The same of a single query."""
        return int(self.first_seen(torch.tensor(position))) if self.reach else 0


PLAIN = Scores()
