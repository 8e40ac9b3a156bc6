"""Which positions a query sees, and how its scores are modified: one description for all kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch


class AttentionVariant(NamedTuple):
    """How attention differs from ``softmax(scale * q·k)`` over all positions up to the query's own.

    Attributes:
        window: a query at position p sees only positions ``p - window + 1 … p``; 0 = all.
        chunk: a query sees only positions with an equal ``p // chunk``; 0 = all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 = unchanged.
        sinks: ``[Hq]``, an extra logit of each head that takes part in the softmax without a value; None = none.
    """

    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether attention is the plain softmax."""
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
        """`first_seen` of a single query."""
        return int(self.first_seen(torch.tensor(position))) if self.reach else 0


PLAIN = AttentionVariant()
