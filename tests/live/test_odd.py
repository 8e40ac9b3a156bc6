"""Odd answers and settings: what is still an answer is taken as one, what is none has a reason, a key stays secret."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from harness.config.server import Server
from harness.errors import HarnessError
from harness.live import stream as stream_module
from harness.live.client import Client, Outcome
from harness.live.stream import Answer, StreamError
from schedulers.request import Request
from tests.live.server import FakeServer, Stream, begin, event, http_error, piece, usage

KEY = "sk-very-secret-and-long"
FOUR = [event(piece({}, f" t{at}", "length" if at == 3 else None)) for at in range(4)]


def read(*parts: bytes) -> Answer:
    answer = Answer()
    for at, part in enumerate(parts):
        answer.feed(part, at)
    answer.close()
    return answer


def told(**counts: Any) -> bytes:
    return event({"choices": [], "usage": counts})


PRETTY = b"".join(b"data: " + line + b"\n" for line in json.dumps(piece({}, " t"), indent=1).encode().split(b"\n"))
FINE = {
    "a count before all": [told(prompt_tokens=3, completion_tokens=4), *FOUR],
    "a count of none before all": [told(prompt_tokens=3, completion_tokens=0), *FOUR],
    "no choices": [event({"choices": []}), *FOUR, event({"id": "x"}), event({"choices": None})],
    "heartbeats": [b"data:\n\n", b": ping\n\n", *FOUR, b"data: \r\n\r\n", b"\n\n\n"],
    "several data lines": [PRETTY + b"\n", *FOUR[1:]],
    "several data lines, CRLF": [PRETTY.replace(b"\n", b"\r\n") + b"\r\n", *FOUR[1:]],
    "no blank lines": [b"".join(FOUR).replace(b"\n\n", b"\n")],
    "cut within a letter": [bytes([byte]) for byte in b"".join(FOUR).replace(b" t1", " 🜂ä".encode())],
    "odd places": [*(event(piece({}, " t", index=index)) for index in (None, "0", [1])), FOUR[3]],  # type: ignore[arg-type]
    "odd counts": [*FOUR, told(completion_tokens="4", prompt_tokens=10**30, prompt_tokens_details=[1])],
    "huge counts": [*FOUR, told(completion_tokens=10**30, prompt_tokens_details={"cached_tokens": -1})],
    "true is no count": [*FOUR, told(completion_tokens=True)],
    "tokens after the end": [*FOUR[:3], event(b"[DONE]"), FOUR[3]],
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_is_odd_and_still_an_answer(name: str) -> None:
    answer = read(*FINE[name])
    assert (answer.pieces, answer.tokens) == (4, 4)
    assert answer.cached is None


@pytest.mark.parametrize(("parts", "said"), [
    ([event(b"{oops")], "an event is no JSON: '{oops'"),
    ([event(b"[" * 100_000)], "an event is no JSON"),
    ([b"data: \xff\xfe\n\n"], "an event is no JSON"),
    ([event({"choices": ["text"]})], "a choice is no object"),
    ([b"<html>"] * 30, "a line has more than 100 bytes"),
    ([event({"error": "out of memory"})], "the server says 'out of memory'"),
    ([b"error: {\"message\": \"slot busy\"}\n"], "the server says"),
])  # fmt: skip
def test_what_is_no_answer(parts: list[bytes], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "LONGEST", 100 if b"<html>" in parts else stream_module.LONGEST)
    with pytest.raises(StreamError, match=said.replace("{", r"\{")):
        read(*parts)


def outcomes(*ways: Stream, key: str = "", **settings: Any) -> tuple[list[Outcome], FakeServer]:
    """What becomes of a request that is answered in each of these ways."""

    async def send_all(server: FakeServer) -> list[Outcome]:
        asked = Server(server.url, "tiny", timeout_s=0.3, **settings)
        requests = [Request(number, 0, 3, 4) for number in range(len(ways))]
        async with Client(asked, "tiny") as client:
            return [await client.send(request, client.body(request, [5, 6, 7])) for request in requests]

    with FakeServer(ways=dict(enumerate(ways))) as server:
        return asyncio.run(send_all(server)), server


def parts_of(*parts: bytes, compressed: bool = False) -> Stream:
    async def way(server: FakeServer, request: web.Request, sent: dict[str, Any], number: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"}) if compressed else None
        if response:
            response.enable_compression(web.ContentCoding.gzip)
            await response.prepare(request)
        response = response or await begin(request)
        for part in parts:
            await response.write(part)
        return response

    return way


def test_every_way_has_its_status_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY + "\n")  # as a file has it that ends with a line
    long = f"{'x' * 150} {KEY}"  # where a quotation is cut, the beginning of the key would be seen
    given_up = parts_of(*FOUR[:2], event(piece({}, "", "abort")), event(usage({}, 2)), event(b"[DONE]"))
    found, server = outcomes(
        parts_of(*FOUR, compressed=True), given_up, http_error(429, "slow down", **{"Retry-After": "7"}),
        http_error(500, f"the key {KEY} is odd"), http_error(500, long), parts_of(event({"error": long})),
        parts_of(*FOUR),
    )  # fmt: skip
    assert [one.status for one in found] == ["finished", "failed", "rejected", "failed", "failed", "failed", "finished"]
    reasons = [one.reason or "" for one in found]
    assert reasons[1] == "the server gave it up after 2 of 4 tokens (finish_reason abort)"
    assert reasons[2] == "HTTP 429: 'slow down' (Retry-After: '7')"
    assert reasons[3] == "HTTP 500: 'the key *** is odd'"
    assert not any(KEY[:5] in reason for reason in reasons)
    assert {sent["Authorization"] for sent in server.headers} == {f"Bearer {KEY}"}
    assert {sent["Accept-Encoding"] for sent in server.headers} == {"identity"}, "to compress is to hold back"


def test_the_key_goes_to_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = Server.of({"url": "http://here:8000/v1/", "metrics": "http://here:8000.elsewhere/metrics"})
    assert server.root == "http://here:8000"
    assert server.headers(server.endpoint) == {"Authorization": f"Bearer {KEY}"}
    assert server.metrics_url
    assert server.headers(server.metrics_url) == {}
    monkeypatch.delenv("OPENAI_API_KEY")
    assert server.headers(server.endpoint) == {}
    assert (
        Server.of({"url": "http://here/openai/v1", "api_key_env": ""}).endpoint == "http://here/openai/v1/completions"
    )


@pytest.mark.parametrize(("keys", "said"), [
    ({"url": f"http://here/?key={KEY}"}, "or a query, which files would show"),
    ({"url": f"http://{KEY}@here"}, "a user or a password"),
    ({"url": "http://here:99999"}, "a port is a number"),
    ({"url": "http://here:port"}, "a port is a number"),
    ({"url": "http://here/v1/completions/"}, "leave the endpoint off"),
    ({"url": "http://here", "api_key_env": KEY}, "the name of an environment variable"),
    ({"url": "http://here", "api_key_env": "BROKEN"}, r"BROKEN \(server.api_key_env\) holds what no key does"),
    ({"url": "here:8000"}, "must be the server's address"),
])  # fmt: skip
def test_settings_that_can_not_be_right(keys: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", f"{KEY}\nmore")
    with pytest.raises(HarnessError, match=said) as raised:
        Server.of(keys)
    assert KEY not in str(raised.value)
