"""`experiment=beside`: a server measured at a few rates, and the same requests simulated beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf, open_dict

from harness.devices import is_elsewhere
from harness.errors import HarnessError
from harness.files import write_table, write_text
from harness.job.build import build_scheduler
from harness.live.beside_figure import comparison_text, draw
from harness.live.limits import limits_of
from harness.live.step_log import read_step_log
from harness.live.steps import client_steps
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.summary import client_side
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.latency.drift import drift, spread_of
from harness.runner.latency.fitted import FittedLatency
from harness.runner.simulated import SimulatedModelRunner
from harness.tasks.calibrate import as_yaml, errors_by_kind
from harness.workload import Workload, build_workload

HELD_BACK = 5  # every 5th step is not fitted
METRICS = {
    "ttft_mean_ms": "TTFT mean, ms", "ttft_p50_ms": "TTFT p50, ms", "tpot_mean_ms": "TPOT mean, ms",
    "tpot_p50_ms": "TPOT p50, ms", "e2e_mean_ms": "E2E mean, ms", "e2e_p99_ms": "E2E p99, ms",
    "output_throughput": "output tokens/s",
}  # fmt: skip


class Run(NamedTuple):
    """A measured run: its rate in requests/s, its round, its folder, and what its summary says."""

    rate: float
    round: int
    folder: Path
    row: dict[str, Any]


def beside(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any], progress: object) -> dict[str, Any]:
    """The task of `experiment=beside`: measure, fit, simulate, compare.

    Every rate is measured in every round, in a folder of its own. A step model (`latency.yaml`) is fitted to the steps
    that the client saw at the rates of `beside.fit`, or to those that the engine logged (`beside.steps`). The time of
    requests outside the engine (HTTP, tokenizer, other processes) is one constant: the median delay of measured first
    tokens against simulated ones, at the rates of `beside.fit`. Then the requests of every run are simulated with the
    times at which they were sent, the configured scheduler, the pool size of the server's metrics and the limits of
    its log. Writes `beside.csv` (a row for each run and number) and `beside.png`.

    Raises:
        HarnessError: a rate to fit that is not measured, or too few steps seen.
    """
    if not is_elsewhere(cfg):
        raise HarnessError(f"experiment=beside measures a server, not device={cfg.device.kind}: server.url=ADDRESS")
    settings = cfg.beside
    unknown = [rate for rate in settings.fit if rate not in settings.rates]
    if unknown:
        raise HarnessError(f"beside.fit={unknown[0]}: it must be among beside.rates={list(settings.rates)}")
    limits = limits_of(settings.log)
    runs = [_measure(cfg, folder, rate, again, facts) for again in range(settings.rounds) for rate in settings.rates]
    logged = [read_step_log(settings.steps).assign(run="step log", begun=0)] if settings.steps else []
    steps = pd.concat(logged or [client_steps(run.folder).assign(run=run.folder.name, begun=at)
                                 for at, run in enumerate(runs) if run.rate in settings.fit],
                      ignore_index=True)  # fmt: skip
    held_back = np.arange(len(steps)) % HELD_BACK == HELD_BACK - 1
    latency = FittedLatency.fit(steps[~held_back])
    errors = errors_by_kind(latency, steps[held_back])
    spread = spread_of(drift(latency, steps, held_back))
    write_table(folder / "calibration.csv", errors)
    write_text(folder / "latency.yaml", as_yaml(latency, runs[0].row["model"], facts, len(steps), errors.iloc[-1]))
    server = {**runs[0].row, "limits": limits}
    simulated = [_simulate(cfg, asked, run, latency, server) for run in runs]
    late = [_lateness(run, it) for run, it in zip(runs, simulated, strict=True) if run.rate in settings.fit]
    outside_ms = max(float(np.median(np.concatenate(late))), 0.0)
    pairs = zip(runs, simulated, strict=True)
    table = pd.DataFrame([
        row for run, it in pairs for row in _compared(run, it, outside_ms, run.rate in settings.fit and not logged)
    ])  # fmt: skip
    write_table(folder / "beside.csv", table)
    missed = errors.iloc[-1]["median_pct"]
    where = "in its log" if logged else f"at {' and '.join(f'{rate:g}' for rate in settings.fit)} requests/s"
    about = (f"{runs[0].row['device']}: {len(steps):,} steps seen {where}, missed by {missed:.1f} % "
             f"(median, held back; within a run {spread['error_within_run_pct']:.1f} %); {outside_ms:.1f} ms of each "
             "request outside the engine")  # fmt: skip
    print(f"{comparison_text(table)}\n{about}\nuse it: device=simulated device.latency={folder}/latency.yaml")
    draw(table, about, folder / "beside.png")
    row = {"model": runs[0].row["model"], "device": runs[0].row["device"], "steps": len(steps), **spread}
    row |= {"error_median_pct": float(errors.iloc[-1]["median_pct"]), "outside_ms": outside_ms}
    row["warnings"] = list(dict.fromkeys(text for run in runs for text in run.row["warnings"]))
    if not server.get("capacity"):
        row["warnings"].append(f"the server does not tell the size of its pool: kv_slots={cfg.kv_slots} was simulated")
    return row


def _measure(cfg: DictConfig, folder: Path, rate: float, again: int, facts: dict[str, Any]) -> Run:
    from harness.job import run_job

    inner = cfg.copy()
    name, arrivals = f"rate_{rate:g}_{again}", {"arrival": "poisson", "rate": rate}
    with open_dict(inner):
        inner.task, inner.seed = "harness.job.serve", (cfg.seed + again) % 2**64
        inner.workload = OmegaConf.merge(cfg.workload, arrivals)
    row = run_job(inner, folder / name, [f"workload.{key}={value}" for key, value in arrivals.items()])
    if row["status"] != "finished":
        raise HarnessError(f"the run at {rate:g} requests/s failed: {row['error']}")
    facts["device"] = row["device"]
    return Run(rate, again, folder / name, row)


def _simulate(cfg: DictConfig, asked: set[str], run: Run, latency: FittedLatency, server: dict[str, Any]) -> Any:
    """(request table, gaps) of a run's requests, simulated at the times they were sent, with the server's settings."""
    inner = cfg.copy()
    with open_dict(inner):
        inner.max_model_len = server["max_model_len"]
        for key, value in server["limits"].items():
            inner.scheduler[key] = value
        if server.get("block_size"):
            inner.allocator.block_size = server["block_size"]
    config = {"path": str(run.folder / "workload.jsonl")}
    requests = build_workload(config, int(inner.max_model_len), 0).requests
    measured = pd.read_csv(run.folder / "requests.csv").set_index("id")
    sent = ((measured["arrival_s"] + measured["lateness_s"].fillna(0)) * 1e9).round()
    for request in requests:
        request.arrival_ns = int(sent[request.id])
    requests.sort(key=lambda request: (request.arrival_ns, request.id))
    scheduler = build_scheduler(inner, int(server.get("capacity") or cfg.kv_slots), asked)
    recorder = Recorder()
    depth = 2 if cfg.beside.async_scheduling else 1
    engine = Engine(scheduler, SimulatedModelRunner(latency), recorder, depth)
    replay(Source(Workload(list(requests))), [engine], Clock())
    return request_table(recorder, requests), recorder.gaps


def _lateness(run: Run, simulated: Any) -> np.ndarray:
    """By how many ms each measured first token came later than the simulated one."""
    measured = pd.read_csv(run.folder / "requests.csv").set_index("id")
    late = measured["ttft_ms"] - 1e3 * measured["lateness_s"] - simulated[0].set_index("id")["ttft_ms"]
    return late[measured["status"] == "finished"].dropna().to_numpy()


def _compared(run: Run, simulated: Any, outside_ms: float, fitted: bool) -> list[dict[str, Any]]:
    """A row for each of `METRICS`."""
    table, gaps = simulated
    for name in ("ttft_ms", "e2e_ms"):
        table[name] += outside_ms
    row = client_side(table, gaps)
    return [
        {"rate": run.rate, "round": run.round, "fitted": fitted, "number": name, "measured": run.row[key],
         "simulated": row[key], "error_pct": 100 * (row[key] / run.row[key] - 1) if run.row[key] else None}
        for key, name in METRICS.items() if row[key] is not None and run.row[key] is not None
    ]  # fmt: skip
