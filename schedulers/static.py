"""Static batching (request level): a batch runs until its last sequence has finished, and none joins meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any

from allocators.base import AllocatorError
from schedulers.base import Scheduler, decodes_next
from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence


class Static(Scheduler):
    """The earliest arrivals, up to `max_num_seqs` and what memory allows, run to completion together.

    Prompts are computed first, in as many steps as the token budget needs, then all lanes decode. Finished lanes keep
    their slots and are still computed until the batch ends. If a lane can't grow, the last admitted live lane is
    preempted and leads the next batch; if there is only one live lane, the batch ends and this lane becomes lane 0 of
    the next batch and keeps its slots. Prompts are not padded, which favours this baseline.

    Args:
        max_wait_s: how long the oldest waiting request may wait for a fuller batch (0 = start with what is there).
        compute_finished: whether finished lanes are computed, as servers without a way to drop them do.
    """

    def __init__(self, *args: Any, max_wait_s: float = 0.0, compute_finished: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not 0 <= max_wait_s < float("inf"):
            raise ValueError(f"scheduler.max_wait_s must be a finite number of seconds >= 0, got {max_wait_s}")
        self.max_wait_ns = round(max_wait_s * 1e9)
        self.compute_finished = compute_finished
        self.held: list[Sequence] = []  # finished lanes of the running batch
        self._wake: int | None = None

    def schedule(self, now: int) -> Batch:
        batch = Batch(now=now)
        if not self.running and self._may_start(now):
            self._form(batch)
        self._step(batch)
        if batch.preempted and not self.running:  # a lone group that fragments the pool itself starts over
            self._form(batch)
            self._step(batch)
            batch.preempted = [seq for seq in batch.preempted if seq.row < 0]
        return self.close(batch)

    def wake_at(self) -> int | None:
        return self._wake

    def quiet(self, batch: Batch) -> Quiet | None:
        """All live lanes are in the batch, no sequence joins it, and no new batch was tried."""
        if len(batch.seqs) < len(self.running) or batch.preempted or batch.blocked or self.groups.branching:
            return None
        if len(batch.idle) < len(self.held) * self.compute_finished or not decodes_next(batch):
            return None
        return Quiet(arrivals=self.lengths.learns)

    def finish(self, finished: Items[Sequence]) -> None:
        """Hold finished lanes until all lanes are finished; then free them all."""
        for seq in finished:
            self.allocator.free(seq, hold=True)
            seq.chain = None
        self.held += finished
        self.running = [seq for seq in self.running if not seq.finished]
        if not self.running:
            self._free_held()

    @property
    def max_lanes(self) -> int:
        """Limited by the token budget too, because all lanes decode in one step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    def _step(self, batch: Batch) -> None:
        """Schedule prompts while there are any with room, else a token of every lane."""
        if any(seq.num_new_tokens(self.max_num_batched_tokens) > 1 for seq in self.running):
            self._prefill(batch)
        if not batch.seqs:
            self._decode(batch)
            if self.compute_finished:
                batch.idle = list(self.held)

    def _may_start(self, now: int) -> bool:
        """Whether a new batch starts now, or waits for more arrivals."""
        self._wake = None
        return bool(self.waiting) and (self._fill(self.waiting) or self._due(now))

    def _fill(self, seqs: Iterable[Sequence]) -> bool:
        """Whether these sequences, with their groups, would fill a batch."""
        return any(lanes >= self.max_lanes for lanes in accumulate(len(seq.members) for seq in seqs))

    def _due(self, now: int) -> bool:
        """Whether the oldest waiting request has waited `max_wait_s`; if not, set the wake-up time."""
        if not self.max_wait_ns:
            return True
        due = min(seq.request.arrival_ns for seq in self.waiting) + self.max_wait_ns
        if now < due:
            self._wake = due
        return now >= due

    def _form(self, batch: Batch) -> None:
        """Admit the head of the queue while lanes and memory last. The token budget shapes steps, not batches."""
        scheduled = len(batch.seqs)
        while self.waiting and len(self.running) < self.max_lanes:
            if not self.admit_head(batch, self.max_model_len):
                break
        del batch.seqs[scheduled:], batch.counts[scheduled:]

    def _prefill(self, batch: Batch) -> None:
        """Prompts in admission order within the token budget (whole ones, unless they may be chunked)."""
        budget = self.max_num_batched_tokens
        for seq in list(self.running):
            rest = seq.num_new_tokens(self.max_num_batched_tokens) if seq.row >= 0 else 0
            count = min(rest, budget)
            if rest <= 1:
                continue
            if not count or (count < rest and not self.chunked_prefill):
                break
            if self.grow_or_preempt(seq, seq.stored + count, batch):
                batch.seqs.append(seq)
                batch.counts.append(count)
                budget -= count

    def _decode(self, batch: Batch) -> None:
        """The next token of every live lane."""
        held = len(self.held)
        for seq in list(self.running):
            if seq.row < 0 or not seq.num_new_tokens(self.max_num_batched_tokens):
                continue
            if self.grow_or_preempt(seq, seq.stored + 1, batch):
                batch.seqs.append(seq)
                batch.counts.append(1)
        if len(self.held) < held:  # the remaining lane leads the next batch: fill it
            self._form(batch)

    def preempt_for(self, seq: Sequence, batch: Batch) -> None:
        """Preempt the last lane; if only one lane is live, end the batch and free its finished lanes."""
        if self.running[-1].members[0] is not self.running[0].members[0]:
            self.preempt(self.running[-1], batch)
        elif self.held:
            self._free_held()
        elif seq.group is not None:
            self.preempt(seq, batch)
        else:
            raise AllocatorError(f"{seq.name} has the pool to itself and is refused room for a token more")

    def _free_held(self) -> None:
        for lane in self.held:
            self.allocator.free(lane)
            lane.chain = None
        self.held.clear()
