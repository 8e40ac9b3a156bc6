"""The loop that feeds a workload to engines under a clock. Every system compared runs in this same loop."""

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
from harness.routers.dispatcher import Dispatcher
from schedulers.request import Request

LANDING, WAKING = range(2)  # at the same time, in this order


class WorkloadLike(Protocol):
    """What the replayer needs of a workload: requests by arrival, and how many are in flight in a closed loop."""

    requests: list[Request]
    concurrency: int | None


class Source:
    """Arrivals in order. In a closed loop a request is sent when one of the `concurrency` in flight has ended."""

    def __init__(self, workload: WorkloadLike) -> None:
        self.pending = deque(workload.requests)
        self.closed = workload.concurrency is not None
        self.injected = 0
        if self.closed:
            for i, request in enumerate(self.pending):
                request.arrival_ns = self.arrival_ns(request, 0) if i < (workload.concurrency or 0) else -1

    def next_at(self) -> int | None:
        """When the next request arrives (ns); None if none is left, or if it waits for another request to end."""
        if self.pending and self.pending[0].arrival_ns >= 0:
            return self.pending[0].arrival_ns
        return None

    def due(self, now: int) -> Iterator[Request]:
        """Requests that have arrived by `now`, including those that arrive because an earlier one of them ended."""
        while self.pending and 0 <= self.pending[0].arrival_ns <= now:
            self.injected += 1
            yield self.pending.popleft()

    def on_ended(self, count: int, now: int) -> None:
        """`count` requests were finished or rejected at `now` (ns)."""
        if self.closed:
            waiting = (request for request in self.pending if request.arrival_ns < 0)
            for request, _ in zip(waiting, range(count), strict=False):
                request.arrival_ns = self.arrival_ns(request, now)

    def arrival_ns(self, request: Request, sent: int) -> int:
        """When a request arrives that a client of a closed loop sends at `sent` (ns): at once, unless overridden."""
        return sent


def replay(source: Source, engines: Items[Engine], clock: Clock, router: Router | None = None,
           on_progress: Callable[[int, int], None] | None = None) -> None:  # fmt: skip
    """Serve every request of `source` and record what happened.

    Args:
        engines: side by side under one clock. Several engines need a virtual clock and a router.
        router: decides which of several engines a request goes to.
        on_progress: called after each step with (requests ended, tokens produced so far).

    Raises:
        StalledError: a scheduler that makes no progress though work waits.
        HarnessError: several engines without a router or a virtual clock, or a router that names none of them.
    """
    if len(engines) > 1 and not clock.virtual:
        raise HarnessError("several engines side by side can only be simulated: they need a virtual clock")
    Replay(source, engines, clock, Dispatcher(router, len(engines)), on_progress).run()


class Replay:
    """An event loop over a heap. At equal times landings come first, then arrivals; then engines start new steps."""

    def __init__(self, source: Source, engines: Items[Engine], clock: Clock, dispatcher: Dispatcher,
                 on_progress: Callable[[int, int], None] | None) -> None:  # fmt: skip
        self.source, self.engines, self.clock = source, engines, clock
        self.dispatcher, self.on_progress = dispatcher, on_progress
        self.events: list[tuple[int, int, int]] = []  # time (ns), kind, engine; arrivals come from `source`
        self.alarms = [-1] * len(engines)  # when idle engines want to be woken (ns); wake-ups at other times are stale
        self.free = set(range(len(engines)))  # engines that may start a step now
        self.several = len(engines) > 1
        self.ended = self.tokens = self.in_flight = 0

    def run(self) -> None:
        events, source, clock, free, alone = self.events, self.source, self.clock, self.free, not self.several
        now = ended = clock.now
        while True:
            while events and events[0][0] <= now:
                when, kind, at = heappop(events)
                if kind == LANDING:
                    self._land(at)
                    now = ended = clock.now
                elif when == self.alarms[at]:
                    free.add(at)
            if alone and self.in_flight:  # requests that arrive meanwhile are seen when the step lands
                now = clock.wait_until(events[0][0])
                continue
            arrival = source.next_at()
            if arrival is not None and arrival <= now:
                self._deliver(now)
                arrival = source.next_at()
            if free:
                self._start(now, arrival)
            elif not source.pending and self.ended == source.injected:
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
        tokens, ended = self.engines[at].land(self.clock)
        self.in_flight -= 1
        self.tokens += tokens
        if ended:
            self._record_ended(at, ended, self.clock.now)
        if self.dispatcher.router:
            self._hand_over(self.dispatcher.take_held(at), at, self.clock.now)
        self.free.add(at)
        if self.on_progress:
            self.on_progress(self.ended, self.tokens)

    def _deliver(self, now: int) -> None:
        """Hand over all requests that have arrived. An engine with a step under way gets its requests when it lands."""
        if not self.dispatcher.router:
            self._hand_over(self.source.due(now), 0, now)
            return
        for request in self.source.due(now):
            at = self.dispatcher.route(request, now)
            if at in self.free or not self.engines[at].under_way:
                self._hand_over([request], at, now)
            else:
                self.dispatcher.hold(at, request)

    def _hand_over(self, requests: Iterable[Request], at: int, now: int) -> None:
        engine = self.engines[at]
        for request in requests:
            if engine.add(request, now):
                self._record_ended(at, [request], now)
        self.free.add(at)

    def _record_ended(self, at: int, requests: list[Request], now: int) -> None:
        """Count requests of an engine that were finished or rejected."""
        self.ended += len(requests)
        if self.source.closed:
            self.source.on_ended(len(requests), now)
        if self.dispatcher.router:
            self.dispatcher.record_ended(at, requests, now)

    def _start(self, now: int, arrival: int | None) -> None:
        """Let the free engines start steps, or note when they want to be woken."""
        several = self.several
        if several and self.source.closed:  # a step that starts now may let a request arrive when it lands
            arrival = now
        for at in sorted(self.free) if several else (0,):
            engine = self.engines[at]
            self.alarms[at] = -1
            lands = engine.start(self.clock, arrival, several)
            if lands is not None:
                self.in_flight += 1
                heappush(self.events, (lands, LANDING, at))
            elif (wake := engine.wake_at(now)) is not None:
                self.alarms[at] = wake
                heappush(self.events, (wake, WAKING, at))
        self.free.clear()

    def _stalled(self) -> str:
        """The engines with requests left although no event is due, as a message."""
        stalled = [engine.stalled() for engine in self.engines if engine.scheduler.num_requests]
        return f"{'; '.join(stalled)}; no arrival is due ({len(self.source.pending)} still to come)"
