"""The bound: continuous batching by a scheduler that knows how long every answer will be.

With `Paged(block_size=1)`, which rounds nothing, it says what first come, first served could reach at best on a given
pool and device: no slot is held before it is written, none is kept back, and no token is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allocators.base import Ask
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request


def peak(lanes: Iterable[tuple[int, int]], unit: int = 1) -> int:
    """The most slots that sequences will ever hold together if each stores one more token a step and nobody joins.

    What they hold only grows between two ends, so it is enough to look at each end: there, those that last at least as
    long are all that is left (the rule of LightLLM's past-future scheduler, arXiv 2507.10150, with true lengths).

    Args:
        lanes: (tokens still to be stored, tokens stored) of each sequence.
        unit: slots in a block; what a sequence holds is rounded up to whole ones.
    """
    most = stored = 0
    order = sorted(lanes, reverse=True)
    for count, (left, now) in enumerate(order, 1):
        stored += now
        held = stored + left * count if unit == 1 else sum(-(-(n + left) // unit) * unit for _, n in order[:count])
        most = max(most, held)
    return most


class Ideal(Continuous):
    """Admits the head of the queue as soon as all that runs, and the head, will fit until each of them ends.

    So it never preempts while a step has room for a token of every sequence, and needs no watermark. A sequence that is
    out of step (a prompt computed in pieces) is counted with its final length from the start.
    """

    def __init__(self, *args: Any, watermark: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, watermark=watermark, **kwargs)
        self.unit = self.allocator.block_size or 1

    def admit_head(self, batch: Batch, budget: int, spare: int | None = None, limit: int = 0) -> int:
        """As the base class, but refused if the future does not fit; then `blocked` asks for what is missing, too."""
        head = self.waiting[0]
        lanes = [seq for seq in self.running if seq.stored == seq.num_tokens]
        pinned = [seq for seq in self.running if seq.stored < seq.num_tokens]  # out of step: waits for room in a step
        (lanes if head.num_tokens <= budget else pinned).append(head)
        most = peak([(seq.end_tokens - 1 - seq.num_tokens, seq.num_tokens) for seq in lanes], self.unit)
        most += peak([(0, seq.end_tokens - 1) for seq in pinned], self.unit)
        if most > self.allocator.capacity:
            held = sum(seq.held for seq in self.running)
            batch.blocked = Ask(head.num_tokens, spare=max(most - held - head.num_tokens, 0), final=head.end_tokens - 1)
            return 0
        return super().admit_head(batch, budget, spare, limit)

    def unservable(self, request: Request) -> str | None:
        """Also why the bound does not hold for it."""
        return f"n = {request.n}: the bound is one for single answers" if request.n > 1 else super().unservable(request)

    def steady(self, batch: Batch) -> bool:
        """A head that was refused may fit a step later, though nobody has finished."""
        return not self.waiting and super().steady(batch)
