"""The contract of a scheduler: who is in the next step's batch. It asks an allocator for room and nothing else for it.

To write a scheduler, subclass `Scheduler` and write `schedule(now)`: choose sequences, get room for them
(`self.allocator.admit` / `grow`, or the helpers `admit_head`, `preempt`) and return `self.close(batch)`. Where
sequences may share a prefix, `self.commit(batch)` before each admission lets it find what the step computes before it.
Queues, rejection of what can never be served, and the end of a step are done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice

from allocators.base import Allocator, Ask
from schedulers.policy import ORDERS
from schedulers.request import Batch, Rejection, Request, Sequence
from schedulers.reservation import Reservation, on_demand

LOOK_AHEAD = 128  # waiting sequences that `longest_prefix` compares at an admission


@dataclass(slots=True)
class PrefixCounts:
    """Tokens looked for and found in the pool at successful admissions; those after a preemption are counted apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def add(self, seq: Sequence, hit: int) -> None:
        """`seq` was admitted with `hit` of its tokens already there."""
        if seq.preemptions:
            self.preempted_queries += seq.num_tokens
            self.preempted_hits += hit
        else:
            self.queries += seq.num_tokens
            self.hits += hit


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
        policy: who is admitted first: `fcfs`, `priority` (the lowest number), `shortest_first` (the shortest answer, as
            an oracle knows it) or `longest_prefix` (the most tokens in the pool); preempted sequences go by it too,
            but for `fcfs` and `longest_prefix`, where they come first.

    Attributes:
        waiting: arrived or preempted, not admitted; the head is served first.
        running: admitted, in admission order.
        prefix: tokens looked for and found in the pool at admission.
        reserve_full_isl: whether all tokens of a sequence must fit at admission, though only a piece is computed.
    """

    reserve_full_isl = True

    def __init__(self, allocator: Allocator, reservation: Reservation, *, max_model_len: int, max_num_seqs: int = 256,
                 max_num_batched_tokens: int = 2560, chunked_prefill: bool = False,
                 watermark: float = 0.01, policy: str = "fcfs") -> None:  # fmt: skip
        for key, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if value < 1:
                raise ValueError(f"scheduler.{key} must be at least 1, got {value}")
        if not 0 <= watermark < 1:
            raise ValueError(f"scheduler.watermark must be at least 0 and below 1, got {watermark}")
        if policy not in ORDERS:
            raise ValueError(f"scheduler.policy must be one of {', '.join(ORDERS)}, got {policy!r}")
        self.policy = policy
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
        self.prefix = PrefixCounts()

    # ---- the contract ----------------------------------------------------------------------------------------------

    def add(self, request: Request) -> Rejection | None:
        """Queue an arrived request, or say why it can never be served."""
        reason = self.unservable(request)
        if reason:
            return Rejection(request, reason)
        end = self.end_of(request)
        self.enqueue(Sequence(f"request {request.id}", request=request, num_tokens=request.prompt_len, end_tokens=end))
        return None

    @abstractmethod
    def schedule(self, now: int) -> Batch:
        """The next step's batch at time `now` (ns); an empty one when nothing can run yet."""

    def complete(self, batch: Batch, tokens: Items[int] | None) -> tuple[list[Sequence], list[Sequence]]:
        """End a step, or a jump of many: (sequences that produced a token in each, those that finished in the last).

        Args:
            batch: what `schedule` returned.
            tokens: the sampled token of each sequence of `batch.seqs` that had one due, in order; None = simulated.
        """
        produced, finished = [], []
        for seq in batch.seqs:
            stored = seq.stored
            if stored >= seq.num_tokens:
                seq.num_tokens = stored + 1
                produced.append(seq)
                if stored + 1 >= seq.end_tokens:
                    finished.append(seq)
        if tokens is not None:
            for seq, token in zip(produced, tokens, strict=True):
                seq.outputs.append(token)
        if finished:
            self.finish(finished)
        return produced, finished

    def steady(self, batch: Batch) -> bool:
        """Whether `schedule` would go on with the next token of each sequence of `batch`, in the same order and nothing
        else, until one finishes, a request arrives (if `arrivals_matter`) or one is refused room. False is always
        right, and slow in simulation.
        """
        return False

    @property
    def arrivals_matter(self) -> bool:
        """Whether a request that arrives now could change the next batch. True is always right, and slower."""
        return True

    def wake_at(self) -> int | None:
        """When (ns) the scheduler would act although nothing arrives or finishes; None = never."""
        return None

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def enqueue(self, seq: Sequence) -> None:
        """Let an arrived sequence wait: behind all others, or where the policy puts it."""
        order = ORDERS[self.policy]
        if order:
            insort(self.waiting, seq, key=order)
        else:
            self.waiting.append(seq)

    def requeue(self, seq: Sequence) -> None:
        """Let a preempted sequence wait: before all others, or where the policy puts it."""
        if ORDERS[self.policy]:
            self.enqueue(seq)
        else:
            self.waiting.appendleft(seq)

    def end_of(self, request: Request) -> int:
        """Prompt and output tokens with which `request` is finished."""
        return request.prompt_len + request.output_len

    def unservable(self, request: Request) -> str | None:
        """Why `request` can never be served, or None."""
        total = self.end_of(request)
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

    def admit_head(self, batch: Batch, budget: int, spare: int | None = None, limit: int = 0) -> int:
        """Try to admit the head of the queue with at most `budget` new tokens.

        Args:
            spare: slots that must stay free; default: the watermark, unless nothing runs.
            limit: cuts a prompt into pieces of so many tokens, whatever the budget; 0 = no limit.

        Returns:
            The tokens scheduled for it; 0 when it has to wait, with `batch.blocked` set if memory was the reason.
        """
        if self.policy == "longest_prefix":
            self._longest_prefix_first()
        seq = self.waiting[0]
        hit = self.allocator.lookup(seq, seq.num_tokens - 1)  # one is computed at least: its logits are the answer
        count = seq.num_tokens - hit.tokens
        if 0 < limit < count:
            count = limit
        if count > budget:
            if not self.chunked_prefill:
                return 0
            count = budget
        ask = Ask(
            tokens=hit.tokens + count,
            promise=self.reservation(seq.request, self.max_model_len),
            gate=seq.num_tokens if self.reserve_full_isl else 0,
            spare=(self.spare if self.running else 0) if spare is None else spare,
            final=seq.end_tokens - 1,
            hit=hit,
        )
        if self.allocator.admit([seq], ask) is None:
            batch.blocked = ask
            return 0
        self.prefix.add(seq, hit.tokens)
        if not seq.preemptions:
            seq.cached_tokens = hit.tokens
        self.waiting.popleft()
        self.running.append(seq)
        batch.admitted.append(seq)
        batch.seqs.append(seq)
        batch.counts.append(count)
        return count

    def _longest_prefix_first(self) -> None:
        """Bring the one of the first waiting sequences that finds most of its tokens in the pool to the front."""
        if not self.waiting[0].preemptions:
            lookup = self.allocator.lookup
            seq = max(islice(self.waiting, LOOK_AHEAD), key=lambda s: lookup(s, s.num_tokens - 1).tokens)
            if seq is not self.waiting[0]:
                self.waiting.remove(seq)
                self.waiting.appendleft(seq)

    def preempt(self, seq: Sequence, batch: Batch) -> None:
        """Take all memory of `seq` away; it waits at the front and will be computed again, its outputs kept."""
        seq.preemptions += 1
        seq.computed_before = max(seq.computed_before, seq.stored)
        self.allocator.free(seq)
        self.running.remove(seq)
        self.requeue(seq)
        batch.preempted.append(seq)

    def commit(self, batch: Batch) -> None:
        """Tell the allocator what was scheduled since the last call; from now on its full blocks can be reused."""
        seqs, counts = batch.seqs, batch.counts
        if batch.committed == len(seqs):
            return
        if batch.committed:
            seqs, counts = seqs[batch.committed :], counts[batch.committed :]
        for i, seq in enumerate(seqs):
            if seq.stored < seq.computed_before:
                seq.recomputed += min(counts[i], seq.computed_before - seq.stored)
        self.allocator.commit(seqs, counts)
        batch.committed = len(batch.seqs)

    def close(self, batch: Batch) -> Batch:
        """Commit what was scheduled and collect the moves it needs."""
        self.commit(batch)
        batch.moves = self.allocator.take_moves()
        batch.delay_ns = self.allocator.take_delay()
        return batch

    def finish(self, finished: Items[Sequence]) -> None:
        """Free what finished sequences held."""
        for seq in finished:
            self.allocator.free(seq)
            seq.chain = None
        self.running = [seq for seq in self.running if seq.row >= 0]


def decodes_next(batch: Batch) -> bool:
    """Whether every sequence of the batch has its next token due after it."""
    return not any(seq.stored < seq.num_tokens for seq in batch.seqs)
