"""One job: a configuration in, a folder with its tables out, even if the job fails."""

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

from omegaconf import DictConfig, OmegaConf

from harness.config import asked_by, check, without_effect
from harness.console.signals import interrupt_in
from harness.devices import clock_name, home_of, is_elsewhere, open_device
from harness.environment import environment
from harness.errors import HarnessError
from harness.exports import export
from harness.files import write_json, write_text, write_yaml
from harness.job.build import build_scheduler, resolve_lane_slots
from harness.job.served import make_recorder, summary_row, write_tables
from harness.job.watchdog import watchdog
from harness.lookup import locate
from harness.naming.labels import names
from harness.naming.names import workload_name
from harness.replay.clock import CLOCKS
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.workload import build_workload

SERVE = "harness.job.serve"
Progress = Callable[[int, int], None]


def run_job(cfg: DictConfig, folder: Path, overrides: Sequence[str] = (),
            progress: Callable[[int], Progress] | None = None) -> dict[str, Any]:  # fmt: skip
    """Run one job (the function that `cfg.task` names) and write its folder: config, environment, tables, summary.

    A failure is written too (`status`, `error`, `traceback.txt`) and returned, not raised; only an interrupt is raised,
    after everything so far has been written. The summary is written last and atomically: if it is missing, or its
    status is not "finished", the job did not finish.

    Args:
        cfg: the whole configuration; values are converted in place to the types of the schema.
        folder: where to write; created if needed.
        overrides: the overrides of the command line, for the record.
        progress: called with the number of requests; returns a function called with (requests ended, tokens) per step.
    """
    asked = asked_by(overrides)
    mistakes = check(cfg, asked)
    row: dict[str, Any] = {**names(cfg), "status": "finished", "error": None, "overrides": list(overrides)}
    row |= {"repeat": cfg.repeat, "seed": cfg.seed, "workload": workload_name(cfg.workload)}
    facts = environment()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("summary.json", "traceback.txt"):  # of an earlier run
            (folder / name).unlink(missing_ok=True)
        write_yaml(folder / "config.yaml", cfg)
        if mistakes:
            raise HarnessError("\n".join(mistakes))
        with watchdog(cfg.get("patience_s")):  # missing in plans of earlier versions
            row |= locate(cfg.task, "task")(cfg, folder, asked, facts, progress)
        if interrupt := row.pop("interrupt", None):  # of a task that still returned its results
            raise interrupt
        row["warnings"] = [*without_effect(cfg, asked), *row.get("warnings", [])]
        if cfg.task == SERVE and row["status"] == "finished":
            row["warnings"] += export(folder, cfg.exports, cfg.tables)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(folder)  # of a full disk
        interrupt = interrupt_in(error)
        row["status"] = "interrupted" if interrupt else "failed"
        row["error"] = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        if interrupt:
            raise interrupt from None
        _write_last(folder / "traceback.txt", traceback.format_exc())
    finally:
        _write_last(folder / "environment.json", facts)
        if problem := _write_last(folder / "summary.json", row):
            print(f"summary.json can't be written ({problem}); it would say\n{json.dumps(row, default=str)}",
                  file=sys.stderr)  # fmt: skip
            row |= {"status": "failed", "error": row["error"] or str(problem)}
    return row


def _write_last(path: Path, content: str | dict[str, Any]) -> OSError | None:
    """Write one of the last files; returns the error if that fails."""
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
        facts: the content of `environment.json`, to which the device's facts are added.

    Returns:
        The content of `summary.json`, without the names.
    """
    started = time.perf_counter()
    settings: Any = OmegaConf.to_container(cfg.workload, resolve=True)
    workload = build_workload(settings, cfg.max_model_len, cfg.seed)
    if is_elsewhere(cfg):
        return home_of(cfg).serve_live(cfg, folder, workload, facts, progress)
    cfg = resolve_lane_slots(cfg, workload.requests)
    device = open_device(cfg, asked)
    scheduler = build_scheduler(cfg, device.capacity, asked, device.layout)
    recorder = make_recorder(cfg, scheduler.allocator, folder)
    depth = 2 if cfg.simulation.async_scheduling else 1
    engine = Engine(scheduler, device.runner(scheduler.allocator), recorder, depth)
    clock, on_progress = CLOCKS[clock_name(cfg)](), progress(len(workload.requests)) if progress else None
    facts |= device.facts | {"setup_s": time.perf_counter() - started}
    try:
        with device.sampler or nullcontext(), infrequent_gc():
            replay(Source(workload), [engine], clock, on_progress=on_progress)
    finally:
        table, lost = write_tables(recorder, workload, folder)
    return lost | summary_row(cfg, device, scheduler, workload, recorder, table)


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Collect garbage rarely: a replay makes millions of objects without cycles, which the collector scans in vain."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
