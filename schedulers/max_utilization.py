"""As many as fit now, whatever comes: TensorRT-LLM's capacity policy `MAX_UTILIZATION`.

Its rules are those of `cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp` (2025): who does not fit has the last
started one behind it paused, for blocks as for places in the batch, and the pass ends where the first was paused.
"""

from __future__ import annotations

from typing import Any

from schedulers.continuous import Continuous
from schedulers.orders import ORDERS
from schedulers.quiet import Quiet
from schedulers.request import Batch


class MaxUtilization(Continuous):
    """One pass over all sequences in the order of the queue; where slots are short, the last started one is paused.

    The order is that of arrival (`fcfs`) or the policy's, for running, paused and new sequences alike. So a paused one
    returns to its old place, and with `priority` or `shortest_first` one that waits pauses those behind it that run,
    for their slots or their places (where `continuous` lets them finish). Nobody from a paused one on is started in
    that step. No slots are kept free (`watermark` 0). With `fcfs` it is `continuous` without a watermark, since who
    came last was admitted last.
    """

    def __init__(self, *args: Any, watermark: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, watermark=watermark, **kwargs)
        if self.prefill_first:
            raise ValueError("scheduler.prefill_first: one pass over all sequences has no prompts first")
        self.ordered = not self.order.preempted_first  # else who came last was admitted last
        if self.preemption == "swap" and self.ordered:
            name = next((name for name, cls in ORDERS.items() if type(self.order) is cls), type(self.order).__name__)
            raise ValueError(
                f"scheduler.preemption=swap with scheduler.policy={name}: a pass in that order brings nobody "
                "back from the host; use preemption=recompute, or policy=fcfs"
            )
        self.supports_groups = not self.ordered  # a pass takes single sequences in order

    def schedule(self, now: int) -> Batch:
        return self.close(self._pass(now)) if self.ordered else super().schedule(now)

    def quiet(self, batch: Batch) -> Quiet | None:
        """With an order, who was paused may pause others in the next step, and one that changes pauses anybody."""
        return None if self.ordered and (batch.preempted or not self.queue_order.sorted) else super().quiet(batch)

    def arrivals_could_join(self) -> bool:
        """With an order, a newcomer may pause one that runs."""
        return self.ordered or super().arrivals_could_join()

    def _pass(self, now: int) -> Batch:
        """Give all sequences in their order, running or waiting, their next tokens while slots and tokens last."""
        batch, budget, at, closed = Batch(now=now), self.max_num_batched_tokens, 0, False
        running, waiting, key = self.running, self.waiting, self.order.key
        if not self.queue_order.sorted:
            running.sort(key=lambda seq: key(seq, now))
        while True:
            if waiting and not closed and not self.queue_order.sorted:
                self.queue_order.move_first_to_front(waiting, now)
            if not closed and waiting and (at >= len(running) or key(waiting[0], now) < key(running[at], now)):
                before = len(running)
                count = 0 if waiting[0] in batch.preempted else self._start(batch, budget, at)
                if count:
                    at += len(running) - before
                    budget -= count
                elif at < before and (batch.blocked or before >= self.max_num_seqs):
                    self.preempt(running[-1], batch)
                else:
                    closed = True
            elif at < len(running):
                budget -= self._continue(batch, budget, at)
                at += 1
            else:
                return batch

    def _start(self, batch: Batch, budget: int, at: int) -> int:
        """Admit the queue's head to the place `at` among the running; the tokens scheduled for it, 0 = it waits."""
        batch.blocked = None
        running = self.running
        if budget <= 0 or len(running) >= self.max_num_seqs:
            return 0
        self.commit(batch)
        before = len(running)
        count = self.admit_head(batch, budget)
        joined = running[before:]
        del running[before:]
        running[at:at] = joined
        return count

    def _continue(self, batch: Batch, budget: int, at: int) -> int:
        """Schedule the next tokens of a running sequence, pausing the last ones for its slots; how many tokens."""
        seq = self.running[at]
        count = min(seq.num_tokens - seq.stored, budget)
        if count <= 0 or not self.grow_or_preempt(seq, seq.stored + count, batch):
            return 0
        batch.seqs.append(seq)
        batch.counts.append(count)
        return count
