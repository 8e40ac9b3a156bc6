"""The results of a served workload: its tables and its summary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from allocators.base import Allocator
from harness.devices import Device
from harness.errors import HarnessError
from harness.metrics.memory_map import MappedRecorder
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table, write_requests
from harness.metrics.summary import OWN_LIMITS, describe_limits, goodput, summarize
from harness.metrics.token_times import write_token_times
from harness.naming.names import model_name
from harness.workload import Workload, export
from harness.workload.errors import WorkloadError
from schedulers.base import PrefixCounts, Scheduler
from schedulers.request import Request


def make_recorder(cfg: DictConfig, allocator: Allocator, folder: Path) -> Recorder:
    """The recorder that writes `steps.csv`, and the memory map if `cfg` asks for one."""
    times = "benchmark" in cfg.exports
    if cfg.memory_map:
        path, every_step = folder / "steps.csv", cfg.memory_map is True
        return MappedRecorder(allocator, path, keep=False, times=times, every_step=every_step)
    return Recorder(folder / "steps.csv", keep=False, times=times)


def write_tables(recorder: Recorder, workload: Workload, folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Write every table that can be written, even if others fail. Empties the workload's list of requests.

    Returns:
        The request table, and the status and error for the summary if a table is incomplete.
    """
    lost: list[str] = []
    with _collect_errors(lost):
        export((r for r in workload.requests if r.arrival_ns >= 0), folder / "workload.jsonl")
    table = request_table(recorder, _drain(workload.requests))
    with _collect_errors(lost):
        write_requests(table, folder / "requests.csv")
    recorder.steps.flush()
    if recorder.steps.error:
        lost.append(str(recorder.steps.error))
    if isinstance(recorder, MappedRecorder):
        with _collect_errors(lost):
            recorder.write(folder)
    if recorder.times is not None:
        with _collect_errors(lost):
            write_token_times(recorder.times, folder)
    return table, {"status": "failed", "error": "; ".join(lost)} if lost else {}


def summary_row(cfg: DictConfig, device: Device, scheduler: Scheduler, workload: Workload, recorder: Recorder,
           table: pd.DataFrame) -> dict[str, Any]:  # fmt: skip
    """The summary of a served workload, with its warnings.

    Args:
        table: the workload's `request_table`.

    Raises:
        HarnessError: not a single request finished.
    """
    row = {
        "model": model_name(cfg.model),
        "device": device.name,
        "threads": device.facts.get("threads"),
        "capacity": device.capacity,
        "block_size": scheduler.allocator.block_size or None,
        "max_model_len": cfg.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "offered_rate": workload.notes.get("offered_rate"),
        "banner": workload.banner,
        "workload_notes": workload.notes,
    }
    row |= scheduler.allocator.facts()
    row |= summarize(recorder, table, device.capacity)
    row |= prefix_rates(scheduler.prefix if scheduler.allocator.shares else PrefixCounts())
    if device.sampler:
        row |= device.sampler.facts(int(table["output_tokens"].sum()))
    reasons = table["reason"].dropna()
    why = f"; the first reason: {reasons.iloc[0]}" if len(reasons) else ""
    if not row["finished"]:
        raise HarnessError(f"none of {row['injected']} requests could be served{why}")
    row |= slo_and_cost(cfg, row, table)
    row["warnings"] = [*workload.notes["notices"], *_warnings(cfg, scheduler, recorder, row, why), *device.warnings]
    return row


def prefix_rates(counts: PrefixCounts) -> dict[str, float | None]:
    """Prefix hit rates in percent; None if nothing was looked up.

    `prefix_hit_pct`: hits at first admissions, of the prompts' tokens (repeats after a preemption left out, as vLLM
    counts); `prefix_lookup_hit_pct`: all hits, of all tokens looked up; `prefix_prompt_hit_pct`: all hits, of the
    prompts' tokens, so that a request which is preempted counts its hits again.
    """
    every = counts.hits + counts.preempted_hits
    rates = {"prefix_hit_pct": (counts.hits, counts.queries),
             "prefix_lookup_hit_pct": (every, counts.queries + counts.preempted_queries),
             "prefix_prompt_hit_pct": (every, counts.queries)}  # fmt: skip
    return {name: 100 * hits / tokens if tokens else None for name, (hits, tokens) in rates.items()}


def slo_and_cost(cfg: DictConfig, row: dict[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """Goodput if there are limits, cost if there is a price."""
    found: dict[str, Any] = {}
    limits = {str(name): limit for name, limit in cfg.slo_ms.items() if limit is not None}
    if limits or any(own in table for own in OWN_LIMITS.values()):
        found["goodput"] = goodput(table, limits, row["duration_s"])
        found["goodput_limits"] = describe_limits(table, limits)
    if cfg.price_per_hour is not None and row["output_throughput"]:
        found["cost_per_million_output_tokens"] = cfg.price_per_hour / 3600 / row["output_throughput"] * 1e6
    return found


def _warnings(cfg: DictConfig, scheduler: Scheduler, recorder: Recorder, row: dict[str, Any],
              why: str) -> Iterator[str]:  # fmt: skip
    if recorder.steps.whole.peak("num_seqs") >= row["max_num_seqs"] and row["injected"] > row["max_num_seqs"]:
        yield f"scheduler.max_num_seqs={row['max_num_seqs']} bound the batch: not memory alone was measured"
    if row["rejected"] or row["unfinished"]:
        yield f"{row['rejected']} requests were rejected, {row['unfinished']} unfinished: see requests.csv{why}"
    if not cfg.debug and not type(scheduler.allocator).__module__.startswith("allocators."):
        name = cfg.allocator._target_
        yield f"{name} was not checked: a fault in it may look like a gain; run once with debug=true"


@contextmanager
def _collect_errors(lost: list[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, WorkloadError) as error:
        lost.append(str(error))


def _drain(requests: list[Request]) -> Iterator[Request]:
    """Remove requests from the list, the last first, so that a million requests make room for their table."""
    while requests:
        yield requests.pop()
