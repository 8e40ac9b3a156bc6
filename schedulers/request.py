"""A row of the trace, the sequence that runs for it, and what a scheduler says of a step."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from allocators.base import Ask, Holder, Move
from schedulers.content import Chain

if TYPE_CHECKING:
    from schedulers.group import Group

ANSWER_PIECE = 16  # tokens; telling others of each single one would cost a step of many sequences milliseconds


@dataclass(slots=True)
class Request:
    """One request of a workload.

    Attributes:
        id: position in the trace, from 0.
        arrival_ns: scheduled arrival, nanoseconds from the start of the replay; every latency counts from here.
        prompt_len: P, tokens of the prompt, >= 1.
        output_len: tokens it produces (the truth that no scheduler but an oracle may look at), >= 1.
        max_tokens: the client's own cap, which cuts `output_len`; None = not declared.
        token_ids: the prompt's token ids, or None: then the runner draws them from (seed, id) or (seed, hash_ids).
        hash_ids: content ids of the prompt's consecutive pieces of `hash_block` tokens (the last may be partial).
        hash_block: tokens a hash id stands for, 0 without `hash_ids`.
        session: requests of one conversation or client share it; empty = none.
        priority: lower is sooner.
        n: answers wanted: so many samples, or the beams of a search of that width.
        use_beam_search: whether they are the likeliest answers that a beam search finds, instead of samples.
        ttft_slo_ms, tpot_slo_ms: what its client expects of the time to the first token, and per token after it.
        deadline_ms: milliseconds from its arrival by which its last token should be there. These limits bind nobody:
            a scheduler may look at them, and goodput counts who kept them. None = no such limit.
    """

    id: int
    arrival_ns: int
    prompt_len: int
    output_len: int
    max_tokens: int | None = None
    token_ids: Any = None
    hash_ids: Any = None
    hash_block: int = 0
    session: str = ""
    priority: int = 0
    n: int = 1
    use_beam_search: bool = False
    ttft_slo_ms: float | None = None
    tpot_slo_ms: float | None = None
    deadline_ms: float | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < self.output_len:
            self.output_len = self.max_tokens

    @property
    def deadline_ns(self) -> int | None:
        """When its last token should be there, on the replay's clock; None = whenever."""
        return None if self.deadline_ms is None else self.arrival_ns + round(self.deadline_ms * 1e6)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a request can never be served under this configuration."""

    request: Request
    reason: str


@dataclass(slots=True, eq=False)
class Sequence(Holder):
    """The running state of a request. `stored` (from Holder) counts tokens computed so far.

    Attributes:
        num_tokens: prompt and sampled tokens so far; a token is due when `stored` reaches it.
        end_tokens: `num_tokens` at which it is finished.
        expected: output tokens that the scheduler's predictor expected of it when it came.
        outputs: sampled tokens so far, see `append_token` (left empty by a simulated runner).
        prompt: the prompt's token ids, set by a runner that needs them.
        computed_before: most tokens it had stored before a preemption; below it, work is done again.
        cached_tokens: tokens it was spared by a prefix hit when it was first admitted.
        chain: the keys of its first full blocks or tokens; None until somebody asks for them, and when it is finished.
        group: the sequences of its request, itself among them; None if it is the only one.
        score: log-probability of its answer, of a beam only.
        first_scheduled_ns, first_token_ns, last_token_ns: written by the recorder; -1 = not yet.
    """

    request: Request = None  # type: ignore[assignment]
    num_tokens: int = 0
    end_tokens: int = 0
    expected: int = 0
    outputs: Items[int] = ()  # no list before there are any: a million empty ones would take 70 MB
    prompt: Any = None
    preemptions: int = 0
    recomputed: int = 0
    computed_before: int = 0
    cached_tokens: int = 0
    chain: Chain | None = None
    group: Group | None = None
    score: float = 0.0
    first_scheduled_ns: int = -1
    first_token_ns: int = -1
    last_token_ns: int = -1

    def append_token(self, token: int) -> None:
        """`token` was sampled."""
        if isinstance(self.outputs, list):
            self.outputs.append(token)
        else:
            self.outputs = [token]

    @property
    def done(self) -> bool:
        return self.num_tokens >= self.end_tokens

    @property
    def members(self) -> list[Sequence]:
        """All sequences of its request."""
        return [self] if self.group is None else self.group.seqs

    @property
    def tokens_to_admit(self) -> int:
        """Tokens that it is admitted to compute: all, or of a group the prompt, which its leader computes."""
        return self.num_tokens if self.group is None else self.request.prompt_len

    def num_new_tokens(self, budget: int) -> int:
        """Tokens of it that may be computed now, of at most `budget`; its group has a say."""
        if self.group is not None:
            return self.group.num_new_tokens(self, budget)
        left = self.num_tokens - self.stored
        return left if left < budget else budget

    def block_hashes(self, block_size: int, count: int) -> Items[Hashable]:
        """Keys of its first `count` full blocks; see `schedulers.content`. One block size per sequence."""
        if self.chain is None:
            self.chain = Chain()
        keys = self.chain.keys
        if len(keys) < count:
            self.chain.extend(self.request, self.outputs, block_size, count)
        return keys[:count]

    def token_keys(self, count: int) -> np.ndarray:
        """Keys of its first `count` tokens or more; see `schedulers.content`."""
        if self.chain is None:
            self.chain = Chain()
        if len(self.chain.tokens) < count:
            self.chain.extend_tokens(self.request, self.outputs, count)
        return self.chain.tokens

    @property
    def prompt_tokens(self) -> int:
        return self.request.prompt_len

    @property
    def known_tokens(self) -> int:
        return self.num_tokens

    @property
    def common_tokens(self) -> int:
        """Its prompt and its answer as far as they are known, but of an answer that goes on only whole pieces."""
        request = self.request
        if request.token_ids is not None:
            return request.prompt_len + len(self.outputs) // ANSWER_PIECE * ANSWER_PIECE
        return request.prompt_len if request.hash_ids is not None else 0


class BatchStats(NamedTuple):
    """What a step computes, in whole numbers: all that step times and the step table are made of.

    Attributes:
        decodes: sequences with one new token (the last token of a prompt in pieces is no different).
        idle: finished lanes of a static batch, computed for nothing.
        context: tokens that decodes and idle lanes look back to, the new ones included.
        prompts: sequences with several new tokens.
        prompt_tokens: their new tokens.
        prompt_context: tokens stored of them after the step.
        pairs: pairs of a new prompt token with a token it looks back to (n new ones over c: n * (c + n / 2)).
    """

    decodes: int
    idle: int
    context: int
    prompts: int
    prompt_tokens: int
    prompt_context: int
    pairs: int

    @property
    def lanes(self) -> int:
        return self.decodes + self.idle

    def after(self, steps: int) -> BatchStats:
        """So many steps later, if every sequence goes on to decode: each has stored one more token in each step."""
        decodes = self.decodes + self.prompts
        context = self.context + self.prompt_context + steps * decodes
        return BatchStats(decodes, self.idle, context, 0, 0, 0, 0)


class Batch:
    """What one step computes.

    Attributes:
        now: when it is scheduled (ns); an order that goes by the time needs it.
        seqs, counts: the sequences in order and how many new tokens of each are computed; `seq.stored` includes them.
        committed: how many of those the allocator knows of already (`Scheduler.commit`).
        idle: finished lanes of a static batch that are computed for nothing (they neither write nor grow).
        admitted, preempted: sequences that joined or lost their memory in this step; one that lost it and was admitted
            again is among the first only.
        preemptions: how often a request lost its memory since the last step, in this one or while nobody could be
            scheduled; those that got it again are counted too.
        blocked: what the queue's head was refused for lack of memory, None when nothing was.
        moves: copies to run before the step's attention; none of an empty batch, which nobody runs.
        delay_ns: how long a simulated step waits for the allocator (`Allocator.take_delay`).
        saved: slots that sequences would hold besides in this step if they shared none.
        grouped: whether sequences of groups may be among them.
    """

    def __init__(self, seqs: list[Sequence] | None = None, counts: list[int] | None = None,
                 idle: list[Sequence] | None = None, now: int | None = None) -> None:  # fmt: skip
        self.now = now
        self.seqs = seqs or []
        self.counts = counts or []
        self.idle = idle or []
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.blocked: Ask | None = None
        self.moves: list[Move] = []
        self.delay_ns = self.saved = self.committed = self.preemptions = 0
        self.grouped = True
        self._stats: BatchStats | None = None

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)

    def drop(self, seq: Sequence) -> None:
        """Schedule nothing of `seq`, if anything was."""
        if seq in self.seqs:
            at = self.seqs.index(seq)
            del self.seqs[at], self.counts[at]
            self.committed -= at < self.committed

    @property
    def stats(self) -> BatchStats:
        """The sums over its lanes, taken once (after `Scheduler.close`)."""
        if self._stats is None:
            self._stats = self._sums()
        return self._stats

    def _sums(self) -> BatchStats:
        context, lanes = 0, len(self.seqs)
        for seq in self.seqs:
            context += seq.stored
        prompts = prompt_tokens = prompt_context = pairs = 0
        if self.counts.count(1) < lanes:
            for seq, count in zip(self.seqs, self.counts, strict=True):
                if count > 1:
                    stored = seq.stored
                    prompts += 1
                    prompt_tokens += count
                    prompt_context += stored
                    pairs += count * (2 * stored - count) // 2
        if self.idle:
            context += sum([seq.stored for seq in self.idle])
        return BatchStats(lanes - prompts, len(self.idle), context - prompt_context, prompts, prompt_tokens,
                          prompt_context, pairs)  # fmt: skip
