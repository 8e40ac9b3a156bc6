"""The contract of a scheduler: who is in the next step's batch. It asks an allocator for room and nothing else for it.

To write a scheduler, subclass `Scheduler` and write `schedule(now)`: choose sequences, get room for them
(`self.allocator.admit` / `grow`, or the helpers `admit_head`, `preempt`) and return `self.close(batch)`. Where
sequences may share a prefix, `self.commit(batch)` before each admission lets it find what the step computes before it.
Queues, rejection of what can never be served, and the end of a step are done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from allocators.base import Allocator, Ask
from schedulers.group import Branches, Group, Groups
from schedulers.lengths import predictor
from schedulers.orders import Line, Order, order_of
from schedulers.quiet import Quiet, refuse_renamed
from schedulers.request import Batch, Rejection, Request, Sequence
from schedulers.reservation import Reservation, on_demand


@dataclass(slots=True)
class PrefixCounts:
    """Tokens looked for and found in the pool at successful admissions; those after a preemption are counted apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def add(self, seq: Sequence, tokens: int, hit: int) -> None:
        """`seq` was admitted; `tokens` of it were looked for, and `hit` of them were there."""
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
        watermark: share of the pool that an on-demand admission leaves free while others run (0 ... < 1).
        policy: who is admitted first: `fcfs`, `priority` (the lowest number), `shortest_first` (the shortest answer, as
            `length_predictor` tells it at arrival), `earliest_deadline` (of a first or last token, as the request says)
            or `longest_prefix` (the most tokens in the pool), or any `schedulers.orders.Order`; preempted sequences go
            by it too, but for `fcfs` and `longest_prefix`, where they come first.
        length_predictor: who tells how long an answer will be: `oracle`, `history` (the mean of like ones that have
            ended) or `noisy:SIGMA` (the truth times a lognormal error), see `schedulers.lengths`.
        seed: of whatever is drawn.

    Attributes:
        waiting: arrived or preempted, not admitted; the head is served first. A group is there through its leader.
        swapped: leaders whose groups wait on the host, the head comes back first.
        running: admitted, in admission order, those of a group side by side.
        groups: the groups in `running`, of requests that want several answers.
        order: the order that `policy` means, and `line`, how the queue is kept in it.
        predict: who tells how long a step would take, see `estimate`; set by whoever runs the scheduler.
        prefix: tokens looked for and found in the pool at admission.
        piece_tokens: tokens of a prompt that are computed in one step, while others are there.
        reserve_full_isl: whether all tokens of a sequence must fit at admission, though only a piece is computed.
        ahead: whether it may be asked for the next step before the one under way is completed; then it passes over a
            sequence that has nothing left to compute.
    """

    reserve_full_isl = True
    several_answers = True  # whether it serves requests with n > 1
    cuts_pieces = False  # whether its pieces of a prompt end where the allocator wants them to
    ahead = False

    def __init__(self, allocator: Allocator, reservation: Reservation, *, max_model_len: int, max_num_seqs: int = 256,
                 max_num_batched_tokens: int = 2560, chunked_prefill: bool = False,
                 watermark: float = 0.01, policy: str | Order = "fcfs", length_predictor: str = "oracle",
                 seed: int = 0) -> None:  # fmt: skip
        refuse_renamed(type(self))
        for key, value in (("max_num_seqs", max_num_seqs), ("max_num_batched_tokens", max_num_batched_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"scheduler.{key} must be a whole number of at least 1, got {value!r}")
        if not 0 <= watermark < 1:
            raise ValueError(f"scheduler.watermark must be at least 0 and below 1, got {watermark}")
        self.order = order_of(policy, allocator)
        self.line = Line(self.order)
        self.lengths = predictor(length_predictor, seed)
        self.allocator = allocator
        self.reservation = reservation
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = self.piece_tokens = max_num_batched_tokens
        self.chunked_prefill = chunked_prefill
        if allocator.cuts and not self.cuts_pieces:
            raise ValueError(
                f"{type(self).__name__} computes prompts in pieces of any length, but states are kept for reuse at the "
                "ends of blocks only: use scheduler=vllm_v1, or allocator.enable_prefix_caching=false"
            )
        allocator.expect_steps(max_num_batched_tokens)
        unit = allocator.grain  # whole blocks, rounded down, as vLLM does
        spare = int(watermark * (allocator.capacity // unit)) * unit
        self.spare = spare if reservation is on_demand else 0
        self.waiting: deque[Sequence] = deque()
        self.swapped: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.groups = Groups(allocator)
        self._untold = 0  # preemptions since the last batch with anybody in it
        self.prefix = PrefixCounts()
        self.predict: Callable[[Batch], int | None] | None = None

    # ---- the contract ----------------------------------------------------------------------------------------------

    def add(self, request: Request) -> Rejection | None:
        """Queue an arrived request, or say why it can never be served."""
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
        """Requests that wait, run or are swapped."""
        return len(self.waiting) + len(self.swapped) + len(self.running) - self.groups.siblings

    @property
    def num_waiting(self) -> int:
        """Requests that wait for memory or a place, on the host or without any."""
        return len(self.waiting) + len(self.swapped)

    @abstractmethod
    def schedule(self, now: int) -> Batch:
        """The next step's batch at time `now` (ns); an empty one when nothing can run yet."""

    def complete(self, batch: Batch, tokens: Items[int] | None, branches: Branches | None = None
                 ) -> tuple[list[Sequence], list[Sequence]]:  # fmt: skip
        """End a step, or a jump of many.

        Args:
            batch: what `schedule` returned.
            tokens: the sampled token of each sequence of `batch.seqs` that had one due, in order, less those of groups;
                None = simulated.
            branches: by request id, how the answers of each group go on that had a token due; a simulated group that is
                left out goes on with every answer.

        Returns:
            The sequences that produced a token in each step, and those that finished in the last (of a group that
            finished, the leader).
        """
        produced, finished, told = [], [], []
        for seq in batch.seqs:
            stored = seq.stored
            if seq.group is not None:
                if seq is seq.group.seqs[0] and self.groups.advance(seq.group, branches, self.running):
                    told += seq.group.seqs
                    if seq.done:
                        finished.append(seq)
            elif stored >= seq.num_tokens:
                seq.num_tokens = due = stored + 1
                produced.append(seq)
                if due >= seq.end_tokens:
                    finished.append(seq)
        if tokens is not None:
            for seq, token in zip(produced, tokens, strict=True):
                seq.say(token)
        if finished:
            for seq in finished:
                self.lengths.observe(seq.request)
            self.finish([member for seq in finished for member in seq.members] if told else finished)
        if told:
            self.groups.count(self.running)
        return produced + told if told else produced, finished

    def wake_at(self) -> int | None:
        """When (ns) the scheduler would act although nothing arrives or finishes; None = never.

        Asked after each `schedule`. The first step that begins then or later is scheduled as usual, and so is one in
        between where something happens sooner. What is past, or said while no request is there, has no effect.
        """
        return None

    def quiet(self, batch: Batch) -> Quiet | None:
        """Whether `schedule` would go on with the next token of each sequence of `batch`, in the same order, and do
        nothing else, and what bounds that. None, as here, is always right, and slow in simulation.

        Asked after `schedule` and before `complete`; it changes nothing. It is asked only if no class below the one
        that defines it replaces anything of that class (see `schedulers.quiet.vouched`).
        """
        return None

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def enqueue(self, seq: Sequence) -> None:
        """Let an arrived sequence wait: behind all others, or where the order puts it."""
        self.line.enter(self.waiting, seq)

    def requeue(self, seq: Sequence) -> None:
        """Let a preempted sequence wait: before all others, or where the order puts it."""
        if self.order.preempted_first:
            self.waiting.appendleft(seq)
        else:
            self.enqueue(seq)

    def end_of(self, request: Request) -> int:
        """Prompt and output tokens with which `request` is finished."""
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
            fits = self.allocator.fits(request.prompt_len, stored, self.reserve_full_isl, self.piece_tokens)
        if not fits:
            promised = f", promised to a request of {total - 1}," if stored > total - 1 else ""
            takes = self.allocator.takes(stored)
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
        if not self.several_answers:
            return f"n = {request.n}: {type(self).__name__} serves requests that want a single answer"
        limits = {"max_num_seqs": self.max_lanes, "max_num_batched_tokens": self.max_num_batched_tokens}
        return self.groups.unservable(request, stored, total - 1, limits)

    @property
    def max_lanes(self) -> int:
        """Most sequences that may run."""
        return self.max_num_seqs

    def admit_head(self, batch: Batch, budget: int, limit: int = 0) -> int:
        """Try to admit the head of the queue with at most `budget` new tokens; the watermark stays free if others run.

        Args:
            limit: cuts a prompt into pieces of so many tokens, whatever the budget; 0 = no limit.

        Returns:
            The tokens scheduled for it; 0 when it has to wait, with `batch.blocked` set if memory was the reason.
        """
        if not self.line.sorted:
            self.line.bring_forward(self.waiting, batch.now)
        seq = self.waiting[0]
        if (seq.group or self.groups.to_come) and self.groups.crowded(seq, self.running, self.max_lanes):
            return 0
        lacking = self.lacking(seq, budget)
        if lacking:
            asked = self.allocator.unheld + lacking
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
        self.prefix.add(seq, seq.to_admit, hit)
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
        """What is asked for a waiting sequence; None where a budget cuts what must be computed whole."""
        total = seq.to_admit
        hit = self.allocator.lookup(seq, total - 1)  # one is computed at least: its logits are the answer
        count = total - hit.tokens
        if 0 < limit < count:
            count = limit
        if count > budget:
            if not self.chunked_prefill:
                return None
            count = budget
        if self.allocator.cuts:
            count = self.allocator.piece(seq, hit, count, limit or self.max_num_batched_tokens)
            if not count:
                return None
        return Ask(
            tokens=hit.tokens + count,
            promise=self.reservation(seq.request, self.max_model_len),
            gate=total if self.reserve_full_isl else 0,
            spare=self.spare if self.running else 0,
            final=seq.end_tokens - 1,
            hit=hit,
        )

    def newcomers_matter(self) -> bool:
        """Whether one that arrives now could join the next batch, or be expected to be of another length than later."""
        if self.lengths.learns:
            return True
        return len(self.running) < self.max_num_seqs and (self.line.overtakes or not self.waiting)

    def refusal_ahead(self, limit: int = 0) -> Ask | None:
        """What the queue's head, another one since somebody was preempted, is sure to be refused in the next steps.

        As long as they only repeat this one: what is free does not grow meanwhile. None = it may be admitted.
        """
        seq, budget = self.waiting[0], self.max_num_batched_tokens - len(self.running)
        if seq.group is not None or self.groups.to_come or budget <= 0 or not self.line.sorted:
            return None
        if type(self).lacking is not Scheduler.lacking:  # what the head lacks may be another count in each step
            return None
        ask = self._ask(seq, budget, limit)
        return ask if ask is not None and self.allocator.lacks(ask) else None

    def lacking(self, seq: Sequence, budget: int) -> int:
        """Slots that the pool would lack some day if `seq` joined now, as far as this scheduler looks ahead.

        Asked of each head of the queue with the tokens left in the step; 0 = it may join if there is room for it now.
        """
        return 0

    def estimate(self, batch: Batch) -> int | None:
        """How long a step would take (ns) that computes `batch` as it is by now; None where nobody can tell.

        A simulated device is asked, and says what the step will take, but for moves and for what is drawn at random.
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

    def find_room(self, seq: Sequence, tokens: int, batch: Batch) -> bool:
        """Get a running sequence room for `tokens` in all, from others if need be; False if it lost its own instead.

        Skip the call while ``seq.room >= tokens``.
        """
        while tokens > seq.room and not self.allocator.grow(seq, tokens):
            self.make_way(seq, batch)
            if seq.row < 0:
                return False
        return True

    def make_way(self, seq: Sequence, batch: Batch) -> None:
        """Give some slots back, since `seq` was refused room: the latest admitted is preempted, maybe `seq` itself."""
        self.preempt(self.running[-1], batch)

    def preempt(self, seq: Sequence, batch: Batch) -> None:
        """Take all memory of `seq`, and of its group, away; it waits and will be computed again, its outputs kept."""
        leader = seq.members[0]
        for member in self.withdraw(seq, batch):
            member.computed_before = max(member.computed_before, member.stored)
            self.allocator.free(member)
        if leader.group:
            leader.group.forked = False
        self.requeue(leader)

    def withdraw(self, seq: Sequence, batch: Batch) -> list[Sequence]:
        """Stop running `seq` and its group, whatever of it is scheduled; those that ran."""
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
        """Commit what was scheduled and collect the moves it needs; nobody makes those of an empty batch, so they wait
        for the next one.
        """
        self.commit(batch)
        if batch.seqs:
            batch.moves, batch.delay_ns = self.allocator.take_moves(), self.allocator.take_delay()
        batch.saved = self.allocator.saved_slots
        batch.grouped = self.groups.siblings > 0 or self.groups.unforked > 0
        self._untold += batch.preemptions
        if batch.seqs:
            batch.preemptions, self._untold = self._untold, 0
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
