"""Writes down what happened: one row per step, one per request, and every gap between two tokens of a request."""

from __future__ import annotations

from collections.abc import Sequence as Items
from pathlib import Path

from allocators.base import Books
from harness.metrics.gaps import Gaps
from harness.metrics.steps import StepLog
from schedulers.request import Batch, Rejection, Request, Sequence


class Recorder:
    """Collects the tables of one replay. Its time is not charged to a measured clock.

    Args:
        steps_path: where `steps.csv` is written while the replay runs; None keeps sums only.
    """

    def __init__(self, steps_path: Path | None = None) -> None:
        self.steps = StepLog(steps_path)
        self.gaps = Gaps()
        self.delivered: list[tuple[Request, int, str | None]] = []
        self.sequences: dict[int, Sequence] = {}
        self._row: tuple[int, ...] = ()
        self._last_ready = -2  # when the step before ended; -1 is a sequence that has no token yet

    def arrived(self, request: Request, now: int, rejection: Rejection | None) -> None:
        """A request was handed to the scheduler at `now` (ns), late by `now - arrival`."""
        self.delivered.append((request, now, rejection.reason if rejection else None))

    def scheduled(self, batch: Batch, start: int, waiting: int, books: Books) -> None:
        """A step is about to run; the books hold for it."""
        for seq in batch.admitted:
            if seq.first_scheduled_ns < 0:
                seq.first_scheduled_ns = start
                self.sequences[seq.request.id] = seq
        context = prefill_tokens = attention = decodes = 0
        for seq, count in zip(batch.seqs, batch.counts, strict=True):
            context += seq.stored
            if count == 1:
                decodes += 1
            else:
                prefill_tokens += count
                attention += count * (2 * seq.stored - count) // 2
        for seq in batch.idle:
            context += seq.stored
        self._row = (
            start, len(batch.seqs), decodes, len(batch.idle), prefill_tokens, context, attention, waiting,
            len(batch.admitted), len(batch.preempted), batch.blocked is not None, *books,
        )  # fmt: skip

    def completed(self, batch: Batch, produced: Items[Sequence], finished: Items[Sequence], ready: int,
                  spent: tuple[int, int, int]) -> None:  # fmt: skip
        """The step's tokens were there at `ready` (ns); `spent` = (schedule, execute, complete) in ns."""
        previous, steady = self._last_ready, 0
        for seq in produced:
            if seq.last_token_ns == previous:
                steady += 1
            elif seq.first_token_ns < 0:
                seq.first_token_ns = ready
            else:
                self.gaps.add(ready - seq.last_token_ns)
            seq.last_token_ns = ready
        if steady:
            self.gaps.add(ready - previous, steady)
        self._last_ready = ready
        self.steps.append((*self._row, len(produced), len(finished), *spent, 0))

    def idle(self, start: int, end: int, waiting: int, books: Books) -> None:
        """Nothing could run from `start` to `end` (ns)."""
        self.steps.append((start, 0, 0, 0, 0, 0, 0, waiting, 0, 0, 0, *books, 0, 0, 0, 0, 0, end - start))
