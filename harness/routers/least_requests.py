"""The engine that is at the fewest requests."""

from __future__ import annotations

from collections.abc import Sequence as Items

from harness.routers.base import Router, Snapshot
from schedulers.request import Request


class LeastRequests(Router):
    """Each request goes to the engine that is at the fewest requests, as far as is known; of equals to the first."""

    def route(self, request: Request, now: int, engines: Items[Snapshot]) -> int:
        return min(engines, key=lambda engine: engine.requests).engine
