"""Servers that answer as SGLang and llama.cpp do, by their documentation (TGI: test_server.py)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pandas as pd
from aiohttp import web

from harness.job import run_job
from harness.tasks.claims import composed
from tests.live.server import FakeServer, Stream, begin, event, http_error, piece, usage, well

BASE = ("device=server", "workload=fixed", "workload.prompt.value=12", "workload.output.value=8",
        "workload.num_requests=4", "workload.rate=100", "max_model_len=512")  # fmt: skip


def run(folder: Path, server: FakeServer, *more: str) -> dict[str, Any]:
    overrides = [*BASE, f"server.url={server.url}", *more]
    return run_job(composed(overrides), folder, overrides)


def pieces(*texts: str, last: str = "length", **more: Any) -> Stream:
    """Pieces of text, some of several tokens or none, why it ends, and a count of eight."""

    async def way(server: FakeServer, request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        response = await begin(request)
        for text in texts:
            await asyncio.sleep(0.002)
            await response.write(event(piece(body, text)))
        await response.write(event(piece(body, "", last)) + event(usage(body, 8) | more) + event(b"[DONE]"))
        return response

    return way


def sglang_page(seen: int) -> str:
    names = {"num_running_reqs": 1, "num_queue_reqs": 0, "token_usage": 0.5, "prompt_tokens_total": 60 * seen,
             "cached_tokens_total": 15 * seen, "num_retracted_reqs_total": seen}  # fmt: skip
    return "\n".join(f'sglang:{name}{{model_name="tiny"}} {value}' for name, value in names.items())


def test_sglang_sends_several_tokens_a_piece_and_says_abort(tmp_path: Path) -> None:
    """`--stream-interval`; `finish_reason` abort of a request that was given up; no page of vLLM's."""
    ways = {2: pieces(" a", last="abort")}
    pages = {"/server_info": {"version": "0.5.6", "model_path": "tiny"}}
    with FakeServer(always=pieces(" a b c d", " e f g h"), ways=ways, version="", pages=pages,
                    metrics=sglang_page) as server:  # fmt: skip
        row = run(tmp_path, server, "server.metrics_s=0.1")
    assert row["status"] == "finished", row["error"]
    assert row["device"].startswith("SGLang 0.5.6 at ")
    table = pd.read_csv(tmp_path / "requests.csv")
    assert table["status"].tolist() == ["finished", "failed", "finished", "finished"]
    assert "finish_reason abort" in table.loc[1, "reason"]
    assert table.loc[[0, 2, 3], "output_tokens"].tolist() == [8, 8, 8]
    assert any("came in fewer pieces than tokens" in text for text in row["warnings"])
    assert (row["kv_in_use_pct"], row["prefix_hit_pct"]) == (50, 25)
    assert row["preemptions"] > 0


def test_llama_cpp_holds_back_what_is_no_text_yet(tmp_path: Path) -> None:
    """Tokens that are part of a letter come with the one that completes it; a request has the room of a slot."""
    pages = {"/props": {"build_info": "b7000-1a2b3c", "default_generation_settings": {"n_ctx": 256}, "total_slots": 4}}
    timings = {"timings": {"predicted_n": 8, "predicted_ms": 16.0}}
    with FakeServer(always=pieces(" a", " b", "🜂", " c", " d", " e", **timings), version="", pages=pages,
                    max_model_len=None) as server:  # fmt: skip
        row = run(tmp_path, server)
    assert row["status"] == "finished", row["error"]
    assert row["device"].startswith("llama.cpp b7000-1a2b3c at ")
    assert pd.read_csv(tmp_path / "requests.csv")["output_tokens"].tolist() == [8] * 4
    assert "the server takes up to 256 tokens, max_model_len=512 here" in row["warnings"]
    assert row["kv_in_use_pct"] is None


def test_llama_cpp_refuses_several_answers_where_it_has_none(tmp_path: Path) -> None:
    refusing = http_error(400, '{"error": {"code": 400, "message": "Only one completion choice is allowed"}}')
    with FakeServer(always=refusing, version="", pages={"/props": {"build_info": "b4000"}}) as server:
        row = run(tmp_path, server, "workload.n=2")
    assert row["status"] == "failed"
    assert "the warm-up request was not served: HTTP 400: 'Only one completion choice is allowed'" in row["error"]
    assert len(server.bodies) == 1


def test_a_server_that_loads_its_model_is_there_but_not_ready(tmp_path: Path) -> None:
    async def loading(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": 503, "message": "Loading model"}}, status=503)

    server = FakeServer(always=well)
    server.models = loading  # type: ignore[method-assign]
    with server:
        row = run(tmp_path, server)
    assert row["status"] == "failed"
    assert "is there but not ready: HTTP 503" in row["error"]
    assert "Loading model" in row["error"]
