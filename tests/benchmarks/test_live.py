"""What the client of `device=server` costs: 1,000 streams open at once, to a server in a process of its own.

`pytest tests/benchmarks/test_live.py --benchmark-only` prints it; `KVLAB_STREAMS` sets another number.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
from pytest_benchmark.fixture import BenchmarkFixture

from harness.job import run_job
from harness.tasks.claims import composed
from tests.live.server import FakeServer

STREAMS = int(os.environ.get("KVLAB_STREAMS", "1000"))
TOKENS, STEP_S, RATE = 48, 0.5, 100


def serve(pipe: Connection) -> None:
    with FakeServer(step_s=STEP_S) as server:
        pipe.send(server.url)
        pipe.recv()
        pipe.send(server.most_open)


def test_a_thousand_open_streams(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    overrides = ["device=server", f"server.url={ours.recv()}", "workload=fixed", "workload.prompt.value=128",
                 f"workload.output.value={TOKENS}", f"workload.num_requests={STREAMS}", f"workload.rate={RATE}",
                 "server.metrics=null", "server.warmup=0"]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row = benchmark.pedantic(run_job, (composed(overrides), tmp_path, overrides), rounds=1, warmup_rounds=0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours.send("enough")
    most_open = ours.recv()
    process.join(10)
    table = pd.read_csv(tmp_path / "requests.csv")
    wall_s = float(table["last_token_s"].max())
    found = {
        "streams open at once": most_open,
        "client, us a token": 1e4 * row["client_cpu_pct"] * wall_s / (STREAMS * TOKENS),
        "client, % of a core": row["client_cpu_pct"],
        "memory, kB a stream": (after - before) / STREAMS,
        "lateness p99, ms": 1e3 * row["lateness_p99_s"],
        "loop late p99, ms": row["client_lag_p99_ms"],
        "tokens a second": row["output_throughput"],
    }
    benchmark.extra_info.update(found)
    print(json.dumps(found, indent=1))
    assert row["finished"] == STREAMS
    assert most_open > 0.9 * min(STREAMS, TOKENS * STEP_S * RATE)
