"""A request of the trace, the sequence that runs for it, and the batch of a step."""

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

ANSWER_PIECE = 16  # tokens; sharing each single token would cost a large batch milliseconds a step


@dataclass(slots=True)
class Request:
    """One request of a workload.

    Attributes:
        id: position in the trace, from 0.
        arrival_ns: scheduled arrival, nanoseconds from the start of the replay; latencies count from here.
        prompt_len: P, tokens of the prompt, >= 1.
        output_len: tokens that will be produced, >= 1. Only oracles may look at it.
        max_tokens: the client's own cap, which cuts `output_len`; None = not declared.
        token_ids: the prompt's token ids, or None: then the runner draws them from (seed, id) or (seed, hash_ids).
        hash_ids: content ids of the prompt's consecutive pieces of `hash_block` tokens (the last may be partial).
        hash_block: tokens a hash id stands for, 0 without `hash_ids`.
        session: common to the requests of one conversation or client; empty = none.
        priority: lower is sooner.
        n: number of outputs: samples, or beams.
        use_beam_search: whether the n outputs are found by beam search instead of sampling.
        ttft_slo_ms, tpot_slo_ms: limits of the time to the first token, and of the time per token after it.
        deadline_ms: limit of the time from arrival to the last token. None = no limit. Schedulers may use these limits,
            and goodput counts the requests that kept theirs; they are not enforced.
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
        """Deadline of the last token on the replay's clock; None = no limit."""
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
        num_tokens: prompt and sampled tokens so far; the next token is sampled when `stored` reaches this.
        end_tokens: `num_tokens` at which the sequence is finished.
        expected: output tokens that the scheduler's predictor expected at arrival.
        outputs: sampled tokens so far, see `append_token` (left empty by a simulated runner).
        prompt: the prompt's token ids, set by a runner that needs them.
        preemptions, recomputed: number of preemptions, and tokens computed again because of them.
        computed_before: most tokens stored before any preemption; computing tokens below it is recomputation.
        cached_tokens: length of the prefix hit at the first admission.
        chain: hashes of the first full blocks, or keys of the first tokens; None until asked for, and when finished.
        group: the group of the request's sequences; None if there is only this one.
        score: log-probability of the output, for a beam.
        first_scheduled_ns, first_token_ns, last_token_ns: written by the recorder; -1 = not yet.
    """

    request: Request = None  # type: ignore[assignment]
    num_tokens: int = 0
    end_tokens: int = 0
    expected: int = 0
    outputs: Items[int] = ()  # not a list yet: a million empty lists would take 70 MB
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
        """Append a sampled token to the outputs."""
        if self.outputs:
            self.outputs.append(token)  # type: ignore[attr-defined]  # a list by now
        else:
            self.outputs = [token]

    @property
    def done(self) -> bool:
        return self.num_tokens >= self.end_tokens

    @property
    def members(self) -> list[Sequence]:
        """All sequences of the request."""
        return [self] if self.group is None else self.group.seqs

    @property
    def tokens_to_admit(self) -> int:
        """Tokens to compute at admission: all, or only the prompt for a group, whose leader computes it."""
        return self.num_tokens if self.group is None else self.request.prompt_len

    def num_new_tokens(self, budget: int) -> int:
        """Tokens that the next step may compute, at most `budget`."""
        if self.group is not None:
            return self.group.num_new_tokens(self, budget)
        left = self.num_tokens - self.stored
        return left if left < budget else budget

    def block_hashes(self, block_size: int, count: int) -> Items[Hashable]:
        """Hashes of the first `count` full blocks; see `schedulers.content`. One block size per sequence."""
        if self.chain is None:
            self.chain = Chain()
        keys = self.chain.keys
        if len(keys) < count:
            self.chain.extend(self.request, self.outputs, block_size, count)
        return keys[:count]

    def token_keys(self, count: int) -> np.ndarray:
        """Keys of the first `count` tokens or more; see `schedulers.content`."""
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
        """The prompt and, if token ids are known, the output so far in whole pieces of `ANSWER_PIECE` tokens."""
        request = self.request
        if request.token_ids is not None:
            return request.prompt_len + len(self.outputs) // ANSWER_PIECE * ANSWER_PIECE
        return request.prompt_len if request.hash_ids is not None else 0


class BatchStats(NamedTuple):
    """Sums over a batch, in whole numbers. Latency models and the step table use nothing else of a step.

    Attributes:
        decodes: sequences with one new token (including the last token of a chunked prompt).
        idle: finished lanes of a static batch that are still computed.
        context: tokens that decodes and idle lanes attend to, the new ones included.
        prompts: sequences with several new tokens.
        prompt_tokens: new tokens of these sequences.
        prompt_context: tokens of these sequences stored after the step.
        pairs: query-key pairs of prompt attention (n new tokens over c stored ones: n * (c + n / 2)).
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
        """The sums `steps` steps later, if every sequence decodes one token in each step."""
        decodes = self.decodes + self.prompts
        context = self.context + self.prompt_context + steps * decodes
        return BatchStats(decodes, self.idle, context, 0, 0, 0, 0)


class Batch:
    """What one step computes.

    Attributes:
        now: when the step is scheduled (ns); needed by orders that depend on the time.
        seqs, counts: the sequences in order, and the number of new tokens of each; `seq.stored` includes them.
        committed: number of leading sequences whose tokens are committed to the allocator (`Scheduler.commit`).
        idle: finished lanes of a static batch that are still computed (they neither write nor grow).
        admitted, preempted: sequences that were admitted or preempted in this step; a sequence that was preempted and
            admitted again is in `admitted` only.
        preemptions: number of preemptions since the last step that was not empty, including sequences that were
            admitted again.
        blocked: the admission that the queue's head was refused for lack of memory; None if there was none.
        moves: copies to run before the step's attention; none in an empty batch, which is not executed.
        delay_ns: how long a simulated step waits for the allocator (`Allocator.take_delay`).
        saved: slots saved by sharing in this step (`Allocator.saved_slots`).
        grouped: whether sequences of groups may be in the batch.
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
        """Remove `seq` from the batch, if it is in it."""
        if seq in self.seqs:
            at = self.seqs.index(seq)
            del self.seqs[at], self.counts[at]
            self.committed -= at < self.committed

    @property
    def stats(self) -> BatchStats:
        """The sums over the batch, computed once (after `Scheduler.close`)."""
        if self._stats is None:
            self._stats = self._sums()
        return self._stats

    def _sums(self) -> BatchStats:
        context, lanes = sum([seq.stored for seq in self.seqs]), len(self.seqs)
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
