"""The contract of a scheduler: it chooses the next step's batch, and asks the allocator for the room that takes.

To write a scheduler, subclass `Scheduler` and write `schedule(now)`: choose sequences, get room for them
(`self.allocator.admit` / `grow`, or the helpers `admit_head`, `grow_or_preempt`, `preempt`) and return
`self.close(batch)`. With prefix caching, call `self.commit(batch)` before each admission, so that the admitted sequence
can reuse what earlier sequences of the same step compute. The base class keeps the queues, rejects requests that can
never be served, and ends each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from allocators.base import Allocator, Ask
from allocators.renamed import refuse_renamed
from schedulers.group import Branches, Group, Groups
from schedulers.lengths import predictor
from schedulers.orders import Order, QueueOrder, order_of
from schedulers.quiet import SCHEDULER_HOOKS, Quiet
from schedulers.request import Batch, Rejection, Request, Sequence
from schedulers.reservation import Reservation, on_demand


@dataclass(slots=True)
class PrefixCounts:
    """Tokens looked up and found in the prefix cache at admissions (as vLLM's `PrefixCacheStats`); repeats apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def add(self, seq: Sequence, tokens: int, hit: int) -> None:
        """Count an admission of `seq`: `tokens` were looked up, `hit` of them were found."""
        if seq.preemptions:
            self.preempted_queries += tokens
            self.preempted_hits += hit
        else:
            self.queries += tokens
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
        watermark: share of the pool that an on-demand admission leaves free while other sequences run (0 ... < 1).
        policy: the order of admission: `fcfs`, `priority` (lowest number first), `shortest_first` (shortest output
            first, as `length_predictor` expects it at arrival), `earliest_deadline` (of the first or last token, from
            the request's limits), `longest_prefix` (longest prefix hit first), or a `schedulers.orders.Order`.
            Preempted sequences are ordered too, except with `fcfs` and `longest_prefix`, where they come first.
        length_predictor: expects the output lengths: `oracle`, `history` (the mean of similar requests that have
            finished) or `noisy:SIGMA` (the true length times a lognormal error), see `schedulers.lengths`.
        seed: seed of random choices.

    Attributes:
        waiting: sequences that arrived or were preempted; the head is admitted first. A group waits as its leader.
        swapped: leaders of groups that were swapped to the host; the head comes back first.
        running: admitted sequences in admission order; those of a group are adjacent.
        groups: the groups in `running` (requests with n > 1).
        order: the order that `policy` names; `queue_order` keeps the queue in it.
        predict: predicts the duration of a step, see `estimate`; set by the engine.
        prefix: tokens looked up and found in the prefix cache.
        max_chunk_tokens: most prompt tokens of one sequence in a step.
        reserve_full_isl: whether all tokens of a sequence must fit at admission, even if only a chunk is computed.
        supports_groups: whether requests with n > 1 are served.
        aligns_chunks: whether chunks of a prompt end where `Allocator.chunk_tokens` says.
        async_scheduling: whether `schedule` may be called before the previous step is completed. It then must pass over
            sequences that have nothing left to compute.
    """

    reserve_full_isl = True
    supports_groups = True
    aligns_chunks = False
    async_scheduling = False

    def __init__(self, allocator: Allocator, reservation: Reservation, *, max_model_len: int, max_num_seqs: int = 256,
                 max_num_batched_tokens: int = 2560, chunked_prefill: bool = False,
                 watermark: float = 0.01, policy: str | Order = "fcfs", length_predictor: str = "oracle",
                 seed: int = 0) -> None:  # fmt: skip
        refuse_renamed(type(self), SCHEDULER_HOOKS)
        for key, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"scheduler.{key} must be a whole number of at least 1, got {value!r}")
        if not 0 <= watermark < 1:
            raise ValueError(f"scheduler.watermark must be at least 0 and below 1, got {watermark}")
        self.order = order_of(policy, allocator)
        self.queue_order = QueueOrder(self.order)
        self.lengths = predictor(length_predictor, seed)
        self.allocator = allocator
        self.reservation = reservation
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = self.max_chunk_tokens = max_num_batched_tokens
        self.chunked_prefill = chunked_prefill
        if allocator.aligned_chunks and not self.aligns_chunks:
            raise ValueError(
                f"{type(self).__name__} computes prompts in pieces of any length, but states are kept for reuse at the "
                "ends of blocks only: use scheduler=vllm_v1, or allocator.enable_prefix_caching=false"
            )
        allocator.limit_step_tokens(max_num_batched_tokens)
        unit = allocator.grain  # whole blocks, rounded down, as vLLM does
        spare = int(watermark * (allocator.capacity // unit)) * unit
        self.watermark_slots = spare if reservation is on_demand else 0
        self.waiting: deque[Sequence] = deque()
        self.swapped: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.groups = Groups(allocator)
        self._unreported = 0  # preemptions since the last batch that was not empty
        self.prefix = PrefixCounts()
        self.predict: Callable[[Batch], int | None] | None = None

    # ---- the contract ----------------------------------------------------------------------------------------------

    def add(self, request: Request) -> Rejection | None:
        """Queue an arrived request, or return why it can never be served."""
        reason = self.unservable(request)
        if reason:
            return Rejection(request, reason)
        seq = Sequence(f"request {request.id}", request=request, num_tokens=request.prompt_len,
                       end_tokens=self.end_of(request), expected=self.lengths.expect(request))  # fmt: skip
        if request.n > 1:
            Group(seq)
        self.enqueue(seq)
        return None

    @property
    def num_requests(self) -> int:
        """Requests that wait, run or are swapped out."""
        return len(self.waiting) + len(self.swapped) + len(self.running) - self.groups.siblings

    @property
    def num_waiting(self) -> int:
        """Requests that wait to run, swapped ones included."""
        return len(self.waiting) + len(self.swapped)

    @abstractmethod
    def schedule(self, now: int) -> Batch:
        """The next step's batch at time `now` (ns); an empty batch if nothing can run yet."""

    def complete(self, batch: Batch, tokens: Items[int] | None, branches: Branches | None = None
                 ) -> tuple[list[Sequence], list[Sequence]]:  # fmt: skip
        """End a step, or the last of several steps taken together.

        Args:
            batch: the batch that `schedule` returned.
            tokens: the sampled tokens of those sequences of `batch.seqs` that had one due, in order, groups excluded;
                None = simulated.
            branches: by request id, how the sequences of each group with a token due go on; a simulated group without
                an entry goes on with every sequence.

        Returns:
            The sequences that produced a token, and those that finished (of a group, its leader).
        """
        produced, finished, grouped = [], [], []
        for seq in batch.seqs:
            stored = seq.stored
            if seq.group is not None:
                if seq is seq.group.seqs[0] and self.groups.advance(seq.group, branches, self.running):
                    grouped += seq.group.seqs
                    if seq.done:
                        finished.append(seq)
            elif stored >= seq.num_tokens:
                seq.num_tokens = due = stored + 1
                produced.append(seq)
                if due >= seq.end_tokens:
                    finished.append(seq)
        if tokens is not None:
            for seq, token in zip(produced, tokens, strict=True):
                seq.append_token(token)
        if finished:
            for seq in finished:
                self.lengths.observe(seq.request)
            self.finish([member for seq in finished for member in seq.members] if grouped else finished)
        if grouped:
            self.groups.count(self.running)
        return produced + grouped if grouped else produced, finished

    def wake_at(self) -> int | None:
        """When (ns) the scheduler would act even if nothing arrives or finishes; None = never.

        Called after each `schedule`. Steps taken together end at this time, and an idle engine is woken then. A time in
        the past, or one returned while the scheduler has no request, has no effect.
        """
        return None

    def quiet(self, batch: Batch) -> Quiet | None:
        """How long the next calls of `schedule` would only return the next token of each sequence of `batch`.

        None means unknown: always right, but simulation then takes every step by itself. Called after `schedule` and
        before `complete`; changes nothing. Not called if a subclass of the class that defines it overrides anything
        else of that class (see `schedulers.quiet.vouched`).
        """
        return None

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def enqueue(self, seq: Sequence) -> None:
        """Add an arrived sequence to `waiting`: at the end, or where the order puts it."""
        self.queue_order.insert(self.waiting, seq)

    def requeue(self, seq: Sequence) -> None:
        """Add a preempted sequence to `waiting`: at the front, or where the order puts it."""
        if self.order.preempted_first:
            self.waiting.appendleft(seq)
        else:
            self.enqueue(seq)

    def end_of(self, request: Request) -> int:
        """Prompt and output tokens of `request` when it finishes."""
        return request.prompt_len + request.output_len

    def unservable(self, request: Request) -> str | None:
        """Why `request` can never be served, or None."""
        total = self.end_of(request)
        if total > self.max_model_len:
            return f"prompt + output = {total} tokens > max_model_len = {self.max_model_len}"
        promise = self.reservation(request, self.max_model_len)
        stored = max(promise, total - 1)
        if promise:
            fits = self.allocator.footprint(stored) is not None
        else:
            fits = self.allocator.fits(request.prompt_len, stored, self.reserve_full_isl, self.max_chunk_tokens)
        if not fits:
            promised = f", promised to a request of {total - 1}," if stored > total - 1 else ""
            takes = self.allocator.describe_footprint(stored)
            return f"{stored} tokens{promised} never fit the KV pool of {self.allocator.capacity} slots" + (
                f": they take {takes}" if takes else ""
            )
        if not self.chunked_prefill and total - 1 > self.max_num_batched_tokens:
            return (
                f"chunked prefill is off and {total - 1} tokens (prompt and what a preemption would recompute) exceed "
                f"max_num_batched_tokens = {self.max_num_batched_tokens}"
            )
        if request.n == 1:
            return None
        if not self.supports_groups:
            return f"n = {request.n}: {type(self).__name__} serves requests that want a single answer"
        limits = {"max_num_seqs": self.max_lanes, "max_num_batched_tokens": self.max_num_batched_tokens}
        return self.groups.unservable(request, stored, total - 1, limits)

    @property
    def max_lanes(self) -> int:
        """Most sequences that may run."""
        return self.max_num_seqs

    def admit_head(self, batch: Batch, budget: int, limit: int = 0) -> int:
        """Try to admit the head of the queue with at most `budget` new tokens.

        While other sequences run, the watermark stays free.

        Args:
            limit: largest chunk of a prompt, whatever the budget; 0 = no limit.

        Returns:
            The tokens scheduled for it; 0 if it has to wait, with `batch.blocked` set if memory was the reason.
        """
        if not self.queue_order.sorted:
            self.queue_order.move_first_to_front(self.waiting, batch.now)
        seq = self.waiting[0]
        if (seq.group or self.groups.to_come) and self.groups.exceeds_lanes(seq, self.running, self.max_lanes):
            return 0
        shortfall = self.shortfall(seq, budget)
        if shortfall:
            asked = self.allocator.unheld + shortfall
            batch.blocked = Ask(seq.num_tokens, spare=max(asked - seq.num_tokens, 0), final=seq.end_tokens - 1)
            return 0
        ask = self._ask(seq, budget, limit)
        if ask is None:
            return 0
        hit = ask.hit.tokens
        count = ask.tokens - hit
        admitted = [seq] if seq.group is None else seq.group.join(self.allocator, ask)
        if self.allocator.admit(admitted, ask) is None:
            batch.blocked = ask
            return 0
        self.prefix.add(seq, seq.tokens_to_admit, hit)
        if not seq.preemptions:
            seq.cached_tokens = hit
        self.waiting.popleft()
        self.running += admitted
        batch.admitted.append(seq)
        batch.seqs.append(seq)
        batch.counts.append(count)
        if seq.group is not None:
            self.groups.count(self.running)
        return count

    def _ask(self, seq: Sequence, budget: int, limit: int = 0) -> Ask | None:
        """The admission to ask for a waiting sequence; None if the budget is too small for it."""
        total = seq.tokens_to_admit
        hit = self.allocator.lookup(seq, total - 1)  # at least one token is computed, for its logits
        count = total - hit.tokens
        if 0 < limit < count:
            count = limit
        if count > budget:
            if not self.chunked_prefill:
                return None
            count = budget
        if self.allocator.aligned_chunks:
            count = self.allocator.chunk_tokens(seq, hit, count, limit or self.max_num_batched_tokens)
            if not count:
                return None
        return Ask(
            tokens=hit.tokens + count,
            promise=self.reservation(seq.request, self.max_model_len),
            must_fit=total if self.reserve_full_isl else 0,
            spare=self.watermark_slots if self.running else 0,
            final=seq.end_tokens - 1,
            hit=hit,
        )

    def arrivals_could_join(self) -> bool:
        """Whether a request that arrives now could join the next batch, or would be predicted another length later."""
        if self.lengths.learns:
            return True
        return len(self.running) < self.max_num_seqs and (self.queue_order.overtakes or not self.waiting)

    def refusal_ahead(self, limit: int = 0) -> Ask | None:
        """What the queue's head is sure to be refused while the next steps only decode; None = it might be admitted.

        Asked after a preemption has put another sequence at the head. No slots become free in such steps.
        """
        seq, budget = self.waiting[0], self.max_num_batched_tokens - len(self.running)
        if seq.group is not None or self.groups.to_come or budget <= 0 or not self.queue_order.sorted:
            return None
        if type(self).shortfall is not Scheduler.shortfall:  # the shortfall may change in each step
            return None
        ask = self._ask(seq, budget, limit)
        return ask if ask is not None and self.allocator.exceeds_free(ask) else None

    def shortfall(self, seq: Sequence, budget: int) -> int:
        """Slots that the pool would lack at some later time if `seq` were admitted now.

        For schedulers that look ahead. Called for the head of the queue with the step's remaining token budget; 0 = the
        sequence may be admitted if there is room for it now.
        """
        return 0

    def estimate(self, batch: Batch) -> int | None:
        """How long a step with the current `batch` would take (ns); None if there is no prediction.

        A simulated device predicts its own step times exactly, apart from moves and random variation.
        """
        if self.predict is None:
            return None
        planned = range(batch.committed, len(batch.seqs))
        try:
            for i in planned:
                batch.seqs[i].stored += batch.counts[i]
            return self.predict(Batch(batch.seqs, batch.counts, batch.idle))
        finally:
            for i in planned:
                batch.seqs[i].stored -= batch.counts[i]

    def grow_or_preempt(self, seq: Sequence, tokens: int, batch: Batch) -> bool:
        """Get a running sequence room for `tokens` in all, preempting others if necessary.

        Skip the call while ``seq.room >= tokens``.

        Returns:
            False if the sequence itself was preempted.
        """
        while tokens > seq.room and not self.allocator.grow(seq, tokens):
            self.preempt_for(seq, batch)
            if seq.row < 0:
                return False
        return True

    def preempt_for(self, seq: Sequence, batch: Batch) -> None:
        """Free some slots because `seq` was refused room: preempt the last admitted sequence, maybe `seq` itself."""
        self.preempt(self.running[-1], batch)

    def preempt(self, seq: Sequence, batch: Batch) -> None:
        """Free all slots of `seq` and its group; it waits, keeps its outputs, and will be recomputed."""
        leader = seq.members[0]
        for member in self.remove_running(seq, batch):
            member.computed_before = max(member.computed_before, member.stored)
            self.allocator.free(member)
        if leader.group:
            leader.group.forked = False
        self.requeue(leader)

    def remove_running(self, seq: Sequence, batch: Batch) -> list[Sequence]:
        """Remove `seq` and its group from `running` and from `batch`; returns the sequences that ran."""
        seq.members[0].preemptions += 1
        batch.preemptions += 1
        batch.preempted.append(seq.members[0])
        members = [seq] if seq.group is None else [member for member in seq.members if member in self.running]
        for member in members:
            self.running.remove(member)
            batch.drop(member)
        if seq.group is not None:
            self.groups.count(self.running)
        return members

    def commit(self, batch: Batch) -> None:
        """Commit what was scheduled since the last call to the allocator; its full blocks can be reused from now on."""
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
        """Commit what was scheduled and collect its moves. An empty batch is not executed: its moves stay queued."""
        self.commit(batch)
        self._unreported += batch.preemptions
        if batch.seqs:
            batch.moves, batch.delay_ns = self.allocator.take_moves(), self.allocator.take_delay()
            batch.preemptions, self._unreported = self._unreported, 0
        batch.saved = self.allocator.saved_slots
        batch.grouped = self.groups.siblings > 0 or self.groups.unforked > 0
        return batch

    def finish(self, finished: Items[Sequence]) -> None:
        """Free the slots of finished sequences."""
        for seq in finished:
            self.allocator.free(seq)
            seq.chain = None
        self.running = [seq for seq in self.running if seq.row >= 0]


def decodes_next(batch: Batch) -> bool:
    """Whether every sequence of the batch has a token due when the step ends."""
    return not any(seq.stored < seq.num_tokens for seq in batch.seqs)
