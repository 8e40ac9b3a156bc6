"""Admit only who can surely run to the end: TensorRT-LLM's default capacity policy, `GUARANTEED_NO_EVICT`.

Its rules are those of `cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp` (2025), without what that does for LoRA,
encoders and disaggregation, and without its holding back a prompt whose beginning another one computes in that step:
here both share it at once.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from schedulers.continuous import Continuous
from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence
from schedulers.reservation import RESERVATIONS, on_demand


class GuaranteedNoEvict(Continuous):
    """Continuous batching that never preempts: the head joins if the pool holds the longest it and all others may get.

    What is promised is counted, not taken: it lets in whom `continuous` with reservation=max_tokens does, but the books
    say free instead of reserved, and a prefix cache may use it meanwhile. As there, the blocks that running sequences
    still need to their ends are put against the free ones, the first that does not fit stops the queue, and the longest
    sequence is the longest the pool holds where that is less than `max_model_len` (a reservation would be rejected).
    Blocks that the head would share with those that run are not counted again; those that the answers to one request
    share are.

    A placement that can't grow a sequence gives the guarantee by its reservation.

    Args:
        promise: how long a sequence may get: `max_tokens` (as the client declared; without, `max_model_len`), `exact`
            (the truth), `pow2` or `max_model_len`.
    """

    def __init__(self, *args: Any, promise: str = "max_tokens", watermark: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, watermark=watermark, **kwargs)
        promises = {name: rule for name, rule in RESERVATIONS.items() if rule is not on_demand}
        if promise not in promises:
            raise ValueError(f"scheduler.promise must be one of {', '.join(promises)}, got {promise!r}")
        self.promised = promises[promise]
        lengths = range(1, self.max_model_len + 1)
        self.longest = bisect_left(lengths, True, key=lambda tokens: self.allocator.footprint(tokens) is None)

    def shortfall(self, seq: Sequence, budget: int) -> int:
        if not self.allocator.grows or not self.running:  # who has the pool to itself was found servable
            return 0
        promised = sum(max(self.worst(lane) - lane.held, 0) for lane in self.running)
        to_fork = [lane for lane in self.running if lane.group and lane is lane.members[0] and not lane.group.forked]
        promised += sum(self.worst(lane) for leader in to_fork for lane in leader.members if lane.row < 0)
        shared = self.allocator.lookup(seq, seq.num_tokens - 1).held
        return max(promised + self.worst(seq) * len(seq.members) - shared - self.allocator.free_slots, 0)

    def quiet(self, batch: Batch) -> Quiet | None:
        """As `Continuous`: what is promised and not held yet shrinks with what is free, so a head lacks as much."""
        return super().quiet(batch)

    def worst(self, seq: Sequence) -> int:
        """Slots that `seq` holds if it gets as long as it may."""
        promise = max(self.promised(seq.request, self.max_model_len), self.reservation(seq.request, self.max_model_len))
        return self.allocator.footprint(min(promise, self.longest)) or 0
