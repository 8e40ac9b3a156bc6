"""Between a replay and its router: sends requests to engines, and counts what a router may know of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from harness.errors import HarnessError
from harness.routers.base import Router, Snapshot
from schedulers.request import Request


class Dispatcher:
    """Asks a router, and keeps the snapshots that the router is shown. One engine needs no router.

    Raises:
        HarnessError: there are several engines and no router.
    """

    def __init__(self, router: Router | None, num_engines: int) -> None:
        if router is None and num_engines != 1:
            raise HarnessError(f"{num_engines} engines need a router")
        self.router = router
        self.snapshots = [Snapshot(number) for number in range(num_engines)]
        self._held: list[list[Request]] = [[] for _ in self.snapshots]
        self._reports: deque[tuple[int, int, int, int]] = deque()  # due at (ns), engine, requests, prompt tokens

    def route(self, request: Request, now: int) -> int:
        """The number of the engine that serves `request`.

        Raises:
            HarnessError: the router returned no engine's number.
        """
        router = self.router
        if router is None:
            return 0
        while self._reports and self._reports[0][0] <= now:
            _, engine, requests, tokens = self._reports.popleft()
            self.snapshots[engine].ended += requests
            self.snapshots[engine].ended_tokens += tokens
        at = router.route(request, now, self.snapshots)
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < len(self.snapshots):
            name, last = type(router).__name__, len(self.snapshots) - 1
            raise HarnessError(
                f"router: {name}.route must return the number of an engine, 0 to {last}, and gave {at!r}"
            )
        self.snapshots[at].sent += 1
        self.snapshots[at].sent_tokens += request.prompt_len
        return at

    def hold(self, engine: int, request: Request) -> None:
        """Keep a request until its engine can take it."""
        self._held[engine].append(request)

    def take_held(self, engine: int) -> list[Request]:
        """The requests kept for this engine, which are no longer kept."""
        held = self._held[engine]
        if held:
            self._held[engine] = []
        return held

    def record_ended(self, engine: int, requests: Iterable[Request], now: int) -> None:
        """These requests were finished or rejected at `now` (ns)."""
        if self.router is not None:
            tokens = [request.prompt_len for request in requests]
            if tokens:
                self._reports.append((now + self.router.delay_ns, engine, len(tokens), sum(tokens)))
