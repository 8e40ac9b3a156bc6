"""One latency model for all jobs of a sweep: the cost of a step, and how well simulated jobs match measured ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.files import records
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.summary import summarize
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.report.comparison import names, read_jobs
from harness.runner.latency.drift import drift, spread_of
from harness.runner.latency.fitted import FittedLatency
from harness.runner.latency.fitted import names as feature_names
from harness.runner.simulated import SimulatedModelRunner
from harness.workload import build_workload
from schedulers.base import Scheduler
from schedulers.request import Request

STEPS_PER_JOB = 4_000  # as many from each job, so that a system with many steps does not dominate the fit
HELD_BACK = 5  # every 5th step is not fitted
BuildScheduler = Callable[[Any, int], Scheduler]
ADDED = ["simulated_output_throughput", "simulated_error_pct"]  # to the comparison
COLUMNS = ["dir", "system", "repeat", "output_throughput", *ADDED]


class StepTimes(NamedTuple):
    """The cost of a step.

    Attributes:
        latency: the model of whole steps (schedule and complete included), fitted to four fifths of all steps.
        held_back_pct: median |relative error| of its step times on the other fifth, in percent.
        drift: the part of that error that comes from the machine's changing speed (`spread_of`).
        base_ms, per_sequence_ms, per_context_us: T(batch) of a decode-only step, in ms, ms per lane and µs per token of
            context that its lanes attend to; the lanes' cost is that of the straight line from first to last knot.
        steps: how many steps there were.
    """

    latency: FittedLatency
    held_back_pct: float
    drift: dict[str, float]
    base_ms: float
    per_sequence_ms: float
    per_context_us: float
    steps: int

    def sentence(self) -> str:
        """``decode step ≈ 1.9 ms + 0.05 ms · sequences + 0.3 µs · tokens of context``."""
        return (
            f"decode step ≈ {self.base_ms:.2g} ms + {self.per_sequence_ms:.2g} ms · sequences "
            f"+ {self.per_context_us:.2g} µs · tokens of context"
        )

    def noise(self) -> str:
        """How far steps are from the model, and how much of that comes from the machine's changing speed."""
        return (f"a fitted model misses them by {self.held_back_pct:.0f} % (median), by "
                f"{self.drift['error_within_piece_pct']:.0f} % at one pace of the machine; jobs took "
                f"{self.drift['drift_fastest_pct']:+.0f} to {self.drift['drift_slowest_pct']:+.0f} % more time than it "
                "says")  # fmt: skip

    def decode_ms(self, lanes: np.ndarray, context_per_lane: float) -> np.ndarray:
        """``[n]``: T(batch) for batches of `lanes` sequences that each attend to `context_per_lane` tokens."""
        base = np.array([self.latency.base(int(count)) for count in lanes]) / 1e6
        return base + lanes * self.per_context_us / 1e3 * context_per_lane

    def to_dict(self) -> dict[str, Any]:
        """For `step_time.json`: coefficients in ns under the names of their features, None for missing ones."""
        keys = ("base_ms", "per_sequence_ms", "per_context_us", "held_back_pct")
        row = {key: getattr(self, key) for key in keys} | self.drift
        present = {key: value if np.isfinite(value) else None for key, value in row.items()}
        named = dict(zip(feature_names(self.latency.knots), self.latency.coefficients, strict=True))
        named["live lanes"] = self.latency.live_ns
        return present | {"steps": self.steps, "coefficients_ns": named}


def nothing() -> pd.DataFrame:
    """An empty prediction."""
    return pd.DataFrame(columns=COLUMNS).astype(dict.fromkeys(ADDED, "float64"))


def pooled_steps(folder: Path, jobs: pd.DataFrame, per_job: int = STEPS_PER_JOB) -> pd.DataFrame:
    """The steps of all finished jobs that computed something, at most `per_job` of each (drawn at random, seed 0).

    Adds `run` (the job's folder), `system`, `lanes` (live and idle) and `step_ms` (schedule, execute and complete).

    Raises:
        HarnessError: no job finished, or they ran different models or devices.
    """
    finished, tables = jobs[jobs["status"] == "finished"], []
    for key in ("model", "device"):
        if key in finished and len(set(finished[key])) > 1:
            raise HarnessError(
                f"jobs ran on several {key}s ({names(finished[key])}), so no one model of step times fits"
            )
    for job in records(finished):
        steps = pd.read_csv(folder / job["dir"] / "steps.csv")
        steps = steps[steps["num_seqs"] > 0]
        if len(steps) > per_job:
            steps = steps.sample(per_job, random_state=0).sort_index()
        step_ms = steps["schedule_ms"] + steps["execute_ms"] + steps["complete_ms"]
        tables.append(
            steps.assign(
                run=job["dir"], system=job["system"], lanes=steps["num_seqs"] + steps["idle_lanes"], step_ms=step_ms
            )
        )
    if not tables:
        raise HarnessError("no job finished, so there are no steps to fit")
    return pd.concat(tables, ignore_index=True)


def fit_steps(steps: pd.DataFrame) -> StepTimes:
    """Fit `StepTimes` to pooled steps. Raises HarnessError when there are too few of them."""
    held_back = np.arange(len(steps)) % HELD_BACK == HELD_BACK - 1
    fitted, other = steps[~held_back], steps[held_back]
    latency = FittedLatency.fit(fitted.assign(execute_ms=fitted["step_ms"], schedule_ms=0.0, complete_ms=0.0))
    paces = spread_of(drift(latency, steps.assign(begun=0.0), held_back))
    error = np.abs(latency.predict(other) / (other["step_ms"].to_numpy() * 1e6) - 1)
    first, last = latency.knots[0], latency.knots[-1]
    per_lane = (latency.base(last) - latency.base(first)) / (last - first)
    per_step, per_token = latency.base(first) - per_lane * first, latency.coefficients[len(latency.knots)]
    return StepTimes(
        latency, 100 * float(np.median(error)), paces, per_step / 1e6, per_lane / 1e6, per_token / 1e3, len(steps)
    )


def predict_jobs(folder: Path, build_scheduler: BuildScheduler | None = None,
                 times: StepTimes | None = None) -> pd.DataFrame:  # fmt: skip
    """Replay every finished job with simulated step times, and compare measured with simulated output throughput.

    Args:
        folder: a sweep's folder.
        build_scheduler: (config, capacity) -> a fresh scheduler with its allocator; None = the harness's own.
        times: as returned by `fit_steps`; None = fit them here.

    Raises:
        HarnessError: too few steps to fit.
    """
    jobs = read_jobs(folder)
    times = times or fit_steps(pooled_steps(folder, jobs))
    build_scheduler = build_scheduler or _default_builder()
    rows = []
    for job in records(jobs[jobs["status"] == "finished"]):
        measured = job["output_throughput"]
        simulated = _simulate(folder / job["dir"], job, build_scheduler, times.latency)
        row = {key: job.get(key) for key in ("dir", "system", "repeat", "output_throughput")}
        error = 100 * (simulated / measured - 1) if simulated and measured else None
        rows.append({**row, "simulated_output_throughput": simulated, "simulated_error_pct": error})
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(ADDED, "float64"))


def _simulate(path: Path, job: dict[str, Any], build_scheduler: BuildScheduler, latency: FittedLatency) -> float | None:
    """Output throughput of the job's requests under simulated steps; None if the requests can't be reconstructed."""
    from omegaconf import OmegaConf

    from harness.job.build import resolve_lane_slots

    config: Any = OmegaConf.load(path / "config.yaml")
    requests = _requests(path, int(config.max_model_len))
    if not requests:
        return None
    config = resolve_lane_slots(config, requests)
    closed = OmegaConf.select(config, "workload.arrival") == "closed_loop"
    concurrency = OmegaConf.select(config, "workload.concurrency") if closed else None
    scheduler = build_scheduler(config, int(job["capacity"]))
    recorder = Recorder()
    workload = SimpleNamespace(requests=requests, concurrency=concurrency)
    replay(Source(workload), [Engine(scheduler, SimulatedModelRunner(latency), recorder)], Clock())
    value = summarize(recorder, request_table(recorder, requests), scheduler.allocator.capacity)["output_throughput"]
    return float(value) if value else None


def _requests(path: Path, max_model_len: int) -> list[Request]:
    """The requests of a job, from its export, or from its table if that was not kept.

    Empty if not all were served, if prefixes were found in the pool (a model's answers, which later prompts may begin
    with, are not kept), or if a beam search ran (how its beams forked is not kept).
    """
    table = pd.read_csv(path / "requests.csv")
    lost = ~table["status"].isin(["finished", "rejected"])
    if lost.any() or table["cached_tokens"].sum() > 0:
        return []
    if (path / "workload.jsonl").exists():
        requests = build_workload({"path": str(path / "workload.jsonl")}, max_model_len, 0).requests
        return [] if any(request.use_beam_search for request in requests) else requests
    if (table["n"] > 1).any():  # samples or beams
        return []
    return [
        Request(row["id"], round(row["arrival_s"] * 1e9), int(row["prompt_tokens"]), int(row["output_tokens"]),
                None if pd.isna(row["max_tokens"]) else int(row["max_tokens"]))
        for row in records(table[table["status"] == "finished"].sort_values(["arrival_s", "id"]))
    ]  # fmt: skip


def _default_builder() -> BuildScheduler:
    from harness import devices
    from harness.job.build import build_scheduler

    def builder(config: Any, capacity: int) -> Scheduler:
        return build_scheduler(config, capacity, layout=devices.layout_for(config))  # it defines the pool's unit

    return builder
