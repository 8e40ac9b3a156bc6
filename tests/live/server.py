"""A small OpenAI-compatible server in a thread of the test's own process, which misbehaves as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

Stream = Callable[["FakeServer", web.Request, dict[str, Any], int], Any]


class FakeServer:
    """Answers completions token by token.

    Args:
        step_s: between two tokens.
        ways: by the number of a request (0 is the warm-up), how it is answered; others well.
        always: how all are answered.
        metrics: what `/metrics` says, called with the number of requests seen; None = there is no such page.
        version: what `/version` says, as vLLM does; "" = there is no such page.
        pages: what other paths say, as JSON: `/info` of TGI, `/props` of llama.cpp, `/server_info` of SGLang.

    Attributes:
        bodies, headers: of the requests for completions, in the order in which they came.
        most_open, over: requests at once at most, and those that are over.
    """

    def __init__(self, step_s: float = 0.002, ways: dict[int, Stream] | None = None, always: Stream | None = None,
                 metrics: Callable[[int], str] | None = None, version: str = "0.32.0",
                 max_model_len: int | None = 4096, pages: dict[str, Any] | None = None) -> None:  # fmt: skip
        self.step_s, self.ways, self.always, self.metrics, self.version = step_s, ways or {}, always, metrics, version
        self.max_model_len, self.pages = max_model_len, pages or {}
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open = self.most_open = self.over = self.port = 0

    def __enter__(self) -> FakeServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the same port as before if it did."""
        asyncio.run_coroutine_threadsafe(self.listen(), self._loop).result(10)

    def stop(self) -> None:
        """Die: connections break."""
        asyncio.run_coroutine_threadsafe(self.die(), self._loop).result(10)

    async def listen(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/version", self.tell_version)
        app.router.add_get("/metrics", self.tell_metrics)
        for path, told in self.pages.items():
            app.router.add_get(path, lambda request, told=told: self.tell(told))
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def die(self) -> None:
        for connection in list(self._runner.server.connections if self._runner.server else ()):
            if connection.transport:
                connection.transport.abort()
        await self._runner.cleanup()

    async def models(self, request: web.Request) -> web.Response:
        longest = {"max_model_len": self.max_model_len} if self.max_model_len else {}
        return web.json_response({"data": [{"id": "tiny", **longest}]})

    async def tell_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version}) if self.version else web.Response(status=404)

    async def tell(self, told: Any) -> web.Response:
        return web.json_response(told)

    async def tell_metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics(len(self.bodies))) if self.metrics else web.Response(status=404)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        number = len(self.bodies)
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await (self.ways.get(number) or self.always or well)(self, request, body, number)
        finally:
            self.open -= 1
            self.over += 1


async def begin(request: web.Request, kind: str = "text/event-stream") -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    return response


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def piece(body: dict[str, Any], text: str, why: str | None = None, index: int = 0) -> dict[str, Any]:
    """An event with a piece of a choice's text."""
    if "messages" in body:
        return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": why}]}
    return {"choices": [{"index": index, "text": text, "finish_reason": why}]}


def usage(body: dict[str, Any], tokens: int) -> dict[str, Any]:
    prompt = body.get("prompt", "")
    asked = len(prompt if isinstance(prompt, list) else prompt.split())
    return {"choices": [], "usage": {"prompt_tokens": asked, "completion_tokens": tokens}}


async def well(server: FakeServer, request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
    """As it should be: a token a piece, why it ends in the last one, the count, [DONE]."""
    response = await begin(request)
    if "messages" in body:
        await response.write(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
    tokens, answers = body["max_tokens"], body.get("n", 1)
    for at in range(tokens):
        await asyncio.sleep(server.step_s)
        why = "length" if at + 1 == tokens else None
        await response.write(b"".join(event(piece(body, f" t{at}", why, index)) for index in range(answers)))
    await response.write(event(usage(body, tokens * answers)) + event(b"[DONE]"))
    return response


def http_error(status: int, said: str = "no", **headers: str) -> Stream:
    """No stream but an error."""

    async def way(server: FakeServer, request: web.Request, sent: dict[str, Any], number: int) -> web.StreamResponse:
        return web.Response(status=status, text=said, headers=headers)

    return way
