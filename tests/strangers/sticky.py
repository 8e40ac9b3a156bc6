"""A router that keeps conversations together, written after reading `harness/routers/base.py`."""

from __future__ import annotations

import random
from collections.abc import Sequence as Items

from harness.routers.base import Router, Snapshot
from schedulers.request import Request


class Sticky(Router):
    """A session stays where it began. Whoever is new goes to the less loaded of two engines drawn at random.

    Args:
        spread: a session leaves an engine that is at so many times the tokens of the least loaded one.
    """

    def __init__(self, num_engines: int, delay_ns: int = 0, seed: int = 0, spread: float = 4.0) -> None:
        super().__init__(num_engines, delay_ns, seed)
        self.spread = spread
        self.random = random.Random(seed)
        self.homes: dict[str, int] = {}

    def route(self, request: Request, now: int, engines: Items[Snapshot]) -> int:
        home = self.homes.get(request.session) if request.session else None
        least = min(engine.tokens for engine in engines)
        if home is not None and engines[home].tokens <= self.spread * (least + request.prompt_len):
            return home
        drawn = self.random.sample(range(self.num_engines), min(2, self.num_engines))
        at = min(drawn, key=lambda number: (engines[number].tokens, number))
        if request.session:
            self.homes[request.session] = at
        return at
