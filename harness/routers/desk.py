"""Between a replay and its router: who was sent where, and who is known to be over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from harness.errors import HarnessError
from harness.routers.base import Router, Snapshot
from schedulers.request import Request


class Desk:
    """Asks a router, and keeps the snapshots that it is shown. One engine needs no router.

    Raises:
        HarnessError: several engines and no router.
    """

    def __init__(self, router: Router | None, num_engines: int) -> None:
        if router is None and num_engines != 1:
            raise HarnessError(f"{num_engines} engines need a router")
        self.router = router
        self.snapshots = [Snapshot(number) for number in range(num_engines)]
        self._kept: list[list[Request]] = [[] for _ in self.snapshots]
        self._told: deque[tuple[int, int, int, int]] = deque()  # when it is heard (ns), engine, requests, prompt tokens

    def route(self, request: Request, now: int) -> int:
        """The number of the engine that serves `request`.

        Raises:
            HarnessError: the router names none.
        """
        router = self.router
        if router is None:
            return 0
        while self._told and self._told[0][0] <= now:
            _, engine, requests, tokens = self._told.popleft()
            self.snapshots[engine].over += requests
            self.snapshots[engine].over_tokens += tokens
        at = router.route(request, now, self.snapshots)
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < len(self.snapshots):
            name, last = type(router).__name__, len(self.snapshots) - 1
            raise HarnessError(
                f"router: {name}.route must return the number of an engine, 0 to {last}, and gave {at!r}"
            )
        self.snapshots[at].sent += 1
        self.snapshots[at].sent_tokens += request.prompt_len
        return at

    def keep(self, engine: int, request: Request) -> None:
        """Let a request wait until its engine can look at it."""
        self._kept[engine].append(request)

    def collect(self, engine: int) -> list[Request]:
        """Those that wait for this engine."""
        kept = self._kept[engine]
        if kept:
            self._kept[engine] = []
        return kept

    def over(self, engine: int, requests: Iterable[Request], now: int) -> None:
        """These are over at `now` (ns)."""
        if self.router is not None:
            tokens = [request.prompt_len for request in requests]
            if tokens:
                self._told.append((now + self.router.delay_ns, engine, len(tokens), sum(tokens)))
