"""`vllm bench serve` and `device=server` against the same server, interleaved: rounds.py URL MODEL BENCH OUT [ROUNDS].

BENCH is how the other client is called (`vllm bench serve`, quoted). In each round and case theirs draws the lengths
and the arrivals, and ours replays what theirs has recorded, so both ask the same at the same pace. Both results are
read from a file as `vllm bench serve --save-detailed` writes it, by its definitions (times from a request's sending).
Writes OUT/rounds.csv (a row per run) and prints medians and spread.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd

CASES = {"1 a second": ["--request-rate", "1", "--num-prompts", "20"],
         "4 a second": ["--request-rate", "4", "--num-prompts", "60"],
         "closed loop, 16": ["--max-concurrency", "16", "--num-prompts", "64"]}  # fmt: skip
LENGTHS = ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos",
           "--temperature", "0", "--save-result", "--save-detailed", "--disable-tqdm"]  # fmt: skip
SHOWN = {"median_ttft_ms": "TTFT, ms", "median_tpot_ms": "TPOT, ms", "median_itl_ms": "ITL, ms",
         "p99_itl_ms": "ITL p99, ms", "output_throughput": "output tokens/s"}  # fmt: skip


def main(url: str, model: str, bench: str, out: Path, rounds: int = 3) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for again in range(rounds):
        for at, (name, arrivals) in enumerate(CASES.items()):
            file = out / f"theirs_{again}_{at}.json"
            run([*shlex.split(bench), "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
                 "--model", model, *LENGTHS, *arrivals, "--seed", str(again), "--result-dir", str(out),
                 "--result-filename", file.name])  # fmt: skip
            folder = out / f"ours_{again}_{at}"
            closed = ["workload.arrival=closed_loop", "workload.concurrency=16"] if "closed" in name else []
            run([sys.executable, "-m", "harness", "device=server", f"server.url={url}", "workload=trace",
                 f"workload.path={file}", *closed, f"hydra.run.dir={folder}", "max_model_len=1024",
                 f"seed={again}"])  # fmt: skip
            for who, path in (("vllm bench serve", file), ("device=server", folder / "benchmark.json")):
                result = json.loads(path.read_text())
                rows.append({"round": again, "case": name, "client": who, "completed": result["completed"],
                             **{key: result[key] for key in SHOWN}})  # fmt: skip
    table = pd.DataFrame(rows)
    table.to_csv(out / "rounds.csv", index=False)
    print(report(table))


def report(table: pd.DataFrame) -> str:
    """A Markdown table: medians over rounds, (least to most), and how far ours is from theirs."""
    lines = ["| case | number | `vllm bench serve` | `device=server` | ours ÷ theirs |", "|---|---|---|---|---|"]
    for case, rows in table.groupby("case", sort=False):
        for key, told in SHOWN.items():
            theirs, ours = (rows.loc[rows["client"] == who, key] for who in ("vllm bench serve", "device=server"))
            cells = [f"{one.median():.4g} ({one.min():.4g} – {one.max():.4g})" for one in (theirs, ours)]
            lines.append(
                f"| {case} | {told} | {cells[0]} | {cells[1]} | {100 * ours.median() / theirs.median() - 100:+.1f} % |"
            )
    return "\n".join(lines)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]).absolute(), int((sys.argv[5:] or ["3"])[0]))
