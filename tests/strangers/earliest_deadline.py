"""A scheduler for requests that are in different hurries, written after reading `schedulers/base.py`."""

from __future__ import annotations

from bisect import insort
from typing import Any

from schedulers.base import Scheduler
from schedulers.request import Batch, Sequence

MS = 1_000_000


class EarliestDeadline(Scheduler):
    """Who must answer first is admitted first; who can wait is held back, so that steps stay short for those that run.

    A request is urgent when half of the time to its first token is gone. Others join only where nobody runs, or where
    the step then takes no longer than the tightest limit per token of those in it. The scheduler looks at its queue
    when the next one becomes urgent, and every `look_ms` in any case.

    Args:
        ttft_ms, tpot_ms: limits of requests that say none (`ttft_slo_ms`, `tpot_slo_ms`).
        look_ms: how often it wants to be woken.
    """

    supports_groups = False

    def __init__(self, *args: Any, ttft_ms: float = 2000.0, tpot_ms: float = 60.0, look_ms: float = 250.0,
                 **kwargs: Any) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.ttft_ms, self.tpot_ms = ttft_ms, tpot_ms
        self.look_ns = round(look_ms * MS)
        self.next_look = 0

    def enqueue(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=self.due)

    def requeue(self, seq: Sequence) -> None:
        self.enqueue(seq)

    def due(self, seq: Sequence) -> int:
        """When its first token should be there (ns)."""
        limit = getattr(seq.request, "ttft_slo_ms", None)
        return seq.request.arrival_ns + round((self.ttft_ms if limit is None else limit) * MS)

    def urgent_at(self, seq: Sequence) -> int:
        return (seq.request.arrival_ns + self.due(seq)) // 2

    def tightest(self, seqs: list[Sequence]) -> float:
        """The tightest limit per token (ms)."""
        limits = [getattr(seq.request, "tpot_slo_ms", None) for seq in seqs]
        return min(self.tpot_ms if limit is None else limit for limit in limits)

    def schedule(self, now: int) -> Batch:
        self.next_look = (now // self.look_ns + 1) * self.look_ns
        batch = Batch(now=now)
        for seq in sorted(self.running, key=self.due):
            count = min(seq.num_tokens - seq.stored, self.max_num_batched_tokens - batch.num_tokens)
            if seq.row >= 0 and count > 0 and self.grow_or_preempt(seq, seq.stored + count, batch):
                batch.seqs.append(seq)
                batch.counts.append(count)
        while self.waiting and not batch.preempted and len(self.running) < self.max_num_seqs:
            budget = self.max_num_batched_tokens - batch.num_tokens
            if budget <= 0 or not self.wanted(self.waiting[0], batch, budget, now):
                break
            if not self.admit_head(batch, budget):
                break
        return self.close(batch)

    def preempt_for(self, seq: Sequence, batch: Batch) -> None:
        """Who has most time left gives its slots up."""
        self.preempt(max(self.running, key=self.due), batch)

    def wanted(self, head: Sequence, batch: Batch, budget: int, now: int) -> bool:
        if not batch.seqs or self.urgent_at(head) <= now:
            return True
        trial = Batch([*batch.seqs, head], [*batch.counts, min(head.num_tokens, budget)])
        trial.committed = batch.committed
        ns = self.estimate(trial)
        return ns is not None and ns <= self.tightest(trial.seqs) * MS

    def wake_at(self) -> int | None:
        later = [at for at in map(self.urgent_at, self.waiting) if at > self.next_look - self.look_ns]
        return min([*later, self.next_look])
