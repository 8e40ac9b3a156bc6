"""`benchmark.json`: a run as `vllm bench serve --save-result --save-detailed` writes one, for tools that read those.

By its definitions: times count from when a request was sent, and what failed has an error and no times.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.exports.folder import STEPS, config_of, requests_of
from harness.files import write_json
from harness.metrics.steps import INTEGERS, SPENT
from harness.metrics.token_times import read_token_times
from harness.schema.key import at

FILE = "benchmark.json"
PERCENTILES = (50, 90, 95, 99)
SAME_S = 1e-9  # a token came with a step if they are not further apart
NEITHER = "the gaps between tokens of {} of {} requests can't be told from the tables (itls is empty there): "


def write(folder: Path) -> list[str]:
    """Write `benchmark.json` of a run that kept its token times, or as far as the step table tells them.

    That of a server was written when it was measured, and knows what the server counted: it stays.
    """
    cfg, table = config_of(folder), requests_of(folder)
    if at(cfg, "device.kind") == "server" and (folder / FILE).exists():
        return []
    gaps = {number: np.diff(times) for number, times in (read_token_times(folder) or _by_steps(folder, table)).items()}
    facts = {"backend": "kvlab", "model_id": at(cfg, "model.name"), "tokenizer_id": None, "label": "kvlab",
             **_load(cfg)}  # fmt: skip
    write_json(folder / FILE, bench_result(table, gaps, facts))
    done = table[table["status"] == "finished"]
    untold = sum(int(number) not in gaps for number in done["id"])
    again = "run it with exports=[benchmark] from the start"
    return [f"{FILE}: {NEITHER.format(f'{untold:,}', f'{len(done):,}')}{again}"] if untold else []


def bench_result(table: pd.DataFrame, gaps: Mapping[int, np.ndarray], facts: Mapping[str, Any],
                 prompt_tokens: Mapping[int, int] | None = None) -> dict[str, Any]:  # fmt: skip
    """What stands in the file.

    Args:
        table: the request table; those that were never sent are left out.
        gaps: by request id, between its tokens, in s; of finished requests that it lacks they are not known.
        facts: who was measured (`backend`, `model_id`, `tokenizer_id`) and under which load (`request_rate`,
            `max_concurrency`).
        prompt_tokens: by request id, as a server counted them, where it did.
    """
    sent = table[table["lateness_s"].notna()]
    done = (sent["status"] == "finished").to_numpy()
    start = (sent["arrival_s"] + sent["lateness_s"]).to_numpy(np.float64)
    first, last = (sent[name].to_numpy(np.float64) for name in ("first_token_s", "last_token_s"))
    ids = sent["id"].tolist()
    outputs = np.where(done, sent["output_tokens"].fillna(0).astype(int), 0)
    counted = prompt_tokens or {}
    prompts = [counted.get(number, asked) for number, asked in zip(ids, sent["prompt_tokens"], strict=True)]
    ttfts, latency = np.where(done, first - start, 0.0), np.where(done, last - start, 0.0)
    known = all(number in gaps for number, ok in zip(ids, done, strict=True) if ok)
    itls = [gaps.get(number, np.zeros(0)) if ok else np.zeros(0) for number, ok in zip(ids, done, strict=True)]
    several = done & (outputs > 1)
    tpots = (latency - ttfts)[several] / (outputs[several] - 1)
    duration = float(np.nanmax(last) - np.min(start)) if done.any() else 0.0
    totals = {"total_input_tokens": int(np.array(prompts, dtype=np.int64)[done].sum()),
              "total_output_tokens": int(outputs.sum())}  # fmt: skip
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"), "endpoint_type": "openai", **facts, "num_prompts": len(table),
        "burstiness": 1.0, "duration": duration, "completed": int(done.sum()), "failed": int((~done).sum()), **totals,
        "request_throughput": _per(int(done.sum()), duration), "request_goodput": None,
        "output_throughput": _per(totals["total_output_tokens"], duration),
        "total_token_throughput": _per(sum(totals.values()), duration),
        "input_lens": [int(count) for count in prompts], "output_lens": outputs.tolist(), "ttfts": ttfts.tolist(),
        "itls": [of.tolist() for of in itls], "start_times": start.tolist(), "generated_texts": [""] * len(sent),
        "errors": ["" if ok else str(why) for ok, why in zip(done, _reasons(sent), strict=True)],
    }  # fmt: skip
    pooled = np.concatenate(itls) if itls and known else np.zeros(0)
    for name, values in {"ttft": ttfts[done], "tpot": tpots, "itl": pooled, "e2el": latency[done]}.items():
        result |= _spread(name, values * 1e3)
    return result


def _reasons(sent: pd.DataFrame) -> list[str]:
    """Of those that did not finish there is always one: readers take "" for a request that went well."""
    return [str(why) if pd.notna(why) else str(status)
            for why, status in zip(sent["reason"], sent["status"], strict=True)]  # fmt: skip


def _load(cfg: Mapping[str, Any]) -> dict[str, Any]:
    arrival, rate = at(cfg, "workload.arrival"), at(cfg, "workload.rate")
    closed = at(cfg, "workload.concurrency") if arrival == "closed_loop" else None
    return {"request_rate": rate if rate and arrival in ("poisson", "gamma") else "inf", "max_concurrency": closed}


def _by_steps(folder: Path, table: pd.DataFrame) -> dict[int, np.ndarray]:
    """Token times of the requests of which the step table tells them, in s.

    A sequence has at most one token from a step. So one that has as many tokens as steps ended between its first and
    its last has one from each of them; of a request that was preempted in between nothing is told.
    """
    if not (folder / STEPS).exists():
        return {}
    steps = pd.read_csv(folder / STEPS)
    steps = steps[(steps["produced"] > 0) & (steps.get("repeat", 1) == 1)]
    ends = (steps["start_s"] + steps[[f"{name}_ms" for name in INTEGERS[SPENT]]].sum(axis=1) / 1e3).to_numpy()
    found = {}
    done = table[(table["status"] == "finished") & (table["n"] == 1)]
    for number, first, last, tokens in zip(*(done[name].tolist() for name in (
            "id", "first_token_s", "last_token_s", "output_tokens")), strict=True):  # fmt: skip
        times = ends[np.searchsorted(ends, first - SAME_S) : np.searchsorted(ends, last + SAME_S)]
        if len(times) == tokens and abs(times[0] - first) < SAME_S and abs(times[-1] - last) < SAME_S:
            found[int(number)] = times
    return found


def _spread(name: str, values: np.ndarray) -> dict[str, float | None]:
    found = {"mean": values.mean(), "median": np.median(values), "std": values.std()} if len(values) else {}
    spread = {f"{key}_{name}_ms": float(found[key]) if found else None for key in ("mean", "median", "std")}
    return spread | {f"p{p}_{name}_ms": float(np.percentile(values, p)) if len(values) else None for p in PERCENTILES}


def _per(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None
