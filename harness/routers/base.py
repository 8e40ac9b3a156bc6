"""The contract of a router: it chooses which of several equal engines serves a request, and sees what a gateway sees.

To write a router, subclass `Router` and write `route(request, now, engines)`: look at the request and at the snapshot
of each engine, and return the number of one engine. Snapshots contain only what was sent and what came back, so a
router decides the same whether a simulation takes its steps one by one or together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from dataclasses import dataclass

from schedulers.request import Request


@dataclass(slots=True)
class Snapshot:
    """What a router knows of an engine when a request arrives.

    Attributes:
        engine: the engine's number, from 0 on.
        sent: requests sent to the engine.
        ended: requests of the engine that are known to be finished or rejected.
        sent_tokens, ended_tokens: prompt tokens of these requests.
    """

    engine: int
    sent: int = 0
    ended: int = 0
    sent_tokens: int = 0
    ended_tokens: int = 0

    @property
    def requests(self) -> int:
        """Requests that the engine still has, as far as the router knows."""
        return self.sent - self.ended

    @property
    def tokens(self) -> int:
        """Prompt tokens of the requests that the engine still has."""
        return self.sent_tokens - self.ended_tokens


class Router(ABC):
    """Chooses an engine for each request when it arrives; the request stays there.

    Args:
        num_engines: number of engines.
        delay_ns: time until the router hears that a request has ended.
        seed: seed of random choices.
    """

    def __init__(self, num_engines: int, delay_ns: int = 0, seed: int = 0) -> None:
        if isinstance(delay_ns, bool) or not isinstance(delay_ns, int) or delay_ns < 0:
            raise ValueError(f"router.delay_ns must be a whole number of nanoseconds, at least 0, got {delay_ns!r}")
        self.num_engines = num_engines
        self.delay_ns = delay_ns
        self.seed = seed

    @abstractmethod
    def route(self, request: Request, now: int, engines: Items[Snapshot]) -> int:
        """The number of the engine that serves `request`, which arrives at `now` (ns).

        Args:
            engines: a snapshot of each engine, by number; read-only.
        """
