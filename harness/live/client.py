"""Sends one request and reads its answer; whatever happens to it becomes a status and a reason."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import aiohttp

from harness.config.server import Server
from harness.live.stream import Answer, StreamError, message_of, quoted
from schedulers.request import Request

KEEPALIVE_S = 4  # a kept connection is dropped before the server drops it (uvicorn after 5 s), or requests get lost
ABORTED = frozenset(("abort", "error"))  # `finish_reason` of a request that the engine gave up
LOOKS = 10  # checks of a stream within its timeout
HEAD = 4096  # bytes of an error that are read


class Outcome(NamedTuple):
    """What became of a request.

    Attributes:
        status: finished, rejected (the server refused it: 4xx), failed or unfinished.
        reason: why; of a finished request, what is odd about it.
        sent_ns: when it was sent; -1 = never.
        answer: as much of it as came.
        reached: whether the server answered at all.
    """

    status: str
    reason: str | None
    sent_ns: int
    answer: Answer
    reached: bool = True


class Client:
    """Connections to a server.

    It reads streams with aiohttp, as `vllm bench serve` does, so both measure the same client overhead. Use it as an
    asynchronous context manager.

    Args:
        clock: the time in ns.
    """

    def __init__(self, server: Server, model: str, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.server, self.model, self.clock = server, model, clock
        self._places = asyncio.Semaphore(server.max_connections) if server.max_connections else None

    async def __aenter__(self) -> Client:
        self.session = open_session(self.server)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def send(self, request: Request, body: bytes) -> Outcome:
        """Send a request and wait for the end of its answer, as soon as there is a connection for it."""
        if self._places is None:
            return await self._send(request, body)
        try:
            await self._places.acquire()
        except asyncio.CancelledError:
            return Outcome("unfinished", "stopped before there was a connection for it", -1, Answer())
        try:
            return await self._send(request, body)
        finally:
            self._places.release()

    def body(self, request: Request, prompt: Any) -> bytes:
        """The JSON to send: greedy decoding for one answer, sampling for several (greedy ones would all be equal)."""
        asked = request.output_len if self.server.ignore_eos else request.max_tokens or request.output_len
        body: dict[str, Any] = {"model": self.model, "max_tokens": asked, "temperature": float(request.n > 1)}
        if self.server.api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.server.ignore_eos:
            body["ignore_eos"] = True
        if request.n > 1:
            body["n"] = request.n
        return json.dumps(body | dict(self.server.extra_body or {})).encode()

    async def _send(self, request: Request, body: bytes) -> Outcome:
        answer, sent, reached, url = Answer(), self.clock(), False, self.server.endpoint

        def over(status: str, reason: str | None) -> Outcome:
            return Outcome(status, reason and self.server.hide(reason), sent, answer, reached)

        try:
            async with asyncio.timeout(self.server.timeout_s):
                headers = self.server.headers(url)
                response = await self.session.post(url, data=body, headers=headers, allow_redirects=False)
            async with response, StallTimer(response.content, self.server.timeout_s) as timer:
                reached = True
                if response.status != 200:
                    said = quoted(await _error(response))
                    refused = 400 <= response.status < 500
                    later = response.headers.get("Retry-After")
                    again = f" (Retry-After: {quoted(later)})" if later else ""
                    return over("rejected" if refused else "failed", f"HTTP {response.status}: {said}{again}")
                if response.content_type != "text/event-stream":
                    said = quoted(await response.content.read(HEAD))
                    return over("failed", f"the answer is no event stream but {response.content_type}: {said}")
                async for piece in response.content.iter_any():
                    timer.broken = True
                    answer.feed(piece, self.clock())
        except StreamError as error:
            return over("failed", f"{_after(answer, request)}: {error}")
        except asyncio.CancelledError:
            return over("unfinished", f"stopped {_after(answer, request)}")
        except (aiohttp.ServerTimeoutError, TimeoutError):
            return over("failed", f"nothing came for {self.server.timeout_s:g} s, {_after(answer, request)}")
        except aiohttp.ClientConnectorError as error:
            return over("failed", f"no connection: {why_none(error)}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            return over("failed", f"the connection broke {_after(answer, request)}: {quoted(why)}")
        answer.close()
        return over(*verdict(answer, request, self.server.ignore_eos))


class StallTimer:
    """Raises `TimeoutError` in the reader of a stream that was silent for `most_s`, with a resolution of a tenth.

    aiohttp's own `sock_read` sets a new timer for each piece, an eighth of the client's work per piece; this one checks
    ten times per `most_s` whether something came.

    Attributes:
        broken: set it when something came.
    """

    def __init__(self, stream: aiohttp.StreamReader, most_s: float) -> None:
        self.stream, self.every_s = stream, most_s / LOOKS
        self.broken, self.looks = False, 0

    async def __aenter__(self) -> StallTimer:
        self._later()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.timer.cancel()

    def _later(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(self.every_s, self._look)

    def _look(self) -> None:
        self.looks = 0 if self.broken else self.looks + 1
        self.broken = False
        if self.looks < LOOKS:
            self._later()
        else:
            self.stream.set_exception(TimeoutError())


def verdict(answer: Answer, request: Request, ignore_eos: bool) -> tuple[str, str | None]:
    """Status and reason of a request whose stream ended by itself."""
    if not answer.pieces:
        return "failed", f"the stream ended without a token{' (it said [DONE])' if answer.done else ''}"
    tokens, asked = answer.tokens, request.output_len * request.n
    if len(answer.ended) < request.n and not (answer.done and tokens >= asked):
        said = "[DONE] came" if answer.done else "the stream ended"
        return "failed", f"{said} {_after(answer, request)}, without a finish_reason"
    if aborted := ABORTED.intersection(answer.ended.values()):
        return "failed", f"the server gave it up {_after(answer, request)} (finish_reason {min(aborted)})"
    if answer.pieces > tokens:
        return "finished", f"the server counts {tokens} tokens and sent {answer.pieces} pieces"
    if ignore_eos and tokens != asked:
        why = ", ".join(sorted(set(answer.ended.values()))) or "none"
        return "finished", f"{tokens} tokens instead of {asked} (finish_reason {why})"
    return "finished", None


def open_session(server: Server) -> aiohttp.ClientSession:
    """A session without a limit on connections or on the total time of a request; `StallTimer` ends silent ones."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=300)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=server.timeout_s, sock_read=None)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}  # compression would buffer tokens
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)


def why_none(error: aiohttp.ClientConnectorError) -> str:
    """Why there is no connection: the system's error, or what is wrong with the certificate."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    return error.os_error.strerror or str(error.os_error)


async def _error(response: aiohttp.ClientResponse) -> str:
    """The message in the body of an error response."""
    text = (await response.content.read(HEAD)).decode("utf-8", "replace")
    try:
        return message_of(json.loads(text))
    except ValueError:
        return text or response.reason or ""


def _after(answer: Answer, request: Request) -> str:
    return f"after {answer.tokens} of {request.output_len * request.n} tokens"
