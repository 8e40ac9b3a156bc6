"""vLLM's v1 scheduler, step for step (0.33, without speculation): no prefill and decode phases, one token budget."""

from __future__ import annotations

from typing import Any, Literal

from allocators.base import NO_HIT
from schedulers.base import Scheduler, decodes_next
from schedulers.orders import Priority
from schedulers.quiet import Quiet
from schedulers.request import Batch, Request, Sequence

VERSIONS = ("0.33", "0.19")


class VllmV1(Scheduler):
    """Each step closes the gap between `num_tokens` and computed tokens of every sequence in turn, within one budget.

    Running sequences come first, in the order of their admission, then the waiting ones. If blocks run out, the last
    admitted sequence is preempted (recompute), and none is admitted in that step. A request whose prompt and output
    exceed `max_model_len` is cut there; a request that can never fit is rejected with the reason, where vLLM would
    retry it forever. Only n = 1 is served: vLLM makes n requests of a request with n > 1.

    Args:
        watermark: share of the blocks (vLLM counts the null block too) that an admission leaves free while other
            sequences run.
        long_prefill_token_threshold: most tokens of one sequence in a step while there are others; 0 = no limit.
        scheduler_reserve_full_isl: whether all tokens of a sequence must fit before its first chunk is admitted.
        policy: the queue's order (see `Scheduler`). With `priority`, the running sequence with the highest number is
            preempted first, instead of the last admitted.
        version: `0.19` applies the threshold to a lone sequence too. (It also frees blocks to the back of the list:
            `allocator.freed_blocks=back`.)
    """

    async_scheduling = True

    supports_groups = False
    aligns_chunks = True

    def __init__(self, *args: Any, chunked_prefill: bool = True, watermark: float = 0.0,
                 long_prefill_token_threshold: int = 0, scheduler_reserve_full_isl: bool = True,
                 version: Literal["0.33", "0.19"] = "0.33", **kwargs: Any) -> None:  # fmt: skip
        super().__init__(*args, chunked_prefill=chunked_prefill, watermark=watermark, **kwargs)
        if long_prefill_token_threshold < 0:
            raise ValueError(
                f"scheduler.long_prefill_token_threshold must be at least 0, got {long_prefill_token_threshold}"
            )
        if str(version) not in VERSIONS:
            raise ValueError(f"scheduler.version must be {' or '.join(VERSIONS)}, got {version!r}")
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.max_chunk_tokens = min(long_prefill_token_threshold or self.max_chunk_tokens, self.max_chunk_tokens)
        self.reserve_full_isl = scheduler_reserve_full_isl
        self.version = str(version)
        if self.watermark_slots and self.allocator.block_size:
            unit = self.allocator.grain
            blocks = self.allocator.capacity // unit + 1 - self.allocator.null_blocks
            self.watermark_slots = int(watermark * blocks) * unit

    def schedule(self, now: int) -> Batch:
        batch, limit = Batch(now=now), self._limit()
        budget = self._run(batch, limit)
        if not batch.preempted:
            self._admit(batch, budget, limit)
        return self.close(batch)

    def quiet(self, batch: Batch) -> Quiet | None:
        """All running sequences decode, and the queue's head was refused memory or a lane and will be again.

        None if the head might get in: with a prefix that others compute, or with a larger budget for its first chunk.
        """
        if len(batch.seqs) < len(self.running) or not decodes_next(batch):
            return None
        refused = batch.blocked
        if self.waiting and len(self.running) < self.max_num_seqs:
            if not self.allocator.refusals_persist or not self.reserve_full_isl:
                return None
            if batch.preempted:
                refused = self.refusal_ahead(self._limit())
            if refused is None and (batch.preempted or batch.num_tokens > len(batch.seqs)):
                return None
        return Quiet(None, self.arrivals_could_join(), refused)

    def end_of(self, request: Request) -> int:
        return min(super().end_of(request), self.max_model_len)

    def unservable(self, request: Request) -> str | None:
        if request.prompt_len >= self.max_model_len:
            return f"a prompt of {request.prompt_len} tokens leaves no room for an answer: " + (
                f"max_model_len = {self.max_model_len}"
            )
        return super().unservable(request)

    def _limit(self) -> int:
        """Most tokens of one sequence in this step; 0 = no limit. Since 0.33, a lone sequence has no limit."""
        if self.version == "0.33" and len(self.running) + len(self.waiting) <= 1:
            return 0
        return self.long_prefill_token_threshold

    def _run(self, batch: Batch, limit: int) -> int:
        """The running pass; returns the budget that is left."""
        budget, seqs, counts = self.max_num_batched_tokens, batch.seqs, batch.counts
        for seq in list(self.running):
            if budget <= 0:
                break
            count = seq.num_tokens - seq.stored
            if count > 1:
                count = min(count, limit or count, budget, self.max_model_len - seq.stored - 1)
                if count > 0 and self.allocator.aligned_chunks:
                    count = self.allocator.chunk_tokens(seq, NO_HIT, count, limit or self.max_num_batched_tokens)
            if count < 1 or seq.row < 0:  # it waits for its token, or was preempted; sequences behind it may still run
                continue
            tokens = seq.stored + count
            if tokens > seq.room:
                found = self.grow_or_preempt(seq, tokens, batch)
                if batch.preempted:  # the tokens of preempted sequences are available again
                    budget = self.max_num_batched_tokens - batch.num_tokens
                if not found:
                    continue
            seqs.append(seq)
            counts.append(count)
            budget -= count
        return budget

    def preempt_for(self, seq: Sequence, batch: Batch) -> None:
        if isinstance(self.order, Priority):
            self.preempt(max(self.running, key=lambda seq: self.queue_order.key(seq, batch.now)), batch)
        else:
            super().preempt_for(seq, batch)

    def _admit(self, batch: Batch, budget: int, limit: int) -> None:
        """The waiting pass: admit from the head until it does not fit. Blocks completed in this step can be hit."""
        while budget > 0 and self.waiting and len(self.running) < self.max_num_seqs:
            self.commit(batch)
            count = self.admit_head(batch, budget, limit=limit)
            if not count:
                break
            budget -= count
