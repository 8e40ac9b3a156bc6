"""Continuous batching (iteration level): requests join and leave between any two steps."""

from __future__ import annotations

from typing import Any, Literal

from allocators.base import Ask
from schedulers.base import Scheduler, decodes_next
from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence


class Continuous(Scheduler):
    """Running sequences first, then the waiting ones first-come-first-served; the latest admitted is preempted first.

    Args:
        prefill_first: a step with new prompts computes prompts only (vLLM 0.1.3 - 0.1.7); otherwise prompts and decodes
            share a step.
        preemption: what becomes of a preempted sequence: `recompute` it later, or `swap` it to the host, all of its
            group or nothing; recomputed if the host is full. While anybody is on the host, nobody is admitted.
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
        anew = bool(batch.preempted) and not self.running  # a group alone, refused for how its own extents lie
        if anew:
            budget = self.max_num_batched_tokens
        if anew or not batch.preempted:
            if self.swapped:
                budget = self._resume(batch, budget)
            if anew or not self.prefill_first:
                self._admit(batch, budget)
            batch.preempted = [seq for seq in batch.preempted if seq.row < 0]
        return self.close(batch)

    def preempt(self, seq: Sequence, batch: Batch) -> None:
        if self.preemption == "swap" and self._swap_out(seq):
            self.withdraw(seq, batch)
            self.swapped.appendleft(seq.members[0])
        else:
            super().preempt(seq, batch)

    def _swap_out(self, seq: Sequence) -> bool:
        """Move all of its request to the host; False if some of it has no tokens, or there is no room."""
        held = [member for member in seq.members if member.row >= 0]
        return all(member.stored for member in seq.members) and self.allocator.swap(held, to_host=True)

    def quiet(self, batch: Batch) -> Quiet | None:
        """All that runs is in the batch, and who waits was refused memory, or a place, and will be while both fill up.

        Not so where a head waits for a prefix that others compute, or asks for more when there is more budget.
        """
        if self.groups.branching or len(batch.seqs) < len(self.running):
            return None
        pieces = self.chunked_prefill or self.groups.siblings  # a group's answers come in pieces too
        if pieces and not decodes_next(batch):
            return None
        refused = batch.blocked
        if (self.waiting or self.swapped) and len(self.running) < self.max_num_seqs:
            if not self.allocator.refusals_last or (self.chunked_prefill and not self.reserve_full_isl):
                return None
            if batch.preempted:
                refused = None if self.swapped else self.refusal_ahead()
            if refused is None and (batch.preempted or self.prefill_first or batch.num_tokens > len(batch.seqs)):
                return None
        return Quiet(None, self.newcomers_matter(), refused)

    def newcomers_matter(self) -> bool:
        """While anybody is on the host, nobody is admitted."""
        return self.lengths.learns if self.swapped else super().newcomers_matter()

    def _run(self, batch: Batch, budget: int) -> int:
        """Give every running sequence its next tokens, preempting from the end when the pool is full."""
        seqs, counts = batch.seqs, batch.counts
        if len(self.running) <= budget and not self.groups.unforked and self._all_decode():
            return budget - self._decode(batch)
        for seq in list(self.running):
            if seq.row < 0:  # preempted, and so are all behind it
                break
            count = seq.due(budget)
            if count <= 0:
                continue
            tokens = seq.stored + count
            if tokens > seq.room and not self.find_room(seq, tokens, batch):
                return budget
            seqs.append(seq)
            counts.append(count)
            budget -= count
        return budget

    def _all_decode(self) -> bool:
        """Whether all that run have one token due. A prompt that is computed at once leaves nobody with more."""
        if not self.chunked_prefill and not self.groups.siblings:
            return True
        return sum([seq.num_tokens - seq.stored for seq in self.running]) == len(self.running)

    def _decode(self, batch: Batch) -> int:
        """The usual step of `_run`, in short: everybody has one token due. How many are in the batch."""
        full = [seq for seq in self.running if seq.stored >= seq.room]
        for seq in full[self.allocator.grow_each(full) :] if full else ():
            if seq.row >= 0:
                self.find_room(seq, seq.num_tokens, batch)
        batch.seqs += self.running
        batch.counts += [1] * len(batch.seqs)
        self.allocator.commit(batch.seqs, batch.counts)  # no old work is among it for `Scheduler.commit` to count
        batch.committed = len(batch.seqs)
        return len(batch.seqs)

    def _run_prompts(self, batch: Batch, budget: int) -> int:
        """Continue the prompts that were begun in pieces; their room beyond the first chunk is still to be had."""
        most = self.max_num_batched_tokens
        for seq in self.running:
            rest = seq.due(most)
            count = min(rest, budget)
            if rest > 1 and count and (seq.stored + count <= seq.room or self.allocator.grow(seq, seq.stored + count)):
                batch.seqs.append(seq)
                batch.counts.append(count)
                budget -= count
        return budget

    def _resume(self, batch: Batch, budget: int) -> int:
        """Bring swapped sequences back, first preempted last, and give them their next tokens."""
        self.commit(batch)
        while self.swapped:
            members = self.swapped[0].members
            if len(members) > min(budget, self.max_lanes - len(self.running) - self.groups.to_come):
                break
            unit = self.allocator.grain
            spare = self.spare + len(members) * unit if self.running else 0  # each may want a block at once
            if not self.allocator.swap(members, to_host=False, spare=spare):
                first = members[0]
                batch.blocked = Ask(first.stored + 1, first.promise, spare=spare, final=first.final, count=len(members))
                break
            self.swapped.popleft()
            self.running += members
            for seq in members:
                count = seq.due(budget)
                if count and (seq.stored + count <= seq.room or self.allocator.grow(seq, seq.stored + count)):
                    batch.seqs.append(seq)
                    batch.counts.append(count)
                    budget -= count
            if len(members) > 1:
                self.groups.count(self.running)
        return budget

    def _admit(self, batch: Batch, budget: int) -> None:
        while budget > 0 and self.waiting and not self.swapped and len(self.running) < self.max_num_seqs:
            self.commit(batch)  # so that it may share a prefix with what is computed in this step
            count = self.admit_head(batch, budget)
            if not count:
                break
            budget -= count
