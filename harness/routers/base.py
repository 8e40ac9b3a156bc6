"""The contract of a router: which of several equal engines serves a request. It sees what a gateway before them sees.

To write a router, subclass `Router` and write `route(request, now, engines)`: look at the request and at what is known
of each engine, and return the number of one. All that is known follows from what was sent and what came back, so a
router does the same whether a simulation takes its steps one by one or together.
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
        engine: its number, from 0 on.
        sent, over: requests it was sent, and those of them that are known to be over: finished or rejected.
        sent_tokens, over_tokens: prompt tokens of these.
    """

    engine: int
    sent: int = 0
    over: int = 0
    sent_tokens: int = 0
    over_tokens: int = 0

    @property
    def requests(self) -> int:
        """Requests it is at, as far as is known."""
        return self.sent - self.over

    @property
    def tokens(self) -> int:
        """Prompt tokens of the requests it is at."""
        return self.sent_tokens - self.over_tokens


class Router(ABC):
    """Chooses an engine for each request, at its arrival and once for all.

    Args:
        num_engines: how many there are.
        delay_ns: how long it takes until a router hears that a request is over.
        seed: of whatever is drawn.
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
            engines: what is known of each, by number. To look at, not to change.
        """
