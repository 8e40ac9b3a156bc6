"""Whatever a server does, every request has a status and a reason, and the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from aiohttp import web

from harness.job import run_job
from harness.tasks.claims import composed
from tests.live.server import FakeServer, Stream, begin, event, http_error, piece, usage, well

COUNT, TOKENS = 6, 8
COMMON = ("device=server", "workload=fixed", "workload.prompt.value=12", f"workload.output.value={TOKENS}",
          f"workload.num_requests={COUNT}", "workload.rate=100", "server.timeout_s=0.3",
          "server.gone_s=1")  # fmt: skip
Ways = dict[int, Stream]


def run(folder: Path, server: FakeServer, *more: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    overrides = [*COMMON, f"server.url={server.url}", *more]
    row = run_job(composed(overrides), folder, overrides)
    return pd.read_csv(folder / "requests.csv"), row


def stream(*parts: bytes | float | type[ConnectionError], kind: str = "text/event-stream") -> Stream:
    """Bytes as they are, pauses in s, and an end of the connection."""

    async def way(server: FakeServer, request: web.Request, sent: dict[str, Any], number: int) -> web.StreamResponse:
        response = await begin(request, kind)
        for part in parts:
            if isinstance(part, bytes):
                await response.write(part)
            elif isinstance(part, float):
                await asyncio.sleep(part)
            elif request.transport:
                request.transport.abort()
        return response

    return way


BODY: dict[str, Any] = {}
TWO = event(piece(BODY, " a")) + event(piece(BODY, " b"))
ALL = b"".join(event(piece(BODY, f" t{at}", "length" if at + 1 == TOKENS else None)) for at in range(TOKENS))
WAYS: dict[str, tuple[Stream, str, str]] = {
    "bad request": (http_error(400, '{"error": {"message": "too long"}}'), "rejected", "HTTP 400: 'too long'"),
    "too many": (http_error(429, '{"message": "slow down"}'), "rejected", "HTTP 429: 'slow down'"),
    "broken": (http_error(500, "<html>oops</html>"), "failed", "HTTP 500: '<html>oops</html>'"),
    "moved": (http_error(307, ""), "failed", "HTTP 307"),
    "stalls at once": (stream(1.0), "failed", "nothing came for 0.3 s, after 0 of 8 tokens"),
    "stalls": (stream(TWO, 1.0), "failed", "nothing came for 0.3 s, after 2 of 8 tokens"),
    "ends early": (stream(TWO), "failed", "the stream ended after 2 of 8 tokens, without a finish_reason"),
    "says it is done early": (stream(TWO, event(b"[DONE]")), "failed", "[DONE] came after 2 of 8 tokens"),
    "breaks": (stream(TWO, 0.02, ConnectionError), "failed", "the connection broke after 2 of 8 tokens"),
    "no stream": (stream(b'{"choices": [{"text": "all at once"}]}', kind="application/json"), "failed",
                  "no event stream but application/json"),
    "no events": (stream(b"hello\n\nhello\n\n"), "failed", "it is no event stream: 'hello'"),
    "no JSON": (stream(event(b"{oops")), "failed", "an event is no JSON: '{oops'"),
    "no object": (stream(event(b"[1, 2]")), "failed", "an event is no object"),
    "an error in the stream": (stream(TWO, event({"error": {"message": "out of memory", "code": 500}})), "failed",
                               "after 2 of 8 tokens: the server says 'out of memory'"),
    "nothing": (stream(event(b"[DONE]")), "failed", "the stream ended without a token (it said [DONE])"),
    "ends by itself": (stream(TWO, event(piece(BODY, "", "stop")), event(usage(BODY, 2)), event(b"[DONE]")), "finished",
                       "2 tokens instead of 8 (finish_reason stop)"),
    "counts wrongly": (stream(ALL, event(usage(BODY, 5)), event(b"[DONE]")), "finished",
                       "the server counts 5 tokens and sent 8 pieces"),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_one_request_is_lost_and_has_a_reason(name: str, tmp_path: Path) -> None:
    way, status, reason = WAYS[name]
    with FakeServer(ways={3: way}) as server:  # 0 is the warm-up
        table, summary = run(tmp_path, server)
    assert summary["status"] == "finished", summary["error"]
    assert table["status"].tolist() == [status if at == 2 else "finished" for at in range(COUNT)]
    assert reason in table.loc[2, "reason"]
    assert table["reason"].isna().sum() == COUNT - 1
    assert summary["injected"] == COUNT
    assert summary["finished"] + summary["rejected"] + summary["failed"] + summary["unfinished"] == COUNT
    others = table.drop(index=2) if status != "finished" else table
    assert summary["e2e_mean_ms"] == pytest.approx(others["e2e_ms"].mean())
    assert any("odd" in text or "see requests.csv" in text for text in summary["warnings"])


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
def test_a_stream_may_be_cut_anywhere(cut: int, tmp_path: Path) -> None:
    whole = b": ping\r\n\r\nevent: message\r\n" + ALL.replace(b"\n", b"\r\n") + event(usage(BODY, 8)) + event(b"[DONE]")
    parts = [part for at in range(0, len(whole), cut) for part in (whole[at : at + cut], 0.0)]
    with FakeServer(always=stream(*parts)) as server:
        table, summary = run(tmp_path, server, "workload.num_requests=2")
    assert summary["status"] == "finished", summary["error"]
    assert table["output_tokens"].tolist() == [TOKENS, TOKENS]
    assert table["reason"].isna().all()


def test_two_tokens_in_a_piece_or_none(tmp_path: Path) -> None:
    pair = event(piece(BODY, " a b"))
    twos = stream(0.01, pair, 0.01, pair, 0.01, pair, 0.01, event(piece(BODY, " a b", "length")), event(usage(BODY, 8)))
    empty = b"".join(event(piece(BODY, "" if at % 2 else " a")) for at in range(7))
    nones = stream(empty, event(piece(BODY, "", "length")), event(usage(BODY, 8)), event(b"[DONE]"))
    with FakeServer(ways={1: twos, 2: nones}) as server:
        table, summary = run(tmp_path, server)
    assert summary["status"] == "finished", summary["error"]
    assert table["output_tokens"].tolist() == [TOKENS] * COUNT
    assert table["reason"].isna().all()
    assert table.loc[0, "tpot_ms"] == pytest.approx(
        (table.loc[0, "last_token_s"] - table.loc[0, "first_token_s"]) / 7e-3
    )
    assert any("1 answers came in fewer pieces than tokens" in text for text in summary["warnings"])


def test_a_server_that_keeps_count_says_how_many_tokens_a_piece_has(tmp_path: Path) -> None:
    events = [event(piece(BODY, f" t{at}", "length" if at == 3 else None)
                    | {"usage": {"completion_tokens": 2 * at + 2}}) for at in range(4)]  # fmt: skip
    with FakeServer(always=stream(*events)) as server:
        table, summary = run(tmp_path, server, "workload.num_requests=2")
    assert summary["status"] == "finished", summary["error"]
    assert table["output_tokens"].tolist() == [8, 8]


def test_without_a_count_pieces_are_tokens(tmp_path: Path) -> None:
    with FakeServer(always=stream(ALL, event(b"[DONE]"))) as server:
        table, summary = run(tmp_path, server)
    assert summary["status"] == "finished", summary["error"]
    assert table["output_tokens"].tolist() == [TOKENS] * COUNT
    assert any("no count of tokens for 6 answers" in text for text in summary["warnings"])


def test_nobody_there(tmp_path: Path) -> None:
    server = FakeServer()
    server.port = 9  # nobody listens there
    overrides = [*COMMON, f"server.url={server.url}"]
    row = run_job(composed(overrides), tmp_path, overrides)
    assert row["status"] == "failed"
    assert row["error"].startswith(f"server.url={server.url}: nobody answers there: ")


def test_all_refused(tmp_path: Path) -> None:
    refusing: Callable[..., Any] = http_error(429, "no")
    with FakeServer(ways={0: well}, always=refusing) as server:
        table, summary = run(tmp_path, server)
    assert summary["status"] == "failed"
    assert f"none of {COUNT} requests was served" in summary["error"]
    assert "HTTP 429: 'no'" in summary["error"]
    assert set(table["status"]) == {"rejected"}


async def dies(server: FakeServer, request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
    response = await begin(request)
    await response.write(TWO)
    await asyncio.sleep(0.02)
    asyncio.ensure_future(server.die())  # noqa: RUF006
    await asyncio.sleep(1)
    return response


async def dies_and_returns(server: FakeServer, request: web.Request, body: dict[str, Any], number: int) -> Any:
    async def again() -> None:
        await server.die()
        await asyncio.sleep(0.3)
        await server.listen()

    asyncio.ensure_future(again())  # noqa: RUF006
    await asyncio.sleep(1)


def test_a_server_that_dies_and_returns_loses_what_it_had(tmp_path: Path) -> None:
    with FakeServer(ways={3: dies_and_returns}) as server:
        table, summary = run(tmp_path, server, "workload.arrival=closed_loop", "workload.concurrency=2",
                             "workload.rate=null", "workload.num_requests=12")  # fmt: skip
    assert summary["status"] == "finished", summary["error"]
    lost = table[table["status"] != "finished"]
    assert 1 <= len(lost) <= 4
    assert lost["reason"].str.contains("the connection broke|no connection").all()
    assert table["status"].iloc[-1] == "finished"


def test_a_server_that_is_gone_ends_the_run(tmp_path: Path) -> None:
    with FakeServer(ways={3: dies}) as server:
        table, summary = run(tmp_path, server, "workload.arrival=closed_loop", "workload.concurrency=2",
                                   "workload.rate=null", "workload.num_requests=12")  # fmt: skip
    assert summary["status"] == "finished", summary["error"]  # what was served is reported
    assert (table["status"] == "unfinished").sum() >= 3
    assert table["reason"].iloc[-1] == "the server is gone: no connection for 1 s (server.gone_s)"
    assert "the server is gone: no connection for 1 s (server.gone_s)" in summary["warnings"]
