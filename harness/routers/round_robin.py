"""One engine after the other."""

from __future__ import annotations

from collections.abc import Sequence as Items

from harness.routers.base import Router, Snapshot
from schedulers.request import Request


class RoundRobin(Router):
    """Each request goes to the engine after that of the one before."""

    def route(self, request: Request, now: int, engines: Items[Snapshot]) -> int:
        return sum(engine.sent for engine in engines) % len(engines)
