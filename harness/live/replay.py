"""The loop that sends each request of a workload to a server when it is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from harness.job import infrequent_gc
from harness.live.client import Client
from harness.live.engine import Scraper
from harness.live.log import ClientLog
from harness.live.prompts import Ids, Text
from harness.replay.replayer import Source, WorkloadLike
from schedulers.request import Request

EARLY_NS = 1_000_000  # a sleep may end up to a millisecond late, so the last millisecond is spent polling
PROBE_S = 0.25  # between two checks whether the server is back
BEAT_S = 0.02  # between two measurements of the event loop's lag


class LiveReplay:
    """Sends every request of a workload: at its arrival time, or in a closed loop when one in flight has ended.

    Args:
        client: sends them; its `clock` is set to this replay's, so that all times count from the replay's start.
        prompts: makes the prompt of each request.
        log: records every outcome.
        scraper: reads the engine's metrics meanwhile; None = no metrics.
        on_progress: called after each request with (requests over, tokens so far).

    Attributes:
        lags_ns: lag of the client's event loop, measured every `BEAT_S`: a busy client adds it to every latency.
        cpu_s, wall_s: CPU time of this process during the replay, and the replay's duration.
        gone: why the rest was not sent, if the server went away for good.
        broken: an error of the client itself, or of a prompt that can't be made.
    """

    def __init__(self, client: Client, workload: WorkloadLike, prompts: Ids | Text, log: ClientLog,
                 scraper: Scraper | None = None,
                 on_progress: Callable[[int, int], None] | None = None) -> None:  # fmt: skip
        self.client, self.source, self.prompts, self.log = client, Source(workload), prompts, log
        self.scraper, self.on_progress = scraper, on_progress
        self.lags_ns: list[int] = []
        self.cpu_s = self.wall_s = 0.0
        self.gone: str | None = None
        self.broken: BaseException | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._over = 0
        self._next = -1, b""  # the next request's id and body
        self._down_since: int | None = None
        self._zero = 0

    @property
    def now(self) -> int:
        """Nanoseconds since the start."""
        return time.perf_counter_ns() - self._zero

    async def run(self) -> None:
        """Send all, and wait until the last one is over, the server is gone, or this is cancelled.

        However it ends, whatever was sent has its outcome in the log.
        """
        self._zero = time.perf_counter_ns()
        self.client.clock = lambda: time.perf_counter_ns() - self._zero
        helpers = [asyncio.create_task(self._beat())]
        if self.scraper:
            helpers.append(asyncio.create_task(self.scraper.run(lambda: self.now)))
        begun = time.process_time()
        try:
            with infrequent_gc():
                await self._send_all()
        finally:
            self.cpu_s, self.wall_s = time.process_time() - begun, self.now / 1e9
            for task in (*self._running, *helpers):
                task.cancel()
            await asyncio.gather(*self._running, *helpers, return_exceptions=True)
            if self.scraper:
                with suppress(asyncio.CancelledError, aiohttp.ClientError):
                    await self.scraper.take(self.now)

    async def _send_all(self) -> None:
        source = self.source
        while source.pending or self._running:
            if self.broken:
                raise self.broken
            if self.gone:
                return
            at = source.next_at()
            if at is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            self._next = source.pending[0].id, self._body(source.pending[0])  # made while there is time
            await self._until(at)
            if source.closed and self._down_since is not None:
                await self._back()
                if self.gone:
                    return
            for request in source.due(self.now):
                task = asyncio.create_task(self._one(request))
                self._running.add(task)
                task.add_done_callback(self._finished)

    def _body(self, request: Request) -> bytes:
        number, body = self._next
        return body if number == request.id else self.client.body(request, self.prompts(request))

    async def _one(self, request: Request) -> None:
        outcome = await self.client.send(request, self._body(request))
        self.log.over(request, outcome)
        now = self.now
        if outcome.reached:
            self._down_since = None
        elif outcome.status == "failed":
            self._down_since = self._down_since if self._down_since is not None else now
            if now - self._down_since > self.client.server.gone_s * 1e9:
                self.gone = self._farewell()
        self._over += 1
        self.source.on_ended(1, now)
        if self.on_progress:
            self.on_progress(self._over, self.log.tokens)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()):  # ours, not the server's
            self.broken = self.broken or error

    async def _until(self, when: int) -> None:
        """Sleep until `when` (ns), to a fraction of a millisecond, or until the server is gone."""
        while (left := when - self.now) > 0 and not self.gone:
            await asyncio.sleep(min((left - EARLY_NS) / 1e9, PROBE_S) if left > EARLY_NS else 0)

    async def _back(self) -> None:
        """Wait until the server answers again, or a closed loop would use up its requests while the server is down."""
        server, since = self.client.server, self._down_since or self.now
        url = f"{server.root}/v1/models"
        while self.now - since <= server.gone_s * 1e9:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with self.client.session.get(url, headers=server.headers(url)):
                    self._down_since = None
                    return
            await asyncio.sleep(PROBE_S)
        self.gone = self._farewell()

    def _farewell(self) -> str:
        return f"the server is gone: no connection for {self.client.server.gone_s:g} s (server.gone_s)"

    async def _beat(self) -> None:
        """Measure the lag of the event loop until cancelled."""
        while True:
            due = self.now + int(BEAT_S * 1e9)
            await asyncio.sleep(BEAT_S)
            self.lags_ns.append(max(self.now - due, 0))
