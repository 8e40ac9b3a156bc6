"""`device=server`: a job that sends its workload to a running server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from harness.config.server import Server
from harness.errors import HarnessError
from harness.exports.benchmark import bench_result
from harness.files import write_json, write_table
from harness.job.served import slo_and_cost
from harness.live.about import ServerInfo, ask, refuse
from harness.live.client import Client, Outcome
from harness.live.engine import Scraper
from harness.live.log import ClientLog
from harness.live.prompts import Ids, Text, make_prompts
from harness.live.replay import LiveReplay
from harness.live.summary import engine_side, warnings_of
from harness.metrics.requests import request_table, write_requests
from harness.metrics.summary import client_side
from harness.metrics.token_times import write_token_times
from harness.workload import Workload, export
from schedulers.request import Request

WARM_SEED = 0x5EED  # another seed for warm-up prompts, so that none of the workload's prompts is cached by them


def serve_live(cfg: DictConfig, folder: Path, workload: Workload, facts: dict[str, Any],
               progress: Callable[[int], Callable[[int, int], None]] | None) -> dict[str, Any]:  # fmt: skip
    """Send a workload to the server of `cfg.server` and write the tables of the job.

    Writes `requests.csv`, `workload.jsonl`, `pieces.parquet` (when each piece of each answer came), `benchmark.json`
    (as `vllm bench serve --save-result --save-detailed`), and `engine.csv` if the server has metrics. After an
    interrupt the tables hold what was measured so far.

    Returns:
        The entries of `summary.json` beside the names; `interrupt`, if the run was stopped, for the caller to raise.

    Raises:
        HarnessError: no answer, the server refuses the warm-up, or no request was served.
    """
    server = Server.of(OmegaConf.to_container(cfg.server, resolve=True))  # type: ignore[arg-type]
    requests = workload.requests
    if any(request.use_beam_search for request in requests):
        raise HarnessError("workload.use_beam_search: OpenAI-compatible endpoints have no beam search; "
                           "workload.n asks for samples")  # fmt: skip
    started = time.perf_counter()
    prompts = make_prompts(server, cfg.seed)
    warm = copy(prompts)
    warm.seed = cfg.seed ^ WARM_SEED
    log = ClientLog()
    run = LiveRun(server, workload, prompts, log, progress(len(requests)) if progress else None)
    stopped: KeyboardInterrupt | None = None
    try:
        asyncio.run(run.all(warm, facts, started))
    except KeyboardInterrupt as interrupt:
        if not run.replay:
            raise
        stopped = interrupt
    finally:
        if run.replay:
            _leave_rest(run)
            table = _write_tables(run, requests, folder)
    about, replay, metrics = run.about, run.replay, run.metrics
    assert about is not None
    assert replay is not None
    row: dict[str, Any] = {"device": f"{about.name} at {server.root}", "model": about.model, "threads": None}
    row |= {"capacity": run.pool.get("capacity"), "block_size": run.pool.get("block_size")}
    row |= {"max_model_len": about.max_model_len or cfg.max_model_len, "max_num_seqs": None}
    row |= {"offered_rate": workload.notes.get("offered_rate"), "banner": workload.banner,
            "workload_notes": workload.notes}  # fmt: skip
    row |= client_side(table, log.gaps) | engine_side(metrics)
    row["failed"] = int((table["status"] == "failed").sum())
    row |= {"lateness_p99_s": _quantile(table["lateness_s"], 0.99),
            "client_cpu_pct": 100 * replay.cpu_s / replay.wall_s,
            "client_lag_p99_ms": _quantile(pd.Series(replay.lags_ns) / 1e6, 0.99)}  # fmt: skip
    if stopped:
        row["interrupt"] = stopped
    elif not row["finished"]:
        first = table["reason"].dropna()
        why = f"; the first reason: {first.iloc[0]}" if len(first) else ""
        raise HarnessError(f"none of {len(table)} requests was served by {server.root}{why}")
    if row["finished"]:
        row |= slo_and_cost(cfg, row, table)
    row["warnings"] = workload.notes["notices"] + warnings_of(cfg, server, about, run, table, row)
    return row


class LiveRun:
    """The asynchronous half of a job: ask the server about itself, warm it up, replay the workload.

    Attributes:
        about, replay: None until that stage is reached.
        scraper: None = no metrics are read.
    """

    def __init__(self, server: Server, workload: Workload, prompts: Ids | Text, log: ClientLog,
                 on_progress: Callable[[int, int], None] | None) -> None:  # fmt: skip
        self.server, self.workload, self.prompts, self.log = server, workload, prompts, log
        self.on_progress = on_progress
        self.about: ServerInfo | None = None
        self.replay: LiveReplay | None = None
        self.scraper: Scraper | None = None

    async def all(self, warm: Ids | Text, facts: dict[str, Any], started: float) -> None:
        """
        Args:
            warm: prompts of the warm-up.
            facts: `environment.json`.
            started: `time.perf_counter()` when the job began.
        """
        server, requests = self.server, self.workload.requests
        async with Client(server, server.model or "") as client:
            self.about = await ask(client.session, server)
            client.model = self.about.model
            facts |= {"device": server.root, "engine": self.about.engine or None, "engine_version": self.about.version}
            refuse(self.about, server, max(request.n for request in requests))
            for request in (replace(request, token_ids=None) for request in requests[: server.warmup]):
                _warmed(await client.send(request, client.body(request, warm(request))), server)
            if server.metrics_url:
                url = server.metrics_url
                self.scraper = Scraper(client.session, url, server.metrics_s, server.headers(url))
            facts["setup_s"] = time.perf_counter() - started
            self.replay = LiveReplay(client, self.workload, self.prompts, self.log, self.scraper, self.on_progress)
            await self.replay.run()

    @property
    def metrics(self) -> pd.DataFrame | None:
        """`Scraper.table`; None without metrics."""
        return self.scraper.table() if self.scraper and self.scraper.rows else None

    @property
    def pool(self) -> dict[str, Any]:
        return self.scraper.pool if self.scraper else {}


def _warmed(outcome: Outcome, server: Server) -> None:
    """Raise HarnessError if the warm-up request was not served: the server would not accept the others either."""
    if outcome.status == "finished":
        return
    reason = outcome.reason or ""
    hint = ""
    if reason.startswith("HTTP 404"):
        hint = f"; is there {server.endpoint}?"
    elif "ignore_eos" in reason:
        hint = "; server.ignore_eos=false leaves that key out"
    elif "stream_options" in reason:
        hint = "; server.extra_body={stream_options: null} sends none"
    elif reason.startswith("HTTP 4") and server.api == "completions" and server.tokenizer is None:
        hint = "; if it is the token ids (below server.vocab_size), server.tokenizer=NAME sends text"
    raise HarnessError(f"the warm-up request was not served: {reason}{hint}")


def _leave_rest(run: LiveRun) -> None:
    """Give requests that were never sent a reason."""
    assert run.replay
    why = run.replay.gone or "never sent: the run was stopped"
    for request in run.replay.source.pending:
        run.log.reasons[request.id] = "unfinished", why


def _write_tables(run: LiveRun, requests: list[Request], folder: Path) -> pd.DataFrame:
    export((request for request in requests if request.arrival_ns >= 0), folder / "workload.jsonl")
    table = request_table(run.log, iter(requests))
    write_requests(table, folder / "requests.csv")
    write_token_times(run.log.times, folder)
    if run.metrics is not None:
        write_table(folder / "engine.csv", run.metrics)
    rate = run.workload.notes.get("offered_rate") if run.workload.concurrency is None else None
    facts = {"backend": "openai", "model_id": run.about.model if run.about else run.server.model, "label": "kvlab",
             "tokenizer_id": run.server.tokenizer, "request_rate": rate if rate else "inf",
             "max_concurrency": run.workload.concurrency}  # fmt: skip
    done = table["id"][table["status"] == "finished"]
    gaps = {number: np.diff(np.array(run.log.times.get(number, ()), dtype=np.int64)) / 1e9 for number in done.tolist()}
    write_json(folder / "benchmark.json", bench_result(table, gaps, facts, run.log.prompt_tokens))
    return table


def _quantile(values: pd.Series, q: float) -> float | None:
    there = values.dropna()
    return float(there.quantile(q)) if len(there) else None
