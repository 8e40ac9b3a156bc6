"""Continuous batching (iteration level): requests join and leave between any two steps."""

from __future__ import annotations

from typing import Any, Literal

from allocators.base import Ask
from schedulers.base import Scheduler, decodes_next
from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence


class Continuous(Scheduler):
    """Running sequences first, then the waiting ones in the queue's order; the last admitted is preempted first.

    Args:
        prefill_first: a step with new prompts computes prompts only (vLLM 0.1.3 - 0.1.7); otherwise prompts and decodes
            share a step.
        preemption: `recompute` a preempted sequence later, or `swap` its whole group to the host (recompute if the host
            is full). While any sequence is swapped out, none is admitted.
    """

    def __init__(self, *args: Any, prefill_first: bool = False,
                 preemption: Literal["recompute", "swap"] = "recompute", **kwargs: Any) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        if preemption not in ("recompute", "swap"):
            raise ValueError(f"scheduler.preemption must be recompute or swap, got {preemption!r}")
        if preemption == "swap" and not self.allocator.host_capacity:
            raise ValueError(
                "scheduler.preemption=swap needs an allocator with a host pool, for example allocator=paged with "
                "allocator.host_slots=4096"
            )
        self.prefill_first = prefill_first
        self.preemption = preemption

    def schedule(self, now: int) -> Batch:
        batch, budget = Batch(now=now), self.max_num_batched_tokens
        if self.prefill_first:
            budget = self._run_prompts(batch, budget)
            self._admit(batch, budget)
            if batch.seqs:
                return self.close(batch)
        budget = self._run(batch, budget)
        anew = bool(batch.preempted) and not self.running  # a lone group that fragments the pool itself
        if anew:
            budget = self.max_num_batched_tokens
        if anew or not batch.preempted:
            if self.swapped:
                budget = self._resume(batch, budget)
            if anew or not self.prefill_first:
                self._admit(batch, budget)
            if anew:
                batch.preempted = [seq for seq in batch.preempted if seq.row < 0]
        return self.close(batch)

    def preempt(self, seq: Sequence, batch: Batch) -> None:
        if self.preemption == "swap" and self._swap_out(seq):
            self.remove_running(seq, batch)
            self.swapped.appendleft(seq.members[0])
        else:
            super().preempt(seq, batch)

    def _swap_out(self, seq: Sequence) -> bool:
        """Move the whole group to the host; False if a member has no tokens, or the host is full."""
        held = [member for member in seq.members if member.row >= 0]
        return all(member.stored for member in seq.members) and self.allocator.swap(held, to_host=True)

    def quiet(self, batch: Batch) -> Quiet | None:
        """All running sequences are in the batch, and the queue's head was refused memory or a lane and will be again.

        None if the head might get in: with a prefix that others compute, or with a larger budget for its first chunk.
        """
        if self.groups.branching or len(batch.seqs) < len(self.running):
            return None
        pieces = self.chunked_prefill or self.groups.siblings  # the outputs of a group are recomputed in chunks too
        if pieces and not decodes_next(batch):
            return None
        refused = batch.blocked
        if (self.waiting or self.swapped) and len(self.running) < self.max_num_seqs:
            if not self.allocator.refusals_persist or (self.chunked_prefill and not self.reserve_full_isl):
                return None
            if batch.preempted:
                refused = None if self.swapped else self.refusal_ahead()
            if refused is None and (batch.preempted or self.prefill_first or batch.num_tokens > len(batch.seqs)):
                return None
        return Quiet(None, self.arrivals_could_join(), refused)

    def arrivals_could_join(self) -> bool:
        """None could while any sequence is swapped out."""
        return self.lengths.learns if self.swapped else super().arrivals_could_join()

    def _run(self, batch: Batch, budget: int) -> int:
        """Give every running sequence its next tokens, preempting from the end when the pool is full."""
        seqs, counts = batch.seqs, batch.counts
        if len(self.running) <= budget and not self.groups.unforked and self._all_decode():
            return budget - self._decode(batch)
        for seq in list(self.running):
            if seq.row < 0:  # preempted, like all sequences behind it
                break
            count = seq.num_new_tokens(budget)
            if count <= 0:
                continue
            tokens = seq.stored + count
            if tokens > seq.room and not self.grow_or_preempt(seq, tokens, batch):
                return budget
            seqs.append(seq)
            counts.append(count)
            budget -= count
        return budget

    def _all_decode(self) -> bool:
        """Whether all running sequences have one token to compute. Without chunks, all prompts are complete."""
        if not self.chunked_prefill and not self.groups.siblings:
            return True
        return sum([seq.num_tokens - seq.stored for seq in self.running]) == len(self.running)

    def _decode(self, batch: Batch) -> int:
        """`_run` for the usual case that all sequences have one token to compute; returns the batch's length."""
        for seq in [seq for seq in self.running if seq.stored >= seq.room]:
            if seq.row >= 0 and not self.allocator.grow(seq, seq.num_tokens):
                self.grow_or_preempt(seq, seq.num_tokens, batch)
        batch.seqs += self.running
        batch.counts += [1] * len(batch.seqs)
        self.allocator.commit(batch.seqs, batch.counts)  # no recomputation to count in `Scheduler.commit`
        batch.committed = len(batch.seqs)
        return len(batch.seqs)

    def _run_prompts(self, batch: Batch, budget: int) -> int:
        """Continue the chunked prompts; room beyond their first chunk has yet to be allocated."""
        most = self.max_num_batched_tokens
        for seq in self.running:
            rest = seq.num_new_tokens(most)
            count = min(rest, budget)
            if rest > 1 and count and (seq.stored + count <= seq.room or self.allocator.grow(seq, seq.stored + count)):
                batch.seqs.append(seq)
                batch.counts.append(count)
                budget -= count
        return budget

    def _resume(self, batch: Batch, budget: int) -> int:
        """Swap sequences back in, the first preempted last, and schedule their next tokens."""
        self.commit(batch)
        while self.swapped:
            members = self.swapped[0].members
            if len(members) > min(budget, self.max_lanes - len(self.running) - self.groups.to_come):
                break
            unit = self.allocator.grain
            spare = self.watermark_slots + len(members) * unit if self.running else 0  # a block for each member
            if not self.allocator.swap(members, to_host=False, spare=spare):
                first = members[0]
                batch.blocked = Ask(first.stored + 1, first.promise, spare=spare, final=first.final, count=len(members))
                break
            self.swapped.popleft()
            self.running += members
            for seq in members:
                count = seq.num_new_tokens(budget)
                if count and (seq.stored + count <= seq.room or self.allocator.grow(seq, seq.stored + count)):
                    batch.seqs.append(seq)
                    batch.counts.append(count)
                    budget -= count
            if len(members) > 1:
                self.groups.count(self.running)
        return budget

    def _admit(self, batch: Batch, budget: int) -> None:
        while budget > 0 and self.waiting and not self.swapped and len(self.running) < self.max_num_seqs:
            self.commit(batch)  # so that the head may reuse prefixes computed in this step
            count = self.admit_head(batch, budget)
            if not count:
                break
            budget -= count
