"""Every simulated experiment at a reduced size, and what else steers a replay: what must come out the same each time.

`play` runs them and writes their tables. As a program it does so with the checkout that stands first on PYTHONPATH:

    PYTHONPATH=CHECKOUT python tests/simulation/byte_equal.py FOLDER [--compiled] [NAME ...]
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import itertools
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

TABLES = ("requests.csv", "steps.csv", "comparison.csv")
NOT_COMPARED = {"dir", "workload_notes", "identity"}  # of comparison.csv: where things lie, and every key there is
Sweep = Mapping[str, str]  # a dotted key, and its values with commas between them

FEW = {"workload.num_requests": "60", "kv_slots": "6000"}
SEARCH = {"workload.duration_s": "20", "search.burst": "40", "search.tolerance": "0.5", "kv_slots": "6000"}
TIGHT = {"device": "simulated", "workload.num_requests": "80", "workload.rate": "6", "kv_slots": "4000"}
CHATS = {"workload": "trace", "workload.path": "${repository:}/experiments/data/chat_rounds.jsonl",
         "workload.num_requests": "80", "device": "simulated", "kv_slots": "12000"}  # fmt: skip
SYSTEMS = (
    "static+contiguous+max_model_len,static+paged+on_demand,continuous+contiguous+max_model_len,faster_transformer,"
    "orca_max,orca_pow2,orca_oracle,vllm,vattention,ideal,radix,paged_cached+on_demand,first_fit+exact,best_fit+exact,"
    "first_fit_compacting+exact,first_fit_growing+on_demand,rebuild+first_fit+exact,buddy+exact,"
    "contiguous+max_model_len"
)
SCHEDULERS = (
    "continuous,static,static_fixed,static_memory,static_bucketed,vllm_v1,sarathi,guaranteed_no_evict,max_utilization,"
    "past_future,shortest_first,shortest_predicted,priority,longest_prefix,rebuild,ideal"
)
EXPERIMENTS: dict[str, Sweep] = {
    "batch_occupancy": {**FEW, "workload": "sharegpt,alpaca", "system": "orca_max,orca_oracle,vllm"},
    "beam_search": {**SEARCH, "workload.duration_s": "8", "workload.n": "4", "system": "orca_oracle,vllm"},
    "block_size": {**FEW, "workload.arrival": "burst,poisson", "allocator.block_size": "1,16,128"},
    "capacity": {**SEARCH, "system": "orca_oracle,ideal"},
    "chatbot": {**SEARCH, "search.rates": "[0.5]", "system": "vllm"},
    "claims": {"part": "lanes_static,holes_first_fit_exact,holes_paged_on_demand"},
    "fragmentation": {
        "case": "holes,blocks",
        "system": "first_fit+exact,first_fit_compacting+exact,first_fit_growing+on_demand,contiguous+max_model_len,"
        "rebuild+first_fit+exact,buddy+exact,paged+on_demand,vattention",
    },
    "knobs": {
        "workload.num_requests": "40", "scheduler.max_num_seqs": "4,16", "gpu_memory_utilization": "0.7,0.9",
        "allocator.enable_prefix_caching": "false,true",
    },
    "matrix": {
        **TIGHT, "scheduler": "static,continuous",
        "system": "contiguous+max_model_len,buddy+pow2,radix,virtual+on_demand",
    },
    "memory_saved": {
        "workload": "alpaca", "workload.num_requests": "30", "workload.use_beam_search": "false,true",
        "workload.n": "2,4",
    },
    "output_variance": {
        "workload.num_requests": "40", "cap": "32,1536", "system": "static_lanes,continuous_lanes,vllm,ideal",
    },
    "paged_vs_static": {
        **TIGHT,
        "system": "static+contiguous+max_model_len,static+paged+on_demand,continuous+contiguous+max_model_len,orca_max,"
        "vllm",
    },
    "parallel_sampling": {**SEARCH, "workload.duration_s": "10", "workload.n": "2,4", "system": "orca_oracle,vllm"},
    "prefix_cache": {
        "workload.path": CHATS["workload.path"], "workload.num_requests": "60", "max_model_len": "2048",
        "kv_slots": "4096,16384", "allocator": "paged,paged_cached,radix",
    },
    "request_rate": {**SEARCH, "search.rates": "[1]", "system": "faster_transformer,vllm"},
    "schedulers": {"workload.limit": "80", "workload.rate": "4", "scheduler": SCHEDULERS},
    "shared_prefix": {
        **SEARCH, "workload.duration_s": "10", "lengths": "middle", "workload.shared_prefix": "80",
        "system": "orca_oracle,paged_cached+on_demand",
    },
    "static_batching": {
        "device": "simulated",
        "system": "static+contiguous+max_model_len,static+paged+on_demand,continuous+contiguous+max_model_len,vllm",
    },
    "swap_vs_recompute": {
        **FEW, "workload.rate": "4", "scheduler.preemption": "recompute,swap", "allocator.block_size": "16,128",
    },
    "waste_breakdown": {**FEW, "system": "orca_max,orca_pow2,vllm", "seed": "0,1"},
}  # fmt: skip
WAYS: dict[str, Sweep] = {  # that no experiment goes
    "ahead": {
        **TIGHT, "scheduler": "vllm_v1", "simulation.async_scheduling": "true", "kv_slots": "2000,6000",
        "scheduler.chunked_prefill": "false,true", "allocator.enable_prefix_caching": "false,true",
    },
    "beams": {
        **TIGHT, "workload.n": "3", "workload.use_beam_search": "true", "scheduler": "continuous,guaranteed_no_evict",
    },
    "checked": {
        **TIGHT, "workload.num_requests": "20", "debug": "true", "memory_map": "true", "system": "vllm,orca_pow2",
    },
    "closed_loop": {
        **TIGHT, "workload.rate": "null", "workload.arrival": "closed_loop", "workload.concurrency": "7",
        "system": "static+paged+on_demand,vllm", "simulation.exact_steps": "false,true",
    },
    "exact": {**TIGHT, "simulation.exact_steps": "true", "scheduler": "static_fixed,continuous,vllm_v1"},
    "groups": {**TIGHT, "workload.n": "3", "system": "vllm,radix,orca_oracle", "scheduler": "continuous,static"},
    "policies": {
        **CHATS, "kv_slots": "6000", "scheduler": "continuous,vllm_v1,static",
        "scheduler.policy": "fcfs,priority,shortest_first,longest_prefix",
        "scheduler.length_predictor": "oracle,history,noisy:0.5",
    },
    "prefixes": {
        **CHATS, "scheduler": "continuous,vllm_v1,longest_prefix", "allocator": "paged_cached,radix,paged",
    },
    "roofline": {
        **TIGHT, "model": "llama_8b", "device.latency": "roofline", "device.hardware": "h100,l4",
        "device.tensor_parallel": "1,2", "system": "vllm,vattention",
    },
    "schedulers_tight": {**TIGHT, "scheduler": SCHEDULERS},
    "swap": {
        **TIGHT, "scheduler.preemption": "swap", "allocator.host_slots": "512,4000", "kv_slots": "3000",
        "workload.n": "1,2",
    },
    "systems_tight": {**TIGHT, "server": "opt_13b_a100", "system": SYSTEMS},
}  # fmt: skip
QUICK = ("ahead", "fragmentation", "knobs", "paged_vs_static", "swap_vs_recompute", "waste_breakdown")
NAMES = (*EXPERIMENTS, *WAYS)


def jobs(name: str) -> list[list[str]]:
    """The overrides of each job of `name`."""
    sweep = EXPERIMENTS.get(name) or WAYS[name]
    axes = [[f"{key}={value}" for value in ([text] if text[0] == "[" else text.split(","))]
            for key, text in sweep.items()]  # fmt: skip
    rows = [list(job) for job in itertools.product(*axes)]
    return [[*job, f"experiment={name}"] for job in rows] if name in EXPERIMENTS else rows


def play(name: str, folder: Path, compiled: bool = False) -> None:
    """Run the jobs of `name` and report on them, without figures."""
    import harness.__main__  # noqa: F401  (its resolvers)
    from harness.job import run_job
    from harness.tasks.claims import composed

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    planned = [[*job, "simulation.compiled=true"] if compiled else job for job in jobs(name)]
    plan = [{"dir": str(i), "overrides": job} for i, job in enumerate(planned)]
    (folder / "plan.json").write_text(json.dumps(plan))
    cfg = None
    for i, job in enumerate(planned):
        cfg = composed(job)
        row = run_job(cfg, folder / str(i), job)
        if row["status"] != "finished":  # which the tables say, too
            print(f"{name}, {' '.join(job)}: {row['error']}", file=sys.stderr)
    _report(folder, cfg.baseline if cfg else None)


def _report(folder: Path, baseline: str | None) -> None:
    from rich.console import Console

    from harness import report

    with _no_figures(report), contextlib.redirect_stdout(io.StringIO()):
        report.report_sweep(folder, Console(file=io.StringIO(), width=100), baseline=baseline)


@contextlib.contextmanager
def _no_figures(report: Any) -> Iterator[None]:
    """Neither figures nor a page, whatever this checkout calls what makes them."""
    places = [(report, "draw_all"), (report, "_draw")]
    with contextlib.suppress(ImportError):
        places.append((importlib.import_module("harness.report.page"), "write_page"))
    made = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    for place, name, _ in made:
        setattr(place, name, lambda *arguments, **named: [])
    try:
        yield
    finally:
        for place, name, make in made:
            setattr(place, name, make)


def digests(folder: Path) -> dict[str, dict[str, str]]:
    """Of every table of a played name, by the file's name, of each column: the start of a digest over all its jobs."""
    told = {}
    for name in TABLES:
        columns: dict[str, Any] = {}
        for path in sorted(folder.rglob(name)):
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
            for column in table.columns.difference(list(NOT_COMPARED), sort=False):
                text = "\n".join([str(path.relative_to(folder)), *table[column], ""])
                columns.setdefault(column, hashlib.sha256()).update(text.encode())
        if columns:
            told[name] = {column: digest.hexdigest()[:4] for column, digest in columns.items()}
    return told


def differences(one: Path, other: Path) -> tuple[list[str], list[str]]:
    """What is not the same in two folders of one name, and columns that only one of them has."""
    wrong, alone = [], []
    before, after = digests(one), digests(other)
    for table in sorted(before.keys() | after.keys()):
        left, right = before.get(table, {}), after.get(table, {})
        differ = [column for column in left if column in right and left[column] != right[column]]
        if differ:
            wrong.append(f"{table}: {', '.join(differ)} ({_first(one, other, table, differ)})")
        alone += [f"{table}: {column} {'is gone' if column in left else 'is new'}"
                  for column in (*left, *right) if (column in left) != (column in right)]  # fmt: skip
    return wrong, alone


def _first(one: Path, other: Path, name: str, columns: Iterable[str]) -> str:
    """The first place where a table differs."""
    for path in sorted(one.rglob(name)):
        place = path.relative_to(one)
        left, right = (pd.read_csv(root / place, dtype=str, keep_default_na=False) if (root / place).exists() else None
                       for root in (one, other))  # fmt: skip
        if left is None or right is None or len(left) != len(right):
            return f"{place}: {len(left)} rows, {'none' if right is None else len(right)}"
        for row in range(len(left)):
            for column in columns:
                a, b = left.at[row, column], right.at[row, column]
                if a != b:
                    return f"{place}, row {row}, {column}: {a} -> {b}"
    return "files that only one has"


if __name__ == "__main__":
    target, *arguments = sys.argv[1:]
    sys.path.pop(0)  # this folder, where tests lie
    if "--compiled" in arguments:
        from harness import compiled as build

        build.use()
        assert build.in_use(), "nothing is built from the sources as they are"
    for chosen in [argument for argument in arguments if argument != "--compiled"] or NAMES:
        play(chosen, Path(target) / chosen, "--compiled" in arguments)
