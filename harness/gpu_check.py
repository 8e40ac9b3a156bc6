"""Is everything right on this GPU, and how fast? `python -m harness.gpu_check --out DIR [--quick]`: under 8 minutes.

Writes one folder: kernels against float64, bandwidth and moves (`kernels_*.csv`), logits of models with windows, sinks,
latents and states beside those of `transformers` (`models.csv`), the same answers from every placement, shared, swapped
and moved (`answers.csv`), the headline experiment on a model of the shape of Llama-3.1-8B with 90 % of the GPU's memory
(`headline/`), utilisation, memory and power by NVML (in its `comparison.csv`), and `check.json`. Needs no network.
`--quick` does the same in tiny on whatever is there, a CPU too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from harness.console.signals import exit_code, listen
from harness.environment import environment
from harness.errors import HarnessError, answer
from harness.files import write_json, write_table
from harness.folders.owner import Lock, lock_owner, results_in
from harness.installation import EXPERIMENTS
from harness.job import run_job

ROWS = ("vllm", "continuous+contiguous+max_model_len", "static+contiguous+max_model_len", "static+paged+on_demand")
FULL = ("model=llama_8b", "device=cuda", "gpu_memory_utilization=0.9", "workload.num_requests=2048",
        "scheduler.max_num_seqs=2048", "scheduler.max_num_batched_tokens=8192")  # fmt: skip
QUICK = ("kv_slots=1024", "max_model_len=256", "workload.num_requests=16", "workload.fit=scale",
         "scheduler.max_num_seqs=64", "device.threads=1")  # fmt: skip
CHECK = "check.json"
MODELS = ("gemma3_mini", "gptoss_mini", "qwen3next_mini", "deepseek_mini")  # a window, sinks, states, latents
OWN = ("answers.csv", "models.csv", "kernels_*.csv", "headline")  # what a check writes beside it
BIG = ("steps.csv", "workload.jsonl", "requests.csv")  # too large to keep with the code


def main() -> None:
    """The command line; exit code 1 when a part failed. What was done is written in any case."""
    parser = argparse.ArgumentParser(prog="python -m harness.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a dry run")
    parser.add_argument(
        "--seconds", type=float, default=400, help="start no further headline row after so many seconds"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    check: dict[str, Any] = {"quick": options.quick, "environment": environment(), "parts": {}}
    listen()
    try:
        with take(options.out):
            ok = _check(options, check, started)
    except HarnessError as error:
        answer(error)
    except KeyboardInterrupt as error:
        sys.exit(exit_code(error))
    sys.exit(0 if ok else 1)


def take(out: Path) -> Lock:
    """Take the folder for a new check, which replaces the files of an earlier one and no others.

    Raises:
        HarnessError: it is in use, or other results lie where the check would write.
    """
    lock = Lock.of(out)
    if lock is None:
        raise HarnessError(f"{out} is in use by {lock_owner(out)}; choose another folder with --out DIR")
    earlier = [path for pattern in OWN for path in out.glob(pattern)]
    if not (out / CHECK).exists() and (found := [path.name for path in earlier] + results_in(out)):
        lock.release()
        raise HarnessError(f"{out} holds results that are no check's ({', '.join(found)}); choose another folder with "
                           "--out DIR")  # fmt: skip
    write_json(out / CHECK, {})  # whatever happens from here on, the folder is known as a check's
    for path in earlier:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return lock


def _check(options: argparse.Namespace, check: dict[str, Any], started: float) -> bool:
    """Run all parts, whatever becomes of one of them; whether all are well."""

    def part(name: str, work: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        try:
            check["parts"][name] = {"ok": True, "found": work()}
        except Exception as error:
            traceback.print_exc()
            check["parts"][name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        check["parts"][name]["seconds"] = round(time.perf_counter() - begun, 1)
        write_json(options.out / CHECK, check)

    part("kernels", lambda: _kernels(options.out, options.quick))
    part("models", lambda: _models(options.out))
    part("answers", lambda: _answers(options.out, options.quick))
    part("headline", lambda: _headline(options.out / "headline", options.quick, started + options.seconds))
    for name, found in check["parts"].items():
        print(f"{name}: {'ok' if found['ok'] else found['error']} in {found['seconds']} s")
    print(f"written to {options.out} in {time.perf_counter() - started:.0f} s")
    return all(found["ok"] for found in check["parts"].values())


def _kernels(out: Path, quick: bool) -> dict[str, Any]:
    import torch
    from kvlab_kernels.gpu_check import run_kernel_check

    found = run_kernel_check(out, quick, "cuda" if torch.cuda.is_available() else "cpu")
    if not found["ok"]:
        raise RuntimeError(f"a kernel is wrong: see {out}/kernels_correctness.csv")
    return found


def _models(out: Path) -> dict[str, Any]:
    """Logits of the models of the house in float32, beside those of the model by itself."""
    import pandas as pd

    from harness.runner.device import open_model
    from harness.runner.logits_check import compare_logits

    rows = []
    for name in MODELS:
        settings = [f"model={name}", "device.dtype=float32"]
        with initialize_config_dir(str(EXPERIMENTS), version_base="1.3"):
            model, backend = open_model(compose("config", overrides=settings))
        verdict = compare_logits(model, backend)
        rows.append({"model": name, "kernels": backend.name, "equal": verdict.equal, "difference": verdict.difference,
                     "tolerance": verdict.tolerance})  # fmt: skip
    table = pd.DataFrame(rows)
    write_table(out / "models.csv", table)
    if not table["equal"].all():
        raise HarnessError(f"a model is served wrongly:\n{table.to_string(index=False)}")
    return {"equal": len(table), "difference_most": float(table["difference"].max())}


def _answers(out: Path, quick: bool) -> dict[str, Any]:
    import torch

    from harness.tasks.same_outputs import check_same_outputs

    table = check_same_outputs(EXPERIMENTS, 8 if quick else 48, "cuda" if torch.cuda.is_available() else "cpu")
    write_table(out / "answers.csv", table)
    return {"answers": int(table["answers"].sum()), "equal_pct_least": float(table["equal_pct"].min()),
            "preemptions": int(table["preemptions"].sum())}  # fmt: skip


def _headline(folder: Path, quick: bool, deadline: float) -> dict[str, Any]:
    """The systems of the headline experiment one after another, the most telling first; then its report."""
    from harness.report import report_sweep

    settings = QUICK if quick else FULL
    done = {}
    for system in ROWS[:2] if quick else ROWS:
        if time.perf_counter() > deadline:
            done[system] = "not started: no time left"
            continue
        with initialize_config_dir(str(EXPERIMENTS), version_base="1.3"):
            cfg = compose("config", overrides=[f"system={system}", *settings])
        row = run_job(cfg, folder / system, [f"system={system}", *settings])
        done[system] = row["error"] or f"{row['output_throughput']:.0f} output tokens/s"
        print(f"{system}: {done[system]}", flush=True)
    report_sweep(folder, baseline="static + contiguous(max_model_len)")
    failed = [system for system in ROWS if (folder / system / "traceback.txt").exists()]
    for path in [path for name in BIG for path in folder.glob(f"*/{name}")]:
        path.unlink()
    for path in folder.glob("**/*.svg"):
        path.unlink()
    if failed:
        raise RuntimeError(f"{', '.join(failed)} failed: see {folder}/{failed[0]}/traceback.txt")
    return done


if __name__ == "__main__":
    main()
