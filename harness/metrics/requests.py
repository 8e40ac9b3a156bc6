"""The request table: one row per request that arrived, or that was still to come when the replay ended."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from harness.metrics.recorder import Recorder
from schedulers.request import Request

COLUMNS = [
    "id", "status", "reason", "arrival_s", "lateness_s", "first_scheduled_s", "first_token_s", "last_token_s",
    "prompt_tokens", "output_tokens", "max_tokens", "queueing_ms", "ttft_ms", "tpot_ms", "e2e_ms",
    "normalized_latency_s", "preemptions", "recomputed_tokens", "cached_tokens",
]  # fmt: skip


def request_table(recorder: Recorder, requests: Iterable[Request]) -> pd.DataFrame:
    """One row per request, by id; what does not exist (a TPOT of a one-token answer) is empty, never 0.

    `status` is finished, rejected (with the reason) or unfinished. Times count from the scheduled arrival.
    """
    delivered = {request.id: (now, reason) for request, now, reason in recorder.delivered}
    rows = []
    for request in sorted(requests, key=lambda r: r.id):
        now, reason = delivered.get(request.id, (None, None))
        seq = recorder.sequences.get(request.id)
        arrival = request.arrival_ns if now is not None else None
        row: dict[str, object] = {
            "id": request.id,
            "status": "rejected" if reason else "finished" if seq and seq.done else "unfinished",
            "reason": reason,
            "arrival_s": _seconds(arrival),
            "lateness_s": _seconds(now - arrival) if now is not None and arrival is not None else None,
            "prompt_tokens": request.prompt_len,
            "max_tokens": request.max_tokens,
        }
        if seq is not None and arrival is not None:
            produced = seq.num_tokens - request.prompt_len
            first, last = _present(seq.first_token_ns), _present(seq.last_token_ns)
            row |= {
                "first_scheduled_s": _seconds(seq.first_scheduled_ns),
                "first_token_s": _seconds(first),
                "last_token_s": _seconds(last),
                "output_tokens": produced,
                "queueing_ms": (seq.first_scheduled_ns - arrival) / 1e6,
                "preemptions": seq.preemptions,
                "recomputed_tokens": seq.recomputed,
                "cached_tokens": seq.cached_tokens,
            }
            if first is not None and last is not None:
                row["ttft_ms"] = (first - arrival) / 1e6
                if seq.done:
                    row["e2e_ms"] = (last - arrival) / 1e6
                    row["normalized_latency_s"] = (last - arrival) / 1e9 / produced
                    if produced > 1:
                        row["tpot_ms"] = (last - first) / 1e6 / (produced - 1)
        rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS)
    whole = ["prompt_tokens", "output_tokens", "max_tokens", "preemptions", "recomputed_tokens", "cached_tokens"]
    table[whole] = table[whole].astype("Int64")
    floats = [name for name in COLUMNS if name.endswith(("_s", "_ms"))]
    table[floats] = table[floats].astype(np.float64)
    return table


def _present(ns: int) -> int | None:
    return ns if ns >= 0 else None


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
