"""Is it as fast as an earlier edition? `python -m tests.benchmarks.before served|simulated [--rev R] [--rounds N]`.

The earlier edition is unpacked beside a link to `shared/`; each edition works in a process of its own, with the same
interpreter, and they take turns in every round. Served: W64 (see `test_w64`), and requests of the lengths of Fig. 11 on
`opt_mini`. Simulated: the loop around 256 sequences, their scheduling alone, a saturated pool, and Vidur's set-up, by
jumps and step by step (see `test_loop` and `test_simulation`). What must be the same is asked too: the answers, token
for token, or the summaries.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.worker import Worker

ROOT = Path(__file__).resolve().parents[2]
FIRST = "1b287f2"  # the first edition, as it was accepted
# Workers run inside either edition, whose benchmarks have the same functions.
SERVED = """
import hashlib, json, random, sys, time
from pathlib import Path
import yaml
from omegaconf import OmegaConf
from tests.benchmarks import test_w64 as w64

def opt_mini():
    group = yaml.safe_load(Path("experiments/model/opt_mini.yaml").read_text())
    drawn = random.Random(0)
    def row(i):
        prompt = [drawn.randrange(3, 4096) for _ in range(min(1000, int(drawn.expovariate(1 / 161)) + 1))]
        return {"id": i, "prompt_token_ids": prompt, "output_tokens": min(1000, int(drawn.expovariate(1 / 338)) + 1)}
    return group, [row(i) for i in range(48)]

group, rows = w64.model_group(), w64.rows(64)
open_device, known = w64.device.__wrapped__, {}
for name, (model, asked) in {"w64": (group, rows), "opt_mini": opt_mini()}.items():
    w64.model_group = lambda model=model: model
    known[name] = open_device(w64.THREADS), asked
warm = {"scheduler": {"max_num_batched_tokens": w64.TOKENS, "max_num_seqs": w64.LANES}, "max_model_len": w64.LONGEST}
for opened, _ in known.values():
    w64.warm_up(opened.runner(w64.Paged(4096, w64.LONGEST, block_size=16)), OmegaConf.create(warm))
print("ready", flush=True)
for line in sys.stdin:
    opened, asked = known[line.strip()]
    w64.rows = lambda count: asked
    wall, processor = time.perf_counter(), time.process_time()
    said = w64.ours(opened, len(asked))
    spent = time.perf_counter() - wall, time.process_time() - processor
    digest = hashlib.sha256(json.dumps(sorted((i, list(map(int, row))) for i, row in said.items())).encode())
    print(json.dumps([*spent, sum(map(len, said.values())), digest.hexdigest()]), flush=True)
"""
SIMULATED = """
import gc, hashlib, json, sys, tempfile, time
from pathlib import Path
from allocators.paged import Paged
from schedulers.request import Request
from schedulers.reservation import on_demand
from schedulers.vllm_v1 import VllmV1
from tests.benchmarks import test_loop, test_simulation as it
try:
    from harness.runner.simulated_device import SimulatedDevice
    latency = SimulatedDevice(it.PAPER).latency
except ImportError:
    from harness.runner.latency.choose import choose_latency
    latency = choose_latency(it.PAPER)
SAME = ("finished", "steps", "duration_s", "output_throughput", "ttft_p99", "tpot_p99")

def serve(workload, exact=False):
    start = time.perf_counter(), time.process_time()
    summary = it.serve(workload, latency, 15_728, None, exact)
    spent = time.perf_counter() - start[0], time.process_time() - start[1]
    return spent, summary["steps"], {key: summary.get(key) for key in SAME}

def loop():
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        times = sorted(test_loop.steps_around_nothing(256, Path(folder)))
    return (times[len(times) // 4], time.process_time() - start), len(times), None

def decodes():  # 256 sequences by `vllm_v1`, scheduled and completed and no more
    scheduler = VllmV1(Paged(400_000, 4096), on_demand, max_model_len=4096, max_num_seqs=256,
                       max_num_batched_tokens=8192)
    for number in range(256):
        scheduler.add(Request(number, 0, 500 + number % 200, 3000))
    while scheduler.waiting:
        scheduler.complete(scheduler.schedule(0), None)
    start = time.perf_counter(), time.process_time()
    for _ in range(600):
        scheduler.complete(scheduler.schedule(0), None)
        scheduler.allocator.memory()
    return (time.perf_counter() - start[0], time.process_time() - start[1]), 600, None

WORKLOADS = {"loop_256": loop, "decodes_256": decodes, "saturated": lambda: serve(it.sharegpt(4_000)),
             "vidur": lambda: serve(it.vidur(2_000)), "vidur_every_step": lambda: serve(it.vidur(2_000), True)}
loop()
gc.collect()
gc.freeze()  # both as a job does: else the collector walks through every module that an edition has imported
gc.set_threshold(100_000)
print("ready", flush=True)
for line in sys.stdin:
    spent, steps, said = WORKLOADS[line.strip()]()
    print(json.dumps([*spent, steps, hashlib.sha256(json.dumps(said).encode()).hexdigest()]), flush=True)
"""
KINDS = {"served": (SERVED, ("w64", "opt_mini")),
         "simulated": (SIMULATED, ("loop_256", "decodes_256", "saturated", "vidur", "vidur_every_step"))}  # fmt: skip


def edition(tree: Path, worker: str) -> Worker:
    """One of the two. It answers with seconds by the wall and by the processor, tokens or steps, and a digest."""
    paths = os.pathsep.join(map(str, (tree, tree / "kernels")))
    return Worker([sys.executable, "-c", worker], tree, {"PYTHONPATH": paths, "KVLAB_COMPILED": "0"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.before", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rev", default=FIRST)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    worker, workloads = KINDS[options.kind]
    if options.kind == "served" and not (ROOT.parent / "shared").exists():
        raise SystemExit("the workload is not there: ../shared")
    with tempfile.TemporaryDirectory(prefix="kvlab-") as folder:
        tree = Path(folder) / "kvlab"
        tree.mkdir()
        packed = subprocess.run(["git", "archive", options.rev], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=packed, check=True)
        (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        editions = {"before": edition(tree, worker), "now": edition(ROOT, worker)}
        found: dict[str, Any] = {name: {who: [] for who in editions} for name in workloads}
        for number in range(options.rounds):
            for name in workloads:
                order = list(editions)[:: 1 if number % 2 else -1]
                for who in order:
                    found[name][who].append(editions[who].ask(name))
                told = ", ".join(f"{who} {found[name][who][-1][0]:.4g}" for who in editions)
                print(f"round {number + 1}, {name}: {told}", flush=True)
        for each in editions.values():
            each.stop()
    said = {name: summary(runs) for name, runs in found.items()}
    print(json.dumps(said, indent=1))
    if options.out:
        options.out.write_text(json.dumps({"rev": options.rev, "rounds": options.rounds, **said}, indent=1) + "\n")


def summary(runs: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """Ratios of now to before: above 1 is slower."""
    before, now = runs["before"], runs["now"]
    by_turn = [b[0] / a[0] for a, b in zip(before, now, strict=True)]
    return {
        "tokens_or_steps": now[0][2],
        "per_second": {who: [round(run[2] / run[0]) for run in each] for who, each in runs.items()},
        "wall_ratio": round(median(b[0] for b in now) / median(a[0] for a in before), 4),
        "wall_ratio_by_round": [round(ratio, 4) for ratio in by_turn],
        "processor_ratio": round(median(b[1] for b in now) / median(a[1] for a in before), 4),
        "same_answers": len({run[3] for each in runs.values() for run in each}) == 1,
    }


if __name__ == "__main__":
    main()
