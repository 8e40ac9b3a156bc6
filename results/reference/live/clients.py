"""`vllm bench serve` and `device=server` against the same server, interleaved: clients.py URL MODEL BENCH OUT [ROUNDS].

BENCH is how the other client is called (`vllm bench serve`, quoted), MODEL the folder of the model, whose tokenizer it
needs. In each case theirs draws lengths and arrivals, of the same seed in each round, and ours replays what theirs
recorded in the first, so both ask the same at the same pace; who begins changes from round to round. The server must
keep no prefixes (`--no-enable-prefix-caching`), or later rounds have an easier time. Both results are read from a file
as `vllm bench serve --save-detailed` writes it, by its definitions: times from a request's sending. Throughput is
counted for both from the first request sent to the last token, since theirs also counts its wait for the first arrival.
Ours leaves `/metrics` alone here, as theirs does.

Writes OUT/clients.csv (a row per run) and prints medians and spread.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pandas as pd

CASES = {
    "1 a second": ("--request-rate", "1", 30), "4 a second": ("--request-rate", "4", 90),
    "closed loop, 16": ("--max-concurrency", "16", 128),
}  # fmt: skip
LENGTHS = ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos",
           "--temperature", "0", "--save-result", "--save-detailed", "--disable-tqdm"]  # fmt: skip
SHOWN = {"median_ttft_ms": "TTFT, ms", "median_tpot_ms": "TPOT, ms", "median_itl_ms": "ITL, ms",
         "mean_ttft_ms": "TTFT mean, ms", "mean_tpot_ms": "TPOT mean, ms", "p99_itl_ms": "ITL p99, ms",
         "throughput": "output tokens/s"}  # fmt: skip
THEIRS, OURS = "vllm bench serve", "device=server"


def interleaved(url: str, model: str, bench: str, out: Path, rounds: int, share: float = 1.0) -> pd.DataFrame:
    """A row for each round, case and client; results of each run are kept in `out`.

    Args:
        share: of the requests, for a trial.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for again in range(rounds):
        for at, (case, (*load, count)) in enumerate(CASES.items()):
            for client in (OURS, THEIRS) if again % 2 else (THEIRS, OURS):
                if client == OURS:
                    file = run_ours(url, out, at, again)
                else:
                    load_of = [*load, "--num-prompts", str(round(share * count))]
                    file = run_theirs(url, model, [*shlex.split(bench), *load_of], out, at, again)
                result = json.loads(file.read_text())
                row = {"round": again, "case": case, "client": client, "completed": result["completed"]}
                rows.append(row | {key: result.get(key) for key in SHOWN} | {"throughput": throughput(result)})
                print(rows[-1], file=sys.stderr, flush=True)
                pd.DataFrame(rows).to_csv(out / "clients.csv", index=False)
    return pd.DataFrame(rows)


def run_theirs(url: str, model: str, bench: list[str], out: Path, at: int, again: int) -> Path:
    file = out / f"theirs_{at}_{again}.json"
    call([*bench, *LENGTHS, "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions",
          "--model", model, "--served-model-name", served(url), "--seed", str(at),
          "--result-dir", str(out), "--result-filename", file.name])  # fmt: skip
    return file


def run_ours(url: str, out: Path, at: int, again: int) -> Path:
    folder = out / f"ours_{at}_{again}"
    closed = ["workload.arrival=closed_loop", "workload.concurrency=16"] if "closed" in list(CASES)[at] else []
    call([sys.executable, "-m", "harness", "device=server", f"server.url={url}", "workload=trace",
          f"workload.path={out}/theirs_{at}_0.json", *closed, f"hydra.run.dir={folder}", "max_model_len=1024",
          "server.metrics=null", f"seed={at}"])  # fmt: skip
    return folder / "benchmark.json"


def served(url: str) -> str:
    """What the server calls its model."""
    name: str = json.load(urllib.request.urlopen(f"{url}/v1/models", timeout=30))["data"][0]["id"]
    return name


def throughput(result: dict[str, Any]) -> float:
    """Output tokens a second, from the first request sent to the last token."""
    runs = zip(result["start_times"], result["ttfts"], result["itls"], strict=True)
    ends = [start + ttft + sum(itls) for start, ttft, itls in runs]
    return float(result["total_output_tokens"] / (max(ends) - min(result["start_times"])))


def report(table: pd.DataFrame) -> str:
    """A Markdown table: medians over rounds (least to most), and ours by theirs of the same round: the median (all)."""
    lines = [f"| case | number | `{THEIRS}` | `{OURS}` | ours by theirs, round by round |", "|---|---|---|---|---|"]
    for case, rows in table.groupby("case", sort=False):
        for key, told in SHOWN.items():
            by = rows.pivot(index="round", columns="client", values=key)
            cells = [f"{one.median():.4g} ({one.min():.4g} – {one.max():.4g})" for one in (by[THEIRS], by[OURS])]
            apart = 100 * by[OURS] / by[THEIRS] - 100
            each = ", ".join(f"{value:+.0f}" for value in apart)
            lines.append(f"| {case} | {told} | {cells[0]} | {cells[1]} | **{apart.median():+.1f} %** ({each}) |")
    return "\n".join(lines)


def call(command: list[str]) -> str:
    """What a command prints; if it fails, that ends this, too."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    print(report(interleaved(*sys.argv[1:4], Path(sys.argv[4]).absolute(), int((sys.argv[5:] or ["3"])[0]))))
