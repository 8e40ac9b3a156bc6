"""Continuous batching that makes room by starting over: when free slots lie in pieces, all give theirs up."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from allocators.base import Ask
from schedulers.continuous import Continuous
from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence


class Rebuild(Continuous):
    """When the queue's head is refused although enough slots are free, everybody is preempted and admitted again.

    They come back in the order in which they were admitted, before the head, so they lie side by side. What moving them
    would have copied is computed again instead: what a server can do that has no way to copy a KV cache. After that
    nobody starts over until a sequence has finished, nor while one is on the host. With an allocator that uses every
    free slot, and with equal lanes, this is `Continuous`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._due = False  # in the next step
        self._may_help = True

    def schedule(self, now: int) -> Batch:
        if self._due:
            self._due = self._may_help = False
            return self._rebuilt(now)
        batch = super().schedule(now)
        refused = batch.blocked is not None and not self.swapped and self._in_pieces(batch.blocked)
        self._due = refused and self._may_help and len(self.running) > 0
        return batch

    def quiet(self, batch: Batch) -> Quiet | None:
        """Not before a rebuild, which a head that is refused brings about."""
        return None if self._due or batch.preempted else super().quiet(batch)

    def finish(self, finished: Items[Sequence]) -> None:
        super().finish(finished)
        self._may_help = True

    def _rebuilt(self, now: int) -> Batch:
        """A step of those that can be computed again at once; the others stay in the queue, before its head."""
        batch = Batch(now=now)
        for seq in reversed(self.running):
            self.preempt(seq, batch)
        self._admit(batch, self.max_num_batched_tokens)
        batch.preempted = [seq for seq in batch.preempted if seq.row < 0]
        return self.close(batch)

    def _in_pieces(self, ask: Ask) -> bool:
        """Whether what was refused would fit if all free slots lay side by side."""
        slots = self.allocator.footprint(max(ask.need, ask.must_fit))
        return slots is not None and self.allocator.free_slots - ask.spare >= (slots - ask.hit.held) * ask.count
