"""Writes down what happened: one row per step, one per request, and every gap between two tokens of a request."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence as Items
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from allocators.base import Allocator, Books, LayoutBooks
from harness.metrics.gaps import Gaps
from harness.metrics.jump import NO_JUMP, Jump
from harness.metrics.steps import StepLog
from schedulers.request import Batch, Rejection, Request, Sequence


class RequestStats(NamedTuple):
    """How a request that was scheduled went; times in ns, -1 = never."""

    id: int
    done: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    produced: int
    preemptions: int
    recomputed_tokens: int
    cached_tokens: int
    n: int

    @classmethod
    def of(cls, seq: Sequence) -> RequestStats:
        """Of a request's only sequence, or of all through their leader."""
        request, recomputed = seq.request, seq.recomputed
        if seq.group is not None:
            recomputed = sum(member.recomputed for member in seq.members)
        return cls(request.id, seq.done, seq.first_scheduled_ns, seq.first_token_ns, seq.last_token_ns,
                   request.n * (seq.num_tokens - request.prompt_len), seq.preemptions, recomputed,
                   seq.cached_tokens, request.n)  # fmt: skip


class Recorder:
    """Collects the tables of one replay. Its time is not charged to a measured clock.

    What it keeps of a request that is over are a few whole numbers in an array, so that a million of them fit.

    Args:
        steps_path: where `steps.csv` is written while the replay runs; None keeps sums only.
        keep: keep the finished sequences too (`sequences`), for those who want their tokens.
        times: keep when each token came.

    Attributes:
        times: by request id, in ns, those of all its answers; None if they are not kept.
        sequences: by request id, those that were scheduled and are not over (with `keep`: all).
        rejections: by request id, why.
    """

    def __init__(self, steps_path: Path | None = None, keep: bool = True, times: bool = False) -> None:
        self.steps = StepLog(steps_path)
        self.times: dict[int, array[int]] | None = {} if times else None
        self.gaps = Gaps()
        self.sequences: dict[int, Sequence] = {}
        self.rejections: dict[int, str] = {}
        self.keep = keep
        self._delivered = array("q")  # id and time, one after the other
        self._finished = array("q")  # the fields of `RequestStats`, one after the other
        self._rows: deque[tuple[int, ...]] = deque()  # of the steps that were scheduled and are not completed
        self._layered: Allocator | None = None  # its layers keep different tokens, so its books say more
        self._more: deque[list[int]] = deque()  # what they say of those steps
        self._last_ready = -2  # when the step before ended; -1 is a sequence that has no token yet

    def watch(self, allocator: Allocator) -> None:
        """The books of the coming steps are those of `allocator`."""
        if allocator.extra_columns:
            self._layered = allocator
            self.steps.add_columns(allocator.extra_columns)

    def arrived(self, request: Request, now: int, rejection: Rejection | None) -> None:
        """A request was handed to the scheduler at `now` (ns), late by `now - arrival`."""
        self._delivered.extend((request.id, now))
        if rejection:
            self.rejections[request.id] = rejection.reason
        else:
            self.steps.joined(now)

    def scheduled(
        self, batch: Batch, start: int, waiting: int, books: Books | LayoutBooks, runs: int | None = None
    ) -> None:
        """A step was scheduled at `start` (ns) and runs at once, or from `runs` (ns) on; the books hold for it."""
        for seq in batch.admitted:
            if seq.first_scheduled_ns < 0:
                seq.first_scheduled_ns = start
                self.sequences[seq.request.id] = seq
        stats = batch.stats
        self._rows.append((
            start if runs is None else runs, len(batch.seqs), stats.decodes, stats.idle, stats.prompt_tokens,
            stats.context + stats.prompt_context, stats.pairs, waiting, len(batch.admitted), batch.preemptions,
            batch.blocked is not None, *books[:9], batch.saved,
            sum([move.length for move in batch.moves if move.kind == "copy"]) if batch.moves else 0,
            sum([move.length for move in batch.moves if move.kind != "copy"]) if batch.moves else 0,
        ))  # fmt: skip
        if self._layered is not None:
            self._more.append(self._layered.extra_books())

    def completed(self, batch: Batch, produced: Items[Sequence], finished: Items[Sequence], ready: int,
                  spent: tuple[int, int, int], further: Jump = NO_JUMP) -> None:  # fmt: skip
        """The tokens of the oldest step under way were there at `ready` (ns); `spent` = (schedule, execute, complete).

        After it, the same batch took the `further` steps, in the last of which `finished` finished.
        """
        previous, last = self._last_ready, ready + sum(further.ns)
        same = 0  # sequences that had a token in the step before
        for seq in produced:
            before = seq.last_token_ns
            seq.last_token_ns = last
            if before == previous:
                same += 1
            elif seq.first_token_ns < 0:
                seq.first_token_ns = ready
            else:
                self.gaps.add(ready - before)
        if same:
            self.gaps.add(ready - previous, same)
        if further.ns:
            self.gaps.add_each(further.ns, len(produced))
        self._last_ready = last
        if self.times is not None:
            moments = list(accumulate(further.ns, initial=ready))
            for seq in produced:
                self.times.setdefault(seq.request.id, array("q")).extend(moments)
        row = (*self._rows.popleft(), len(produced), len(finished), *spent, 0)
        self.steps.append((*row, *self._more.popleft()) if self._more else row, further)
        for seq in finished:
            self._finished.extend(RequestStats.of(seq))
            if not self.keep:
                del self.sequences[seq.request.id]

    def idle(self, start: int, end: int, waiting: int, books: Books | LayoutBooks) -> None:
        """Nothing could run from `start` to `end` (ns)."""
        row = (start, 0, 0, 0, 0, 0, 0, waiting, 0, 0, 0, *books[:9], 0, 0, 0, 0, 0, 0, 0, 0, end - start)
        self.steps.append((*row, *self._layered.extra_books()) if self._layered is not None else row)

    def statuses(self) -> dict[int, tuple[str, str]]:
        """By request id, status and reason of those that were rejected."""
        return {number: ("rejected", reason) for number, reason in self.rejections.items()}

    def deliveries(self) -> np.ndarray:
        """``[delivered, 2]`` int64, a view: request id and when (ns) it was handed to the scheduler, in that order."""
        return np.frombuffer(self._delivered, dtype=np.int64).reshape(-1, 2)

    def request_stats(self) -> np.ndarray:
        """``[scheduled, 10]`` int64, maybe a view: `RequestStats` of every request that was ever scheduled."""
        over = np.frombuffer(self._finished, dtype=np.int64).reshape(-1, len(RequestStats._fields))
        left = [RequestStats.of(seq) for seq in self.sequences.values() if not seq.done]
        return np.concatenate([over, np.array(left, dtype=np.int64)]) if left else over
