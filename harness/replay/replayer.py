"""The loop that feeds a workload to engines under a clock. The same for every system compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from heapq import heappop, heappush
from typing import Protocol

from harness.errors import HarnessError
from harness.replay.clock import Clock
from harness.replay.engine import Engine, StalledError
from harness.routers.base import Router
from harness.routers.desk import Desk
from schedulers.request import Request

LANDING, WAKING = range(2)  # at the same time, in this order


class WorkloadLike(Protocol):
    """What the replayer needs of a workload: requests by arrival, and how many are in flight in a closed loop."""

    requests: list[Request]
    concurrency: int | None


class Source:
    """Arrivals in order. In a closed loop the next request arrives when one of the `concurrency` in flight is over.

    Args:
        client_ns: what lies, in a closed loop, between a client's sending and the arrival.
    """

    def __init__(self, workload: WorkloadLike, client_ns: int = 0) -> None:
        self.pending = deque(workload.requests)
        self.client_ns = client_ns
        self.closed = workload.concurrency is not None
        self.injected = 0
        if self.closed:
            for i, request in enumerate(self.pending):
                request.arrival_ns = client_ns if i < (workload.concurrency or 0) else -1

    def next_at(self) -> int | None:
        """When the next request arrives (ns); None when none is left or none arrives before another is over."""
        if self.pending and self.pending[0].arrival_ns >= 0:
            return self.pending[0].arrival_ns
        return None

    def due(self, now: int) -> Iterator[Request]:
        """Those that have arrived by `now`; one that arrives because of what is done with these follows at once."""
        while self.pending and 0 <= self.pending[0].arrival_ns <= now:
            self.injected += 1
            yield self.pending.popleft()

    def over(self, count: int, now: int) -> None:
        """`count` requests are finished or rejected."""
        if self.closed:
            waiting = (request for request in self.pending if request.arrival_ns < 0)
            for request, _ in zip(waiting, range(count), strict=False):
                request.arrival_ns = now + self.client_ns


def replay(source: Source, engines: Items[Engine], clock: Clock, router: Router | None = None,
           on_progress: Callable[[int, int], None] | None = None) -> None:  # fmt: skip
    """Serve every request of `source` and record what happened.

    Args:
        engines: side by side under one clock. Several need a virtual one, and a router.
        router: says which of several engines a request goes to.
        on_progress: called after each step with (requests over, tokens produced so far).

    Raises:
        StalledError: a scheduler that makes no progress though work waits.
        HarnessError: several engines without a router or a virtual clock, or a router that names none of them.
    """
    if len(engines) > 1 and not clock.virtual:
        raise HarnessError("several engines side by side can only be simulated: they need a virtual clock")
    Replay(source, engines, clock, Desk(router, len(engines)), on_progress).run()


class Replay:
    """A heap of what happens when. At one time landings come first, then arrivals; then engines start new steps."""

    def __init__(self, source: Source, engines: Items[Engine], clock: Clock, desk: Desk,
                 on_progress: Callable[[int, int], None] | None) -> None:  # fmt: skip
        self.source, self.engines, self.clock, self.desk, self.on_progress = source, engines, clock, desk, on_progress
        self.events: list[tuple[int, int, int]] = []  # when (ns), what, of which engine; arrivals are in order anyway
        self.alarms = [-1] * len(engines)  # when idle ones want to be woken (ns); wakings at other times are stale
        self.free = set(range(len(engines)))  # those that may start a step now
        self.over = self.tokens = self.flying = 0

    def run(self) -> None:
        events, source, clock, free, alone = self.events, self.source, self.clock, self.free, len(self.engines) == 1
        now = ended = clock.now
        while True:
            while events and events[0][0] <= now:
                when, kind, at = heappop(events)
                if kind == LANDING:
                    self._land(at)
                    now = ended = clock.now
                elif when == self.alarms[at]:
                    free.add(at)
            if alone and self.flying:  # who arrives meanwhile is seen when the step lands
                now = clock.wait_until(events[0][0])
                continue
            arrival = source.next_at()
            if arrival is not None and arrival <= now:
                self._deliver(now)
                arrival = source.next_at()
            if free:
                self._start(now, arrival)
            elif not source.pending and self.over == source.injected:
                break
            elif events and (arrival is None or events[0][0] < arrival):
                now = clock.wait_until(events[0][0])
            elif arrival is not None:
                now = clock.wait_until(arrival)
            else:
                raise StalledError(self._stalled())
        for engine in self.engines:
            engine.close(ended)

    def _land(self, at: int) -> None:
        engine = self.engines[at]
        tokens, over = engine.land(self.clock)
        self.flying -= 1
        self.tokens += tokens
        if over:
            self._lose(at, over, self.clock.now)
        if self.desk.router:
            self._hand_over(self.desk.collect(at), at, self.clock.now)
        self.free.add(at)
        if self.on_progress:
            self.on_progress(self.over, self.tokens)

    def _deliver(self, now: int) -> None:
        """Hand over all that have arrived; who is sent to an engine whose step has not landed waits until it has."""
        if not self.desk.router:
            self._hand_over(self.source.due(now), 0, now)
            return
        for request in self.source.due(now):
            at = self.desk.route(request, now)
            if at in self.free or not self.engines[at].under_way:
                self._hand_over([request], at, now)
            else:
                self.desk.keep(at, request)

    def _hand_over(self, requests: Iterable[Request], at: int, now: int) -> None:
        engine = self.engines[at]
        for request in requests:
            if engine.add(request, now):
                self._lose(at, [request], now)
        self.free.add(at)

    def _lose(self, at: int, over: list[Request], now: int) -> None:
        """These are over: finished or rejected."""
        self.over += len(over)
        if self.source.closed:
            self.source.over(len(over), now)
        if self.desk.router:
            self.desk.over(at, over, now)

    def _start(self, now: int, arrival: int | None) -> None:
        """Let the free engines start steps, or hear when they want to be woken."""
        several = len(self.engines) > 1
        if self.source.closed and several:  # what lands next, of steps that start now, may let one arrive
            arrival = now
        for at in sorted(self.free) if several else (0,):
            engine = self.engines[at]
            self.alarms[at] = -1
            lands = engine.start(self.clock, arrival, several)
            if lands is not None:
                self.flying += 1
                heappush(self.events, (lands, LANDING, at))
            elif (wake := engine.wake_at(now)) is not None:
                self.alarms[at] = wake
                heappush(self.events, (wake, WAKING, at))
        self.free.clear()

    def _stalled(self) -> str:
        """Who is left although nothing is due."""
        told = [engine.stalled() for engine in self.engines if engine.scheduler.num_requests]
        return f"{'; '.join(told)}; no arrival is due ({len(self.source.pending)} still to come)"
