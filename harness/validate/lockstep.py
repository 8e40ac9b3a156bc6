"""Data-parallel engines in lockstep (vLLM with experts), seen as one scheduler and one device.

Each engine has its own queue and pool. A step begins when all have scheduled and ends for all at once; an engine
without work computes a dummy token, and all are padded to the one with the most tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from allocators.base import Ask
from allocators.books import Books
from harness.runner.latency.table import TableLatency
from schedulers.base import PrefixCounts, Scheduler
from schedulers.group import Branches
from schedulers.request import Batch, Rejection, Request, Sequence


class Lockstep:
    """Several schedulers as one, with just the methods that `Engine` calls.

    A request goes to the engine with the smallest 4 × waiting + running; among equals to the next in turn (as in vLLM's
    front end).

    Attributes:
        parts: the batch of each engine in the step that was scheduled last.
    """

    async_scheduling = True

    def __init__(self, engines: list[Scheduler]) -> None:
        self.engines, self.allocator, self.lengths = engines, Pools(engines), engines[0].lengths
        self.parts: list[Batch] = []
        self.waiting = Queues(engines)
        self.predict: object = None
        self._home: dict[int, Scheduler] = {}
        self._turn = 0

    def add(self, request: Request) -> Rejection | None:
        """Queue a request at one of the engines."""
        count = len(self.engines)
        order = [self.engines[(self._turn + i) % count] for i in range(count)]
        self._turn += 1
        one = min(order, key=lambda engine: 4 * engine.num_waiting + len(engine.running))
        self._home[request.id] = one
        return one.add(request)

    def schedule(self, now: int) -> Batch:
        """The batches of all engines as one; empty if all are empty."""
        self.parts = [engine.schedule(now) for engine in self.engines]
        whole = Batch(now=now)
        for part in self.parts:
            whole.seqs += part.seqs
            whole.counts += part.counts
            whole.admitted += part.admitted
            whole.preempted += part.preempted
            whole.moves += part.moves
            whole.blocked = whole.blocked or part.blocked
            whole.preemptions += part.preemptions
            whole.saved += part.saved
            whole.delay_ns = max(whole.delay_ns, part.delay_ns)
        whole.grouped, whole.committed = False, len(whole.seqs)
        return whole

    def complete(self, batch: Batch, tokens: None, branches: Branches | None = None
                 ) -> tuple[list[Sequence], list[Sequence]]:  # fmt: skip
        """Complete the last step of all engines; only one step is in flight."""
        both = [engine.complete(part, tokens) for engine, part in zip(self.engines, self.parts, strict=True)]
        return [seq for produced, _ in both for seq in produced], [seq for _, finished in both for seq in finished]

    def finish(self, finished: list[Sequence]) -> None:
        """Free the slots of finished sequences."""
        for engine in self.engines:
            own = [seq for seq in finished if self._home[seq.request.id] is engine]
            if own:
                engine.finish(own)

    def wake_at(self) -> int | None:
        """When (ns) an engine would act without an event; None = never."""
        return min((at for engine in self.engines if (at := engine.wake_at()) is not None), default=None)

    @property
    def running(self) -> list[Sequence]:
        return [seq for engine in self.engines for seq in engine.running]

    @property
    def num_requests(self) -> int:
        return sum(engine.num_requests for engine in self.engines)

    @property
    def num_waiting(self) -> int:
        return sum(engine.num_waiting for engine in self.engines)

    @property
    def prefix(self) -> PrefixCounts:
        """Of all engines together."""
        each = [engine.prefix for engine in self.engines]
        return PrefixCounts(sum(one.queries for one in each), sum(one.hits for one in each))


class Pools:
    """The pools of several engines, with the sum of their books."""

    extra_columns = ()

    def __init__(self, engines: list[Scheduler]) -> None:
        self.engines = engines

    def memory(self, blocked: Ask | None = None) -> Books:
        """The books now; they ignore `blocked`, the room that the head of a queue was refused."""
        return Books(
            *(sum(column) for column in zip(*(engine.allocator.memory() for engine in self.engines), strict=True))
        )


class Queues:
    """The waiting sequences of all engines."""

    def __init__(self, engines: list[Scheduler]) -> None:
        self.engines = engines

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for engine in self.engines for seq in engine.waiting)

    def __len__(self) -> int:
        return sum(len(engine.waiting) for engine in self.engines)

    def __getitem__(self, at: int) -> Sequence:
        return list(self)[at]

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence from its queue."""
        next(engine for engine in self.engines if seq in engine.waiting).waiting.remove(seq)


class LockstepLatency:
    """Step times of engines in lockstep, from the kernel tables of one of them.

    Kernels whose time depends on the number of tokens take as long as for the engine with the most; of attention,
    output matrix (LM head) and sampler the slowest engine's time counts.

    Args:
        padded: the output matrix and the sampler also compute an engine's padding (as LLMServingSim assumes; vLLM's
            compute sequences only).
    """

    def __init__(self, tables: TableLatency, together: Lockstep, padded: bool) -> None:
        self.tables, self.together, self.padded = tables, together, padded

    def step_ns(self, batch: Batch) -> int:
        """Nanoseconds of the step that all engines have just scheduled."""
        parts = [part.stats for part in self.together.parts]
        most = max(1, *(stats.lanes + stats.prompt_tokens for stats in parts))
        slowest = 0.0
        for stats, part in zip(parts, self.together.parts, strict=True):
            rows = stats.lanes + stats.prompts
            if self.padded:
                rows += most - stats.lanes - stats.prompt_tokens
            own = self.tables.sequences_us(max(rows, 1))
            if part.seqs:
                own += self.tables.layers * self.tables.attention_us(stats, self.tables.spread(part))
            slowest = max(slowest, own)
        return round((self.tables.tokens_us(most) + slowest + self.tables.overhead_us) * 1e3)
