"""Serves the requests of a measured run again in simulation, and compares the latency figures of both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf

import harness.replay.engine
from harness.errors import HarnessError
from harness.job.build import build_scheduler
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.replay.clock import Clock
from harness.replay.replayer import Source, replay
from harness.runner.latency.base import Latency
from harness.runner.latency.table import TableLatency
from harness.runner.simulated import SimulatedModelRunner
from harness.validate.engine import NULL_BLOCK, Engine
from harness.validate.experts import THEIRS
from harness.validate.lockstep import Lockstep, LockstepLatency
from harness.validate.measured import Measured
from harness.workload import Workload
from schedulers.base import Scheduler

METRICS = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2E": "e2e_ms"}
PERCENTILES = (50, 90, 95, 99)
Progress = Callable[[int, int], None]
STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES))


class Variant(NamedTuple):
    """One combination of the settings that are varied; all are printed, so that nobody can pick the best."""

    skew: bool
    prefix: bool
    ahead: bool
    collectives: str = ""
    sizes: str = ""

    @property
    def label(self) -> str:
        on = {True: "on", False: "off"}
        said = f"skew {on[self.skew]}, prefix {on[self.prefix]}, {'a' if self.ahead else ''}synchronous"
        said += f", {self.collectives}" if self.collectives else ""
        return said + (f", {self.sizes}" if self.sizes else "")


def variants(headline: Variant, has_skew: bool, collectives: list[str], sizes: list[str]) -> list[Variant]:
    """The headline first, then every other combination that the tables allow, then the headline with other collectives
    and other message sizes.
    """
    every = (headline._replace(skew=skew, prefix=prefix, ahead=ahead) for skew, prefix, ahead in
             product((True, False) if has_skew else (False,), (True, False), (True, False)))  # fmt: skip
    others = (headline._replace(collectives=name, sizes=size) for name, size in
              product(collectives or [""], sizes or [""]))  # fmt: skip
    return list(dict.fromkeys([headline, *every, *others]))


class Prediction(NamedTuple):
    """The prediction under one variant.

    Attributes:
        variant: which.
        requests: `[n]` rows in the order of the measured table: `ttft_ms`, `tpot_ms`, `e2e_ms` from the queue
            timestamp, and `preemptions`, `cached_tokens`.
        facts: steps, preemptions, hit rate, peak of the pool and whether it ever filled.
    """

    variant: Variant
    requests: pd.DataFrame
    facts: dict[str, Any]


def predict(measured: Measured, engine: Engine, latency: TableLatency, variant: Variant, cfg: DictConfig,
            steps: Path | None = None, on_progress: Progress | None = None) -> Prediction:  # fmt: skip
    """Serve the requests under the engine's settings as changed by `variant`.

    Args:
        cfg: the configuration of everything but the engine.
        steps: where to write the step table; None = nowhere.
        on_progress: called after each step with (requests over, tokens).

    Raises:
        HarnessError: settings that the allocator or the scheduler refuses, or a request they can never serve.
    """
    version, freed_blocks = engine.rules
    scheduler_keys = ("max_num_seqs", "max_num_batched_tokens", "chunked_prefill", "watermark", "policy",
                      "long_prefill_token_threshold")  # fmt: skip
    changed = {
        "max_model_len": engine["max_model_len"],
        "allocator": {"block_size": engine["block_size"], "enable_prefix_caching": variant.prefix,
                      "freed_blocks": freed_blocks},
        "scheduler": {**{key: engine[key] for key in scheduler_keys}, "version": version,
                      "scheduler_reserve_full_isl": engine["reserve_full_isl"]},
    }  # fmt: skip
    capacity = (engine["num_gpu_blocks"] - NULL_BLOCK) * engine["block_size"]
    engines = [build_scheduler(OmegaConf.merge(cfg, changed), capacity)  # type: ignore[arg-type]
               for _ in range(engine["data_parallel"])]  # fmt: skip
    scheduler, times = engines[0], cast(Latency, latency)
    if len(engines) > 1:
        together = Lockstep(engines)
        scheduler = cast(Scheduler, together)
        times = LockstepLatency(latency, together, padded=variant.sizes == THEIRS)
    runner, recorder, requests = SimulatedModelRunner(times), Recorder(steps, keep=False), measured.requests()
    alone = harness.replay.engine.Engine(scheduler, runner, recorder, depth=2 if variant.ahead else 1)
    replay(Source(Workload(requests)), [alone], Clock(), on_progress=on_progress)
    for number, reason in recorder.rejections.items():
        name = measured.table["request_id"].iloc[number]
        raise HarnessError(f"request {name}, which the engine served, can't be served under these settings: {reason}")
    recorder.steps.flush()
    table, whole = request_table(recorder, requests), recorder.steps.whole
    late = table["lateness_s"] * 1e3  # from the arrival to the queue timestamp
    told = pd.DataFrame({
        "ttft_ms": table["ttft_ms"] - late, "tpot_ms": table["tpot_ms"], "e2e_ms": table["e2e_ms"] - late,
        "preemptions": table["preemptions"], "cached_tokens": table["cached_tokens"],
    })  # fmt: skip
    prefix = scheduler.prefix
    facts = {
        "steps": whole.steps, "duration_s": whole.ns / 1e9, "preemptions": int(table["preemptions"].sum()),
        "prefix_hit_pct": 100 * prefix.hits / prefix.queries if variant.prefix and prefix.queries else None,
        "peak_tokens": whole.peak("used"), "peak_seqs": whole.peak("num_seqs"),
        "pool_filled": bool(whole.peak("head_blocked") or whole.sum("preempted")),
    }  # fmt: skip
    return Prediction(variant, told, facts)


def figures(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """`metric`, `statistic`, `measured_ms`, `predicted_ms`, `error_pct`, over the requests whose end was measured.

    Metrics that no request has (TPOT, if every answer is one token) are left out. Percentiles are linear, as numpy's.
    """
    return pd.DataFrame(_figures(measured, predicted),
                        columns=["metric", "statistic", "measured_ms", "predicted_ms", "error_pct"])  # fmt: skip


def _figures(measured: pd.DataFrame, predicted: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    for metric, column in METRICS.items():
        there = measured[column].notna() & predicted[column].notna()
        if there.any():
            pairs = zip(STATISTICS, spread(measured[column][there]), spread(predicted[column][there]), strict=True)
            for statistic, real, told in pairs:
                yield metric, statistic, real, told, 100 * (told / real - 1) if real else None


def spread(values: pd.Series) -> list[float]:
    """Mean and `PERCENTILES`."""
    return [float(values.mean()), *np.percentile(values, PERCENTILES).tolist()]


def mean_error(table: pd.DataFrame) -> float:
    """Mean |relative error| of the figures, in percent."""
    return float(table["error_pct"].abs().mean())


def published_error(folder: Path, own: pd.DataFrame) -> float | None:
    """Mean |relative error| (%) that LLMServingSim reports for the same run from the same tables; None without one.

    Its `llmservingsim_error.txt` belongs to this run if the measured figures in it are this run's.

    Args:
        own: our `figures` of any variant.
    """
    path = folder / "llmservingsim_error.txt"
    if not path.is_file():
        return None
    names = {"Latency": "E2E", "Mean": "mean", "Median": "p50", "P90": "p90", "P95": "p95", "P99": "p99"}
    rows = re.findall(r"^(TTFT|TPOT|Latency) (\w+) +([\d.]+) +([\d.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    theirs = {(names.get(m, m), names.get(s, s)): (float(real), float(told)) for m, s, real, told in rows}
    real = own.set_index(["metric", "statistic"])["measured_ms"]
    if set(theirs) != set(real.index) or any(abs(real[key] - theirs[key][0]) > 0.051 for key in theirs):
        return None
    return float(np.mean([abs(100 * (told / was - 1)) for was, told in theirs.values()]))
