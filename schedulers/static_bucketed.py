"""Static batches of requests of similar length: fewer lanes idle until the longest is over."""

from __future__ import annotations

from collections import deque
from typing import Any

from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence
from schedulers.static import Static

LENGTHS = {
    "prompt": lambda seq: seq.request.prompt_len,
    "output": lambda seq: seq.expected,  # as `length_predictor` told it: the truth by default
}


class StaticBucketed(Static):
    """Batches as `Static` makes them, but out of one bucket: requests whose lengths lie between two powers of two.

    The bucket of the oldest waiting request is next, so that nobody starves; while that one may still wait
    (`max_wait_s`), a bucket that fills a batch goes first.

    Args:
        bucket_by: `prompt`, or `output` (the expected length of the answer, see `length_predictor`).
    """

    def __init__(self, *args: Any, bucket_by: str = "output", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if bucket_by not in LENGTHS:
            raise ValueError(f"scheduler.bucket_by must be one of {', '.join(LENGTHS)}, got {bucket_by!r}")
        self._length = LENGTHS[bucket_by]
        self._next: int | None = None  # the bucket that goes before that of the oldest

    def bucket(self, seq: Sequence) -> int:
        """The power of two below which its length lies."""
        return self._length(seq).bit_length()

    def quiet(self, batch: Batch) -> Quiet | None:
        """As `Static`: which bucket is next is no matter while a batch runs."""
        return super().quiet(batch)

    def _may_start(self, now: int) -> bool:
        self._wake = self._next = None
        if not self.waiting or self._due(now):
            return bool(self.waiting)
        buckets = dict[int, list[Sequence]]()
        for seq in self.waiting:
            buckets.setdefault(self.bucket(seq), []).append(seq)
        self._next = next((bucket for bucket, seqs in buckets.items() if self._fill(seqs)), None)
        if self._next is not None:
            self._wake = None
        return self._next is not None

    def _form(self, batch: Batch) -> None:
        """As `Static`, from a queue that holds one bucket only: that of the lane which leads the batch, if one does."""
        if not self.waiting:
            return
        lead = self.running or batch.preempted  # a lane that lived on, or a group that begins anew
        oldest = lead[0] if lead else min(self.waiting, key=lambda seq: seq.request.arrival_ns)
        bucket = self.bucket(oldest) if self._next is None else self._next
        self._next, queue = None, list(self.waiting)
        self.waiting = deque(seq for seq in queue if self.bucket(seq) == bucket)
        super()._form(batch)
        self.waiting = deque(seq for seq in queue if seq.row < 0)
