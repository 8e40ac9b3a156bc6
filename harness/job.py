"""One job: a configuration in, a folder with its tables out, whatever happens in between."""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from harness.build import build_scheduler, locate, settle_lanes
from harness.clock import CLOCKS, Clock
from harness.config import asked_by, settle, without_effect
from harness.engine import Engine
from harness.environment import environment
from harness.errors import HarnessError
from harness.files import write_json, write_text
from harness.labels import names
from harness.metrics.memory_map import MappedRecorder
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table, write_requests
from harness.metrics.summary import OWN_LIMITS, goodput, summarize, told_limits
from harness.names import model_name, workload_name
from harness.replayer import Source, replay
from harness.runner.latency.choose import (
    choose_latency,
    mismatch,
    move_costs,
    simulated_layout,
    simulated_slots,
    who,
)
from harness.runner.nvml import NvmlSampler
from harness.runner.simulated import SimulatedModelRunner
from harness.signals import interrupt_in
from harness.workload import Workload, build_workload, export
from harness.workload.errors import WorkloadError
from schedulers.base import Scheduler
from schedulers.request import Request

Progress = Callable[[int, int], None]


def run_job(cfg: DictConfig, folder: Path, overrides: Sequence[str] = (),
            progress: Callable[[int], Progress] | None = None) -> dict[str, Any]:  # fmt: skip
    """Run one job (the function that `cfg.task` names) and write its folder: config, environment, tables, summary.

    A failure is written down as well (`status`, `error`, `traceback.txt`) and returned, not raised; only an interrupt
    passes on, after what there is has been written. The summary comes last and at once: a folder without one, or with
    one that does not say "finished", is none of a finished job.

    Args:
        cfg: the whole configuration.
        folder: where to write; created if needed.
        overrides: what was set on the command line, for the record.
        progress: called with the number of requests; gives what is called with (requests over, tokens) at each step.
    """
    asked = asked_by(overrides)
    cfg, mistakes = settle(cfg, asked)
    row: dict[str, Any] = {**names(cfg), "status": "finished", "error": None, "overrides": list(overrides)}
    row |= {"repeat": cfg.repeat, "seed": cfg.seed, "workload": workload_name(cfg.workload)}
    facts = environment()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("summary.json", "traceback.txt"):  # of an earlier run: they must not lie beside this one's tables
            (folder / name).unlink(missing_ok=True)
        write_text(folder / "config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
        if mistakes:
            raise HarnessError("\n".join(mistakes))
        row |= locate(cfg.task, "task")(cfg, folder, asked, facts, progress)
        if interrupt := row.pop("interrupt", None):  # of a task that tells what there is all the same
            raise interrupt
        row["warnings"] = [*without_effect(cfg, asked), *row.get("warnings", [])]
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(folder)  # of the full disk
        interrupt = interrupt_in(error)
        row["status"] = "interrupted" if interrupt else "failed"
        row["error"] = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        if interrupt:
            raise interrupt from None
        _leave(folder / "traceback.txt", traceback.format_exc())
    finally:
        _leave(folder / "environment.json", facts)
        if problem := _leave(folder / "summary.json", row):
            print(f"summary.json can't be written ({problem}); it would say\n{json.dumps(row, default=str)}",
                  file=sys.stderr)  # fmt: skip
            row |= {"status": "failed", "error": row["error"] or str(problem)}
    return row


def _leave(path: Path, content: str | dict[str, Any]) -> OSError | None:
    """Write a last file if that is possible; why not, if it is not."""
    try:
        write_text(path, content) if isinstance(content, str) else write_json(path, content)
    except OSError as error:
        return error
    return None


def serve(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any],
          progress: Callable[[int], Progress] | None) -> dict[str, Any]:  # fmt: skip
    """The usual task: replay the workload and write its tables.

    Args:
        asked: dotted keys given on the command line.
        facts: `environment.json`, to which the device adds its own.

    Returns:
        What `summary.json` says beside the names.
    """
    started = time.perf_counter()
    settings: Any = OmegaConf.to_container(cfg.workload, resolve=True)
    workload = build_workload(settings, cfg.max_model_len, cfg.seed)
    if cfg.device.kind == "server":
        from harness.live.serve import serve_live

        return serve_live(cfg, folder, workload, facts, progress)
    cfg = settle_lanes(cfg, workload.requests)
    if cfg.device.kind == "simulated":
        layout = simulated_layout(cfg)
        capacity = simulated_slots(cfg, layout)
        scheduler = build_scheduler(cfg, capacity, asked, layout)
        latency, costs = choose_latency(cfg), move_costs(cfg)
        runner: Any = SimulatedModelRunner(latency, cfg.simulation.exact_steps, costs, cfg.seed)
        facts["device"] = "simulated"
    elif cfg.simulation.async_scheduling or cfg.simulation.compiled:
        key = "async_scheduling" if cfg.simulation.async_scheduling else "compiled"
        raise HarnessError(f"simulation.{key}=true needs a simulated device: device=simulated")
    else:
        from harness.runner.device import open_device, warm_up

        device = open_device(cfg)
        capacity = device.capacity(cfg)
        scheduler = build_scheduler(cfg, capacity, asked, device.layout)
        runner = device.runner(scheduler.allocator)
        facts |= device.facts | warm_up(runner, cfg)
    facts["setup_s"] = time.perf_counter() - started
    recorder = Recorder(folder / "steps.csv", keep=False)
    if cfg.memory_map and scheduler.allocator.by_slot:  # where layers lie apart there is no one picture
        every = cfg.memory_map is True
        recorder = MappedRecorder(scheduler.allocator, folder / "steps.csv", keep=False, every_step=every)
    card = NvmlSampler() if facts["device"] not in ("cpu", "simulated") else None
    try:
        clock, on_progress = _clock(cfg), progress(len(workload.requests)) if progress else None
        with card or nullcontext(), _rare_collections():
            engine = Engine(scheduler, runner, recorder, depth=2 if cfg.simulation.async_scheduling else 1)
            replay(Source(workload), [engine], clock, on_progress=on_progress)
    finally:
        table, lost = _write_tables(recorder, workload, folder)
    row = lost | _facts(cfg, capacity, scheduler, workload, facts)
    row |= summarize(recorder, table, capacity)
    prefix = scheduler.prefix
    shares = scheduler.allocator.shares
    row["prefix_hit_pct"] = 100 * prefix.hits / prefix.queries if shares and prefix.queries else None
    if card:
        row |= card.facts(int(table["output_tokens"].sum()))
    reasons = table["reason"].dropna()
    why = f"; the first reason: {reasons.iloc[0]}" if len(reasons) else ""
    if not row["finished"]:
        raise HarnessError(f"none of {row['injected']} requests could be served{why}")
    limits = {str(name): limit for name, limit in cfg.slo_ms.items() if limit is not None}
    if limits or any(own in table for own in OWN_LIMITS.values()):
        row["goodput"] = goodput(table, limits, row["duration_s"])
        row["goodput_limits"] = told_limits(table, limits)
    if cfg.price_per_hour is not None and row["output_throughput"]:
        row["cost_per_million_output_tokens"] = cfg.price_per_hour / 3600 / row["output_throughput"] * 1e6
    row["warnings"] = workload.notes["notices"] + _warnings(recorder, row, why)
    if cfg.device.kind == "simulated":
        row["warnings"] += mismatch(cfg, asked)
    if not cfg.debug and not type(scheduler.allocator).__module__.startswith("allocators."):
        name = cfg.allocator._target_
        row["warnings"].append(f"{name} was not checked: a fault in it may look like a gain; run once with debug=true")
    return row


def _write_tables(recorder: Recorder, workload: Workload, folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Each table that can be written is, whatever becomes of the others.

    Returns:
        The request table; what the summary says when one is not whole.
    """
    lost: list[str] = []
    with _noted(lost):
        export((r for r in workload.requests if r.arrival_ns >= 0), folder / "workload.jsonl")
    table = request_table(recorder, _given_up(workload.requests))
    with _noted(lost):
        write_requests(table, folder / "requests.csv")
    recorder.steps.flush()
    if recorder.steps.error:
        lost.append(str(recorder.steps.error))
    if isinstance(recorder, MappedRecorder):
        with _noted(lost):
            recorder.write(folder)
    return table, {"status": "failed", "error": "; ".join(lost)} if lost else {}


@contextmanager
def _noted(lost: list[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, WorkloadError) as error:
        lost.append(str(error))


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A replay makes millions of objects and no cycle among them, so the collector looks at them in vain."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _given_up(requests: list[Request]) -> Iterator[Request]:
    """The last first: a million of them need more memory than their table, which can take their place."""
    while requests:
        yield requests.pop()


def _facts(cfg: DictConfig, capacity: int, scheduler: Scheduler, workload: Workload,
           facts: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    return {
        "model": model_name(cfg.model),
        "device": f"simulated: {who(cfg)}" if cfg.device.kind == "simulated" else facts["device"],
        "threads": facts.get("threads"),
        "capacity": capacity,
        "block_size": scheduler.allocator.block_size or None,
        "max_model_len": cfg.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "offered_rate": workload.notes.get("offered_rate"),
        "banner": workload.banner,
        "workload_notes": workload.notes,
    }


def _warnings(recorder: Recorder, row: dict[str, Any], why: str) -> list[str]:
    warnings = []
    if recorder.steps.whole.peak("num_seqs") >= row["max_num_seqs"] and row["injected"] > row["max_num_seqs"]:
        warnings.append(f"scheduler.max_num_seqs={row['max_num_seqs']} bound the batch: not memory alone was measured")
    if row["rejected"] or row["unfinished"]:
        lost = f"{row['rejected']} requests were rejected, {row['unfinished']} unfinished"
        warnings.append(f"{lost}: see requests.csv{why}")
    return warnings


def _clock(cfg: DictConfig) -> Clock:
    name = cfg.clock
    if name == "auto":
        name = "virtual" if cfg.device.kind == "simulated" else "measured"
    if name not in CLOCKS:
        raise HarnessError(f"clock={name}: there are auto, {', '.join(CLOCKS)}")
    if (name == "virtual") != (cfg.device.kind == "simulated"):
        raise HarnessError(f"clock={name} does not go with device.kind={cfg.device.kind}")
    return CLOCKS[name]()
