"""The contract of a scheduler: who is in the next step's batch. It asks an allocator for room and nothing else for it.

To write a scheduler, subclass `Scheduler` and write `schedule(now)`: choose sequences, get room for them
(`self.allocator.admit` / `grow`, or the helpers `admit_head`, `make_room`, `preempt`) and return `self.close(batch)`.
Queues, rejection of what can never be served, and the end of a step are done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence as Items

from allocators.base import Allocator, Ask
from schedulers.request import Batch, Rejection, Request, Sequence
from schedulers.reservation import Reservation, on_demand


class Scheduler(ABC):
    """Queues and bookkeeping shared by all schedulers.

    Args:
        allocator: places the KV cache.
        reservation: slots promised at admission, as a function of the request and `max_model_len`.
        max_model_len: longest sequence, prompt and output, in tokens.
        max_num_seqs: most sequences in a batch.
        max_num_batched_tokens: most tokens computed in a step.
        chunked_prefill: whether a prompt may be computed in pieces.
        watermark: share of the pool that an on-demand admission leaves free while others run (0 ... < 1).

    Attributes:
        waiting: arrived or preempted, not admitted; the head is served first.
        running: admitted, in admission order.
    """

    arrivals_matter = True

    def __init__(self, allocator: Allocator, reservation: Reservation, *, max_model_len: int, max_num_seqs: int = 256,
                 max_num_batched_tokens: int = 2560, chunked_prefill: bool = False,
                 watermark: float = 0.01) -> None:  # fmt: skip
        for key, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if value < 1:
                raise ValueError(f"scheduler.{key} must be at least 1, got {value}")
        if not 0 <= watermark < 1:
            raise ValueError(f"scheduler.watermark must be at least 0 and below 1, got {watermark}")
        self.allocator = allocator
        self.reservation = reservation
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.chunked_prefill = chunked_prefill
        unit = allocator.block_size or 1  # whole blocks, rounded down, as vLLM does
        spare = int(watermark * (allocator.capacity // unit)) * unit
        self.spare = spare if reservation is on_demand else 0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    # ---- the contract ----------------------------------------------------------------------------------------------

    def add(self, request: Request) -> Rejection | None:
        """Queue an arrived request, or say why it can never be served."""
        reason = self.unservable(request)
        if reason:
            return Rejection(request, reason)
        end = request.prompt_len + request.output_len
        self.waiting.append(
            Sequence(f"request {request.id}", request=request, num_tokens=request.prompt_len, end_tokens=end)
        )
        return None

    @abstractmethod
    def schedule(self, now: int) -> Batch:
        """The next step's batch at time `now` (ns); an empty one when nothing can run yet."""

    def complete(self, batch: Batch, tokens: Items[int] | None) -> tuple[list[Sequence], list[Sequence]]:
        """End a step: (sequences that produced a token, those of them that finished).

        Args:
            batch: what `schedule` returned.
            tokens: the sampled token of each sequence of `batch.seqs` for which one was due, in order; None = simulated.
        """
        produced, finished = [], []
        for seq in batch.seqs:
            if seq.stored == seq.num_tokens:
                seq.num_tokens += 1
                produced.append(seq)
                if seq.num_tokens >= seq.end_tokens:
                    finished.append(seq)
        if tokens is not None:
            for seq, token in zip(produced, tokens, strict=True):
                seq.outputs.append(token)
        if finished:
            self.finish(finished)
        return produced, finished

    def wake_at(self) -> int | None:
        """When (ns) the scheduler would act although nothing arrives or finishes; None = never."""
        return None

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def unservable(self, request: Request) -> str | None:
        """Why `request` can never be served, or None."""
        total = request.prompt_len + request.output_len
        if total > self.max_model_len:
            return f"prompt + output = {total} tokens > max_model_len = {self.max_model_len}"
        stored = max(self.reservation(request, self.max_model_len), total - 1)
        if self.allocator.footprint(stored) is None:
            return f"{stored} tokens never fit the KV pool of {self.allocator.capacity} slots"
        if not self.chunked_prefill and total - 1 > self.max_num_batched_tokens:
            return (
                f"chunked prefill is off and {total - 1} tokens (prompt and what a preemption would recompute) exceed "
                f"max_num_batched_tokens = {self.max_num_batched_tokens}"
            )
        return None

    def admit_head(self, batch: Batch, budget: int, spare: int | None = None) -> int:
        """Try to admit the head of the queue with at most `budget` new tokens.

        Returns:
            The tokens scheduled for it; 0 when it has to wait, with `batch.blocked` set if memory was the reason.
        """
        seq = self.waiting[0]
        new = seq.num_tokens
        if new > budget and not self.chunked_prefill:
            return 0
        ask = Ask(
            tokens=min(new, budget),
            promise=self.reservation(seq.request, self.max_model_len),
            gate=new,
            spare=(self.spare if self.running else 0) if spare is None else spare,
            final=seq.end_tokens - 1,
        )
        hit = self.allocator.admit([seq], ask)
        if hit is None:
            batch.blocked = ask
            return 0
        self.waiting.popleft()
        self.running.append(seq)
        batch.admitted.append(seq)
        count = min(new - hit, budget)
        batch.seqs.append(seq)
        batch.counts.append(count)
        return count

    def preempt(self, seq: Sequence, batch: Batch) -> None:
        """Take all memory of `seq` away; it waits at the front and will be computed again, its outputs kept."""
        seq.preemptions += 1
        seq.computed_before = max(seq.computed_before, seq.stored)
        self.allocator.free(seq)
        self.running.remove(seq)
        self.waiting.appendleft(seq)
        batch.preempted.append(seq)

    def close(self, batch: Batch) -> Batch:
        """Commit what was scheduled and collect the moves it needs."""
        for seq, count in zip(batch.seqs, batch.counts, strict=True):
            if seq.stored < seq.computed_before:
                seq.recomputed += min(count, seq.computed_before - seq.stored)
        self.allocator.commit(batch.seqs, batch.counts)
        batch.moves = self.allocator.take_moves()
        return batch

    def finish(self, finished: Items[Sequence]) -> None:
        """Free what finished sequences held."""
        for seq in finished:
            self.allocator.free(seq)
        self.running = [seq for seq in self.running if seq.row >= 0]
