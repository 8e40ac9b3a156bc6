"""Measures how long a step takes on this machine and writes a latency model that simulations can use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from omegaconf import DictConfig, OmegaConf

from harness.devices import must_run_here
from harness.files import write_table, write_text
from harness.naming.names import model_name
from harness.report.drift import draw_drift
from harness.runner.latency.drift import drift, spread_of, unlike
from harness.runner.latency.fitted import FittedLatency, names

HELD_BACK = 5  # every 5th step is not fitted
SHOWN = {"median": 0.5, "p90": 0.9}
TARGET = f"{FittedLatency.__module__}.{FittedLatency.__qualname__}"


def measure(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any], progress: object) -> dict[str, Any]:
    """The task of `experiment=calibrate`: real jobs at several concurrencies, one fit, `latency.yaml`.

    Each concurrency is a closed loop of the configured lengths, served as any other job is (its tables lie in a folder
    of its own), so that batches of that many sequences meet contexts of every length, and prompts of every length join
    them; all loops are run through more than once, so that no batch size has the machine's good minutes to itself. Four
    fifths of the pooled steps are fitted, the others tell the error. Beside it stand what of it is within a run, and
    how far apart the runs are (`drift.csv`, `drift.png`): a machine that slows down is no fault of a model.

    Raises:
        HarnessError: a simulated device, which has no step times of its own.
    """
    must_run_here(cfg, "experiment=calibrate times real steps")
    loops = [(again, n) for again in range(cfg.calibrate.passes) for n in cfg.calibrate.concurrency]
    seeds = [(cfg.seed + again) % 2**64 for again in range(cfg.calibrate.passes)]
    names_of_runs = [f"{n}_in_flight_{again}" for again, n in loops]
    tables = []
    for (again, n), name in zip(loops, names_of_runs, strict=True):
        begun = time.time()
        tables.append(_steps(cfg, folder / name, n, seeds[again], facts).assign(run=name, begun=begun))
    steps = pd.concat(tables, ignore_index=True)
    held_back = np.arange(len(steps)) % HELD_BACK == HELD_BACK - 1
    latency = FittedLatency.fit(steps[~held_back])
    runs = drift(latency, steps, held_back)
    errors = errors_by_kind(latency, steps[held_back])
    write_table(folder / "calibration.csv", errors)
    write_table(folder / "drift.csv", runs)
    draw_drift(runs, folder / "drift.png")
    overall = errors.iloc[-1]
    write_text(folder / "latency.yaml", as_yaml(latency, model_name(cfg.model), facts, len(steps), overall))
    row = {
        "model": model_name(cfg.model),
        "device": facts["device"],
        "threads": facts.get("threads"),
        "steps": len(steps),
    }
    row |= {f"error_{key}_pct": float(overall[f"{key}_pct"]) for key in SHOWN}
    row |= spread_of(runs) | {"steps_unlike_pct": unlike(steps)}
    print(
        f"{len(steps):,} steps; on every {HELD_BACK}th, not fitted, median |error| {row['error_median_pct']:.1f} %, "
        f"90th percentile {row['error_p90_pct']:.1f} %\n"
        f"at one pace of the machine {row['error_within_piece_pct']:.1f} % (within a tenth of a run; within a run "
        f"{row['error_within_run_pct']:.1f} %); runs took {row['drift_fastest_pct']:+.1f} to "
        f"{row['drift_slowest_pct']:+.1f} % more time than the model says (drift.png)\n"
        f"no model misses less than {row['steps_unlike_pct'] or 0:.1f} %, by which steps alike are unlike each other\n"
        f"use it: device=simulated device.latency={folder}/latency.yaml"
    )
    return row


def errors_by_kind(latency: FittedLatency, steps: pd.DataFrame) -> pd.DataFrame:
    """|predicted / measured − 1| in percent (median, p90): decode steps by batch size, steps with prompts, all."""
    whole = (steps["schedule_ms"] + steps["execute_ms"] + steps["complete_ms"]).to_numpy() * 1e6
    error = pd.Series(100 * np.abs((latency.predict(steps) + latency.overhead_ns) / whole - 1), index=steps.index)
    lanes = steps["num_seqs"] + steps["idle_lanes"]
    kinds = {"with prompts": steps["prefill_tokens"] > 0}
    low = 1
    while low <= lanes.max():
        inside = (lanes >= low) & (lanes < 2 * low) & (steps["prefill_tokens"] == 0)
        kinds[f"{low}-{2 * low - 1} decodes" if low > 1 else "1 decode"] = inside
        low *= 2
    kinds["all"] = pd.Series(True, index=steps.index)
    rows = [
        {
            "steps": kind,
            "count": int(which.sum()),
            **{f"{name}_pct": error[which].quantile(q) for name, q in SHOWN.items()},
        }
        for kind, which in kinds.items()
        if which.any()
    ]
    return pd.DataFrame(rows)


def as_yaml(latency: FittedLatency, model: str, facts: dict[str, Any], steps: int, error: pd.Series) -> str:
    """The model as `device.latency` takes it, with what it was measured on in comments."""
    values = {"_target_": TARGET, "coefficients": list(latency.coefficients), "overhead_ns": latency.overhead_ns,
              "knots": list(latency.knots), "live_ns": latency.live_ns}  # fmt: skip
    about = f"{model} on {facts['device']}, {steps:,} steps, threads {facts.get('threads')}, {facts.get('platform')}"
    return (
        f"# Step times of {about}\n"
        f"# median |error| {error['median_pct']:.1f} % on held-back steps (90th percentile {error['p90_pct']:.1f} %)\n"
        f"# coefficients in ns: {', '.join(names(latency.knots))}\n"
    ) + yaml.safe_dump(values, sort_keys=False)


def _steps(cfg: DictConfig, folder: Path, concurrency: int, seed: int, facts: dict[str, Any]) -> pd.DataFrame:
    """The steps of a closed loop of `concurrency` requests."""
    from harness.job import serve

    folder.mkdir(parents=True)
    count = max(cfg.calibrate.requests, cfg.calibrate.rounds * concurrency)
    changed = {"seed": seed, "workload": {"arrival": "closed_loop", "concurrency": concurrency, "num_requests": count}}
    serve(OmegaConf.merge(cfg, changed), folder, set(), facts, None)  # type: ignore[arg-type]
    steps = pd.read_csv(folder / "steps.csv")
    return steps[steps["num_seqs"] > 0]
