"""Steps found again in what a client saw, and a server measured beside its simulation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from aiohttp import web

from harness.errors import HarnessError
from harness.live.beside_figure import medians
from harness.live.limits import limits_of
from harness.live.step_log import read_step_log
from harness.live.steps import client_steps
from harness.runner.latency.fitted import FittedLatency
from tests.command import command
from tests.live.server import FakeServer, begin, event, piece, usage

TRUTH = FittedLatency((10e6, 2e6, 1e6, 1e6, 500.0, 1e6, 20e3, 0.0), 0.0, (1, 2, 4, 8))


def seen(folder: Path, count: int = 60, seed: int = 0) -> pd.DataFrame:
    """What a client sees of an engine that batches continuously and whose steps take what `TRUTH` says: the steps."""
    random = np.random.default_rng(seed)
    arrivals, prompts = np.cumsum(random.exponential(0.1, count)), random.integers(5, 200, count)
    outputs = random.integers(1, 40, count)
    now, running, waiting, pieces, steps = 0.0, dict[int, int](), list(range(count)), [], []
    while waiting or running:
        if not running and arrivals[waiting[0]] > now:
            now = float(arrivals[waiting[0]])
        new = [who for who in waiting if arrivals[who] <= now]
        waiting = [who for who in waiting if who not in new]
        step = {
            "num_seqs": len(running) + len(new), "idle_lanes": 0, "prefill_tokens": int(prompts[new].sum()),
            "context_tokens": int(sum(prompts[who] + told for who, told in running.items()) + prompts[new].sum()),
            "prefill_attention": int((prompts[new] ** 2 // 2).sum()), "rested": not running,
        }  # fmt: skip
        step["execute_ms"] = float(TRUTH.predict(pd.DataFrame([step]))[0]) / 1e6
        now += step["execute_ms"] / 1e3
        for place, who in enumerate([*running, *new]):
            pieces.append({"request": who, "time_s": now + 1e-4 * place})  # one after the other, as a server writes
            running[who] = running.get(who, 0) + 1
            if running[who] == outputs[who]:
                del running[who]
        steps.append(step)
    pd.DataFrame(pieces).sort_values("request", kind="stable").to_parquet(folder / "pieces.parquet")
    requests = {"id": range(count), "prompt_tokens": prompts, "cached_tokens": None}
    pd.DataFrame(requests).to_csv(folder / "requests.csv", index=False)
    return pd.DataFrame(steps)


def test_steps_are_found_again(tmp_path: Path) -> None:
    truth = seen(tmp_path)
    found = client_steps(tmp_path)
    columns = ["num_seqs", "prefill_tokens", "context_tokens", "prefill_attention"]
    after_a_step = truth[~truth["rested"]]
    assert len(found) >= 0.97 * len(after_a_step)
    known = {tuple(row) for row in after_a_step[columns].to_numpy().tolist()}
    assert np.mean([tuple(row) in known for row in found[columns].to_numpy().tolist()]) > 0.97
    fitted = FittedLatency.fit(found)
    lanes = found["num_seqs"]
    for n in range(1, int(lanes.quantile(0.9))):
        assert fitted.base(n) == pytest.approx(TRUTH.base(n), rel=0.05)


def test_answers_of_one_token_tell_no_step(tmp_path: Path) -> None:
    pd.DataFrame({"request": [0, 1], "time_s": [0.1, 0.2]}).to_parquet(tmp_path / "pieces.parquet")
    pd.DataFrame({"id": [0, 1], "prompt_tokens": 3, "cached_tokens": None}).to_csv(tmp_path / "requests.csv")
    with pytest.raises(HarnessError, match="no answer has two pieces"):
        client_steps(tmp_path)


def test_steps_are_read_from_an_engine_s_own_log(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    rows = [{"num_seqs": n, "context_tokens": 100 * n, "prefill_tokens": p, "execute_ms": 5 + n + p / 100, "more": 1}
            for n in range(1, 9) for p in (0, 0, 64, 128)]  # fmt: skip
    log.write_text("\n".join(json.dumps(row) for row in rows * 5))
    steps = read_step_log(str(log))
    assert len(steps) == 160
    assert steps["prefill_attention"].max() == 128 * 129 // 2
    told = FittedLatency.fit(steps)
    assert told.predict(steps) / 1e6 == pytest.approx(steps["execute_ms"], rel=0.02)
    log.write_text('{"num_seqs": 1}\n')
    with pytest.raises(HarnessError, match="line 1: context_tokens must be a number"):
        read_step_log(str(log))


def test_limits_are_read_from_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("args: {'port': 8123, 'max_num_seqs': 64}\nINFO Chunked prefill is enabled with "
                   "max_num_batched_tokens=4096.\n")  # fmt: skip
    assert limits_of(str(log)) == {"max_num_seqs": 64, "max_num_batched_tokens": 4096}
    log.write_text("hello\n")
    with pytest.raises(HarnessError, match="says nothing of max_num_seqs"):
        limits_of(str(log))


class Batching(FakeServer):
    """An engine with one loop: every step each request in it gets a token; a step takes 20 ms and 2 ms a lane."""

    def __init__(self) -> None:
        super().__init__(always=self.serve, metrics=lambda seen: POOL)
        self.queues: list[asyncio.Queue[None]] = []
        self.loop: asyncio.Task[None] | None = None

    async def steps(self) -> None:
        while self.queues:
            now = list(self.queues)
            await asyncio.sleep(0.020 + 0.002 * len(now))
            for queue in now:
                queue.put_nowait(None)
        self.loop = None

    async def serve(self, server: FakeServer, request: web.Request, body: dict[str, Any], number: int) -> Any:
        queue: asyncio.Queue[None] = asyncio.Queue()
        self.queues.append(queue)
        self.loop = self.loop or asyncio.ensure_future(self.steps())
        response = await begin(request)
        for at in range(body["max_tokens"]):
            await queue.get()
            if at + 1 == body["max_tokens"]:
                self.queues.remove(queue)
            await response.write(event(piece(body, " t", "length" if at + 1 == body["max_tokens"] else None)))
        await response.write(event(usage(body, body["max_tokens"])) + event(b"[DONE]"))
        return response


POOL = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="500"} 1.0\nvllm:num_requests_running 1\n'


def test_a_server_beside_its_simulation(tmp_path: Path) -> None:
    with Batching() as server:
        done = command(tmp_path, "experiment=beside", f"server.url={server.url}", "workload=fixed",
                       "workload.prompt.value=32", "workload.output.value=12", "workload.num_requests=24",
                       "beside.rates=[8,16]", "beside.fit=[16]", "beside.rounds=1", "hydra.run.dir=out")  # fmt: skip
    assert done.code == 0, done.err
    table = pd.read_csv(tmp_path / "out" / "beside.csv")
    assert set(table["rate"]) == {8, 16}
    assert set(table.loc[table["fitted"], "rate"]) == {16}
    assert table["error_pct"].notna().all()
    tpot = table[(table["number"] == "TPOT mean, ms") & (table["rate"] == 8)].iloc[0]
    assert tpot["measured"] > 20
    assert tpot["simulated"] == pytest.approx(tpot["measured"], rel=0.4)  # machines of tests are busy
    assert "TTFT mean, ms" in done.out
    assert (tmp_path / "out" / "beside.png").exists()
    values = yaml.safe_load((tmp_path / "out" / "latency.yaml").read_text())
    assert values["knots"][0] in (0, 1)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["steps"] > 20


def test_errors_are_those_of_medians() -> None:
    rounds = pd.DataFrame({"rate": 2.0, "fitted": False, "number": "TTFT mean, ms",
                           "measured": [50.0, 100.0, 60.0], "simulated": [54.0, 54.0, 53.0]})  # fmt: skip
    (row,) = medians(rounds).to_dict("records")
    assert (row["measured"], row["least"], row["most"], row["simulated"]) == (60, 50, 100, 54)
    assert row["error_pct"] == pytest.approx(-10)


def test_a_rate_that_is_not_measured_can_not_be_fitted(tmp_path: Path) -> None:
    done = command(tmp_path, "experiment=beside", "server.url=http://127.0.0.1:9", "beside.fit=[7]")
    assert done.code == 1
    assert "beside.fit=7.0: it must be among beside.rates" in done.err or "beside.fit=7" in done.err
