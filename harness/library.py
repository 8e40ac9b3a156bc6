"""kvlab in a notebook: the objects of the command line, put together by hand.

import harness
from allocators.paged import Paged
from schedulers.continuous import Continuous

workload = harness.load_workload("sharegpt", num_requests=100, rate=4)
run = harness.simulate(workload, allocator=Paged, scheduler=Continuous, latency="opt-13b-a100-sosp23")
run.requests, run.steps, run.summary
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from allocators.base import Allocator
from allocators.checker import Checked
from allocators.paged import Paged
from harness import devices
from harness.config import asked_by, settled
from harness.console.mistakes import explained
from harness.errors import HarnessError
from harness.installation import EXPERIMENTS
from harness.job.build import make_allocator, make_scheduler
from harness.metrics.gaps import Gaps
from harness.metrics.recorder import Recorder
from harness.metrics.requests import request_table
from harness.metrics.summary import client_side, summarize
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.routers.base import Router
from harness.runner.latency.base import Latency
from harness.runner.simulated import SimulatedModelRunner
from harness.runner.simulated_device import SimulatedDevice
from harness.tasks.claims import composed
from harness.workload import Workload, build_workload
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import RESERVATIONS, Reservation, on_demand

PRESET = "opt-13b-a100-sosp23"
SLOTS = 15_728  # of OPT-13B on an A100 with 40 GB, as on the command line


@dataclass
class Run:
    """What a simulation gave.

    Attributes:
        requests: a row a request, as in `requests.csv`; of several engines with a column `engine`.
        steps: a row a step, as in `steps.csv`; of several engines with a column `engine`, one after the other.
        summary: the numbers of `summary.json`; of several engines what their clients see together, and under
            `engines` those of each.
        engines: with their schedulers, allocators and recorders, as they were at the end.
    """

    requests: pd.DataFrame
    steps: pd.DataFrame
    summary: dict[str, Any]
    engines: list[Engine]


def load_workload(name: str, max_model_len: int = 2048, seed: int = 0, **keys: Any) -> Workload:
    """A workload as the command line has it.

    Args:
        name: of a group: `workload=NAME`. `trace` reads the file `path`.
        keys: of the workload, as in `workload.KEY=VALUE`: `num_requests=100, rate=4`.

    Raises:
        HarnessError: no such workload, no such key, or a value or a file that it can't take.
    """
    cfg = _composed([f"workload={name}"])
    settings: Any = OmegaConf.to_container(cfg.workload, resolve=True)
    return build_workload(settings | keys, max_model_len, seed)


def make_workload(prompt_tokens: Items[int], output_tokens: Items[int], arrival_s: Items[float] | float = 0.0,
                  concurrency: int | None = None, **fields: Items[Any]) -> Workload:  # fmt: skip
    """A workload from its lengths.

    Args:
        prompt_tokens, output_tokens: of each request.
        arrival_s: when each comes, never sooner than the one before; a number = all at that time.
        concurrency: so many in flight in a closed loop instead.
        fields: others of `schedulers.request.Request`, one value for each request: `priority=[…]`.

    Raises:
        HarnessError: columns that differ in length, no requests, or values that no request can have.
    """
    prompts, outputs = (np.asarray(column) for column in (prompt_tokens, output_tokens))
    times = np.broadcast_to(np.asarray(arrival_s, dtype=float), prompts.shape)
    columns = {"prompt_tokens": prompts, "output_tokens": outputs, "arrival_s": times, **fields}
    if len(set(map(len, columns.values()))) > 1 or not len(prompts):
        told = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise HarnessError(f"make_workload needs as many values in each column, and at least one: {told}")
    for name, column in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        if not np.issubdtype(column.dtype, np.integer) or column.min() < 1:
            raise HarnessError(f"{name} must be whole numbers of tokens, at least 1")
    if not (np.diff(times, prepend=0.0) >= 0).all():
        raise HarnessError("arrival_s must be seconds from 0 on, in order")
    try:
        requests = [
            Request(number, round(second * 1e9), prompt, output, **dict(zip(fields, more, strict=True)))
            for number, (prompt, output, second, *more) in enumerate(
                zip(prompts.tolist(), outputs.tolist(), times.tolist(), *fields.values(), strict=True)
            )
        ]
    except TypeError as error:
        raise HarnessError(f"make_workload: {error}") from error
    return Workload(requests, concurrency, {"notices": []})


def open_device(*overrides: str) -> SimulatedDevice:
    """A simulated device as the command line has it.

    Args:
        overrides: `model=llama_8b`, `device.latency=roofline`, `device.hardware=h100`, `kv_bytes=8000000000`, …

    Raises:
        HarnessError: there is no such thing, or they don't go together.
    """
    cfg = settled(_composed(["device=simulated", *overrides]), asked_by(overrides))
    device = devices.open_device(cfg, asked_by(overrides))
    if not isinstance(device, SimulatedDevice):
        raise HarnessError(f"simulate needs a simulated device, not device={cfg.device.kind}")
    return device


def simulate(workload: Workload, allocator: Allocator | Callable[..., Allocator] = Paged,
             scheduler: Callable[..., Scheduler] = Continuous, latency: Latency | SimulatedDevice | str = PRESET, *,
             reservation: Reservation | str = on_demand, kv_slots: int | None = None, max_model_len: int = 2048,
             engines: int = 1, router: Router | Callable[[int], Router] | None = None, depth: int = 1,
             exact_steps: bool = False, debug: bool = False) -> Run:  # fmt: skip
    """Replay a workload under a virtual clock.

    Args:
        workload: it is left as it is, and can be simulated again.
        allocator: its class, or `functools.partial(Class, argument=…)`; or an object with a pool of its own, which
            serves one simulation.
        scheduler: its class, or `functools.partial(Class, max_num_seqs=64)`.
        latency: a latency model; what `open_device` gives, with its pool, layout and moves; or what
            `device.latency=` takes.
        reservation: what a request is promised: one of `schedulers.reservation`, or its name.
        kv_slots: size of the pool; None = the device's, else 15,728.
        max_model_len: longest sequence, prompt and output, in tokens.
        engines: how many, side by side, each with such a pool.
        router: of several engines: its class, a partial, or an object made for so many.
        depth: 2 = the next step is scheduled while one runs.
        exact_steps: take each step by itself: the same, slower.
        debug: check every call of the allocator.

    Raises:
        HarnessError: parts that don't go together, or a scheduler that makes no progress.
    """
    device = open_device(f"device.latency={latency}") if isinstance(latency, str) else latency
    opened = device if isinstance(device, SimulatedDevice) and not isinstance(latency, str) else None
    model: Any = device.latency if isinstance(device, SimulatedDevice) else device
    pools = _pools(allocator, opened, engines, kv_slots, max_model_len, scheduler)
    promise = RESERVATIONS[reservation] if isinstance(reservation, str) else reservation
    cls, arguments = _parted(scheduler)
    requests = [replace(request) for request in workload.requests]
    with tempfile.TemporaryDirectory() as folder:
        fleet = []
        for number, pool in enumerate(pools):
            name, recorder = type(pool).__name__, Recorder(Path(folder) / f"{number}.csv")
            pool = Checked(pool) if debug else pool  # type: ignore[abstract]
            runner = SimulatedModelRunner(model, exact_steps, opened.moves if opened else None)
            policy = make_scheduler(cls, arguments, pool, promise, pool.max_model_len, name)
            fleet.append(Engine(policy, runner, recorder, depth))
        chosen = router if router is None or isinstance(router, Router) else router(engines)
        replay(Source(Workload(requests, workload.concurrency)), fleet, Clock(), chosen)
        return _run(fleet, requests, Path(folder))


def _pools(allocator: Any, device: SimulatedDevice | None, engines: int, kv_slots: int | None, max_model_len: int,
           scheduler: Any) -> list[Allocator]:  # fmt: skip
    """One for each engine."""
    if isinstance(allocator, Allocator):
        if engines != 1:
            raise HarnessError(f"{engines} engines need an allocator each: hand over its class, or a partial")
        return [allocator]
    cls, arguments = _parted(allocator)
    layout, capacity = (device.layout, device.capacity) if device else (None, SLOTS)
    if kv_slots is not None:
        capacity = kv_slots * layout.token_bytes // layout.unit_bytes if layout else kv_slots
    lanes = _parted(scheduler)[1].get("max_num_seqs", 256)
    return [make_allocator(cls, arguments, capacity, max_model_len, layout, lanes) for _ in range(engines)]


def _parted(part: Any) -> tuple[Any, dict[str, Any]]:
    """A class, and the arguments that a partial holds."""
    if not isinstance(part, partial):
        return part, {}
    if part.args:
        raise HarnessError(f"partial({part.func.__name__}, …): name its arguments")
    return part.func, dict(part.keywords)


def _run(fleet: list[Engine], requests: list[Request], folder: Path) -> Run:
    tables, steps, summaries, gaps = [], [], [], Gaps()
    for number, engine in enumerate(fleet):
        recorder = engine.recorder
        came = set(recorder.deliveries()[:, 0].tolist()) if len(fleet) > 1 else None
        table = request_table(recorder, [r for r in requests if came is None or r.id in came])
        summaries.append(summarize(recorder, table, engine.scheduler.allocator.capacity))
        path = folder / f"{number}.csv"
        tables.append(table.assign(engine=number))
        steps.append((pd.read_csv(path) if path.exists() else pd.DataFrame()).assign(engine=number))
        for gap, count in recorder.gaps.counts.items():
            gaps.add(gap, count)
    if len(fleet) == 1:
        return Run(tables[0].drop(columns="engine"), steps[0].drop(columns="engine"), summaries[0], fleet)
    table = pd.concat(tables, ignore_index=True).sort_values("id", ignore_index=True)
    return Run(table, pd.concat(steps, ignore_index=True), client_side(table, gaps) | {"engines": summaries}, fleet)


def _composed(overrides: list[str]) -> DictConfig:
    import harness.sweeps.task  # noqa: F401  (its resolvers)

    with explained(EXPERIMENTS):
        return composed(overrides)
