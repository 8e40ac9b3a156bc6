"""The client's record of a replay: when requests were sent, when each piece came, and how each request ended."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np

from harness.live.client import Outcome
from harness.live.stream import count_of
from harness.metrics.gaps import Gaps
from harness.metrics.recorder import RequestStats
from schedulers.request import Request


class ClientLog:
    """The request side of a `Recorder`; a client can't see the engine's side.

    Attributes:
        gaps: between two pieces of a choice.
        reasons: by request id, (status, why); of finished requests, what is odd about them.
        times: by request id, when (ns) its pieces came, those of all choices in order.
        pieces, tokens: totals over all requests.
        prompt_tokens: by request id, the server's count, if it gave one.
        uncounted: finished requests without a token count from the server.
        merged: finished requests that had several tokens in one piece.
    """

    def __init__(self) -> None:
        self.gaps = Gaps()
        self.reasons: dict[int, tuple[str, str]] = {}
        self.times: dict[int, array[int]] = {}
        self.prompt_tokens: dict[int, int] = {}
        self.pieces = self.tokens = self.uncounted = self.merged = 0
        self._delivered = array("q")
        self._stats = array("q")

    def over(self, request: Request, outcome: Outcome) -> None:
        """Record the outcome of a request."""
        answer, done = outcome.answer, outcome.status == "finished"
        if outcome.reason:
            self.reasons[request.id] = outcome.status, outcome.reason
        if outcome.sent_ns < 0:
            return
        self._delivered.extend((request.id, outcome.sent_ns))
        self._stats.extend((request.id, done, -1, answer.first_ns, answer.last_ns, answer.tokens, -1, -1,
                            -1 if answer.cached is None else answer.cached, request.n))  # fmt: skip
        if not answer.pieces:
            return
        self.times[request.id] = array("q", sorted(when for times in answer.times.values() for when in times))
        for times in answer.times.values():
            for before, after in pairwise(times):
                self.gaps.add(after - before)
        self.pieces += answer.pieces
        self.tokens += answer.tokens
        if count := count_of(answer.usage.get("prompt_tokens")):
            self.prompt_tokens[request.id] = count
        if done:
            self.uncounted += answer.counted is None
            self.merged += answer.pieces < answer.tokens

    def statuses(self) -> dict[int, tuple[str, str]]:
        """As `Recorder.statuses`."""
        return self.reasons

    def deliveries(self) -> np.ndarray:
        """As `Recorder.deliveries`: request id and when (ns) it was sent."""
        return np.frombuffer(self._delivered, dtype=np.int64).reshape(-1, 2)

    def request_stats(self) -> np.ndarray:
        """As `Recorder.request_stats`; -1 for what a client can't know."""
        return np.frombuffer(self._stats, dtype=np.int64).reshape(-1, len(RequestStats._fields))
