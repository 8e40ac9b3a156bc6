"""`benchmark.json`: the run as `vllm bench serve --save-result --save-detailed` writes one, for tools that read those.

By its definitions: times count from when a request was sent, and what failed has an error and no times.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.files import write_json
from harness.live.about import About
from harness.live.log import ClientLog
from harness.live.settings import Server

PERCENTILES = (50, 90, 95, 99)


def write_bench_result(path: Path, table: pd.DataFrame, log: ClientLog, server: Server, about: About | None,
                       rate: float | None = None, concurrency: int | None = None) -> None:  # fmt: skip
    """
    Args:
        table: the request table; those that were never sent are left out.
        rate: requests per second that were offered; None = as fast as can be.
        concurrency: of a closed loop.
    """
    sent = table[table["lateness_s"].notna()]
    done = (sent["status"] == "finished").to_numpy()
    start = (sent["arrival_s"] + sent["lateness_s"]).to_numpy(np.float64)
    first, last = (sent[name].to_numpy(np.float64) for name in ("first_token_s", "last_token_s"))
    ids = sent["id"].tolist()
    outputs = np.where(done, sent["output_tokens"].fillna(0).astype(int), 0)
    prompts = [log.prompt_tokens.get(number, asked) for number, asked in zip(ids, sent["prompt_tokens"], strict=True)]
    ttfts, latency = np.where(done, first - start, 0.0), np.where(done, last - start, 0.0)
    gaps = [np.diff(np.array(log.times[number] if ok else (), dtype=np.int64)) / 1e9
            for number, ok in zip(ids, done, strict=True)]  # fmt: skip
    several = done & (outputs > 1)
    tpots = (latency - ttfts)[several] / (outputs[several] - 1)
    duration = float(np.nanmax(last) - np.min(start)) if done.any() else 0.0
    totals = {"total_input_tokens": int(np.array(prompts, dtype=np.int64)[done].sum()),
              "total_output_tokens": int(outputs.sum())}  # fmt: skip
    tokens = sum(totals.values())
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"), "endpoint_type": "openai", "backend": "openai", "label": "kvlab",
        "model_id": about.model if about else server.model, "tokenizer_id": server.tokenizer, "num_prompts": len(table),
        "request_rate": rate if rate else "inf", "burstiness": 1.0, "max_concurrency": concurrency,
        "duration": duration, "completed": int(done.sum()), "failed": int((~done).sum()), **totals,
        "request_throughput": _per(int(done.sum()), duration), "request_goodput": None,
        "output_throughput": _per(totals["total_output_tokens"], duration),
        "total_token_throughput": _per(tokens, duration),
        "input_lens": [int(count) for count in prompts], "output_lens": outputs.tolist(), "ttfts": ttfts.tolist(),
        "itls": [gap.tolist() for gap in gaps], "start_times": start.tolist(), "generated_texts": [""] * len(sent),
        "errors": ["" if ok else str(why) for ok, why in zip(done, sent["reason"].fillna(""), strict=True)],
    }  # fmt: skip
    kinds = {"ttft": ttfts[done], "tpot": tpots, "itl": np.concatenate(gaps) if gaps else np.zeros(0),
             "e2el": latency[done]}  # fmt: skip
    for name, values in kinds.items():
        result |= _spread(name, values * 1e3)
    write_json(path, result)


def _spread(name: str, values: np.ndarray) -> dict[str, float | None]:
    found = {"mean": values.mean(), "median": np.median(values), "std": values.std()} if len(values) else {}
    spread = {f"{key}_{name}_ms": float(found[key]) if found else None for key in ("mean", "median", "std")}
    return spread | {f"p{p}_{name}_ms": float(np.percentile(values, p)) if len(values) else None for p in PERCENTILES}


def _per(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None
