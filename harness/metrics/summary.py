"""One replay in one flat row: the definitions of vLLM's `bench serve`, and the books averaged over time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from allocators.base import Books
from harness.metrics.gaps import Gaps
from harness.metrics.recorder import Recorder
from harness.metrics.steps import Totals

HELD = ("used", "finished_held", "reserved", "over_reserved", "rounding")
NOT_HELD = ("cached", "fragmented", "short", "free")
PERCENTILES = (50, 90, 95, 99)
OWN_LIMITS = {"ttft": "ttft_slo_ms", "tpot": "tpot_slo_ms", "e2e": "deadline_ms"}  # latency → limit of a request


def summarize(recorder: Recorder, table: pd.DataFrame, capacity: int) -> dict[str, Any]:
    """The numbers of a replay; None if there is nothing to measure.

    `saturated_...`: of the span in which requests wait for memory. `steady_...`: of the span in which requests wait for
    any reason (see `StepLog`); None if fewer requests finish in it than run at once, since that is only ramp and drain.

    Args:
        recorder: the replay's recorder.
        table: its `request_table`.
        capacity: slots in the KV pool.
    """
    recorder.steps.flush()
    return (
        _served(table) | _pace(recorder, table) | _latencies(table, recorder.gaps) | _engine(recorder, table, capacity)
    )


def client_side(table: pd.DataFrame, gaps: Gaps) -> dict[str, Any]:
    """The numbers that a client can measure: `summarize` without those that only the engine knows.

    Args:
        table: a `request_table`.
        gaps: gaps between tokens.
    """
    return _served(table) | _latencies(table, gaps) | {"normalized_latency_mean_s": _normalized(table)}


def _served(table: pd.DataFrame) -> dict[str, Any]:
    finished = table["status"] == "finished"
    served = int(finished.sum())
    prompts = int(table["prompt_tokens"][finished].sum())
    produced = int(table["output_tokens"].sum())
    duration = _number(table["last_token_s"].max())
    return {
        "injected": int(table["lateness_s"].notna().sum()),
        "finished": served,
        "rejected": int((table["status"] == "rejected").sum()),
        "unfinished": int((table["status"] == "unfinished").sum()),
        "duration_s": duration,
        "request_throughput": _ratio(served, duration),
        "output_throughput": _ratio(produced, duration),
        "total_token_throughput": _ratio(produced + prompts, duration),
    }


def _pace(recorder: Recorder, table: pd.DataFrame) -> dict[str, Any]:
    saturated, steady, steady_s = recorder.steps.saturated, recorder.steps.steady, _steady_s(recorder, table)
    return {
        "saturated_output_throughput": _ratio(saturated.sum("produced"), saturated.ns / 1e9),
        "steady_output_throughput": _ratio(steady.produced, steady_s),
        "steady_request_throughput": _ratio(steady.finished, steady_s),
    }


def _steady_s(recorder: Recorder, table: pd.DataFrame) -> float | None:
    """Length of the steady span in s; None if it is too short to count."""
    steady = recorder.steps.steady
    outputs = _number(table["n"].mean()) or 1.0  # per request
    turned_over = steady.finished * outputs >= (_ratio(steady.lanes_ns, steady.ns) or math.inf)
    return steady.ns / 1e9 if turned_over else None


def _latencies(table: pd.DataFrame, gaps: Gaps) -> dict[str, Any]:
    row: dict[str, Any] = {"lateness_max_s": _number(table["lateness_s"].max())}
    for name in ("ttft", "tpot", "e2e", "queueing"):
        row |= {f"{name}_{key}_ms": value for key, value in _spread(table[f"{name}_ms"]).items()}
    row["tpot_total_ms"] = _tpot_total(table)
    row |= {f"itl_{key}_ms": value for key, value in gaps.summary(PERCENTILES).items()}
    row["itl_max_ms"] = gaps.longest / 1e6 if gaps.counts else None
    return row


def _tpot_total(table: pd.DataFrame) -> float | None:
    """Sum of first-to-last-token times over the sum of tokens after the first: TPOT weighted by output length."""
    there = table[table["tpot_ms"].notna()]
    further = there["output_tokens"] // there["n"].fillna(1).clip(lower=1) - 1
    return _ratio(float((there["tpot_ms"] * further).sum()), float(further.sum()))


def _normalized(table: pd.DataFrame) -> float | None:
    return _number(table["normalized_latency_s"][table["status"] == "finished"].mean())


def _engine(recorder: Recorder, table: pd.DataFrame, capacity: int) -> dict[str, Any]:
    """Numbers of the steps and of the pool."""
    whole, saturated, steady = recorder.steps.whole, recorder.steps.saturated, recorder.steps.steady
    prompts = int(table["prompt_tokens"][table["status"] == "finished"].sum())
    lanes = whole.sum("num_seqs") + whole.sum("idle_lanes")
    computed = whole.sum("prefill_tokens") + whole.sum("decode_seqs")
    recomputed = int(table["recomputed_tokens"].sum())
    siblings = int((table["n"] - 1)[table["first_token_s"].notna()].sum())  # first tokens from the lane of the prompt
    busy_ns = whole.ns - whole.sum("idle")
    steady_s = _steady_s(recorder, table)
    row: dict[str, Any] = {}
    row["waiting_age_max_s"], row["waiting_age_mean_s"] = waiting_age(table)
    row["normalized_latency_mean_s"] = _normalized(table)
    steps = whole.steps
    row |= {
        "steps": steps,
        "mean_batch_size": _ratio(_time(whole, "num_seqs"), busy_ns),
        "saturated_mean_batch_size": saturated.mean("num_seqs"),
        "steady_mean_batch_size": _ratio(steady.lanes_ns / 1e9, steady_s),
        "useful_lane_pct": _percent(whole.sum("produced") - siblings, lanes),
        "busy_fraction": _ratio(whole.sum("execute"), whole.ns),
        "schedule_ms_per_step": _ratio(whole.sum("schedule") / 1e6, steps),
        "execute_ms_per_step": _ratio(whole.sum("execute") / 1e6, steps),
        "complete_ms_per_step": _ratio(whole.sum("complete") / 1e6, steps),
        "preemptions": int(table["preemptions"].sum()),
        "recomputed_tokens": recomputed,
        "recomputed_pct": _percent(recomputed, computed),
        "cached_pct": _percent(int(table["cached_tokens"].sum()), prompts),
        "saturated_s": saturated.ns / 1e9 if saturated.ns else None,
        "steady_s": steady_s,
    }
    for prefix, totals in (("", whole), ("saturated_", saturated)):
        for column in (*Books._fields, *recorder.steps.more):
            mean = totals.mean(column)
            row[f"{prefix}kv_{column}_pct"] = None if mean is None else 100 * mean / capacity
        spare = [totals.mean(column) for column in NOT_HELD]
        row[f"{prefix}kv_held_pct"] = None if None in spare else 100 - 100 * sum(filter(None, spare)) / capacity
        saved = totals.mean("saved")
        held = saved and saved + sum(totals.mean(column) or 0.0 for column in HELD)
        row[f"{prefix}kv_saved_pct"] = 100 * saved / held if saved and held else saved
    row["copied_slots"], row["swapped_slots"] = whole.sum("copied"), whole.sum("swapped")
    used = row["saturated_kv_used_pct"]
    row["saturated_waste_pct"] = None if used is None else 100 - used
    return row


def waiting_age(table: pd.DataFrame) -> tuple[float | None, float | None]:
    """Age of the oldest request that has not been scheduled yet: (maximum, mean over time) in s.

    A request is the oldest from its arrival, or from when all earlier arrivals are scheduled, until it is scheduled
    itself. The age is 0 while no request waits. A request that is never scheduled waits until the last token of the
    replay. Waits after a preemption do not count here: they are gaps between two tokens (`itl_max_ms`).
    """
    end = table["last_token_s"].max()
    there = table[table["arrival_s"].notna() & (table["status"] != "rejected")]
    if pd.isna(end) or not end or there.empty:
        return None, None
    there = there.sort_values(["arrival_s", "id"])
    arrival = there["arrival_s"].to_numpy(np.float64)
    until = np.maximum(there["first_scheduled_s"].fillna(end).to_numpy(np.float64), arrival)
    since = np.maximum(np.concatenate([[0.0], np.maximum.accumulate(until)[:-1]]), arrival)
    oldest = until > since
    area = ((until - arrival) ** 2 - (since - arrival) ** 2)[oldest].sum() / 2
    return float((until - arrival).max()), float(area / end)


def goodput(table: pd.DataFrame, slo_ms: dict[str, float], duration_s: float | None) -> float | None:
    """Requests per second that met every limit: the request's own, else that of `slo_ms` (ttft, tpot, e2e).

    One-token outputs have no TPOT, so they meet any limit of it.
    """
    met = table["status"] == "finished"
    for name, own in OWN_LIMITS.items():
        common = slo_ms.get(name, np.inf)
        limit = table[own].fillna(common) if own in table else common
        met &= table[f"{name}_ms"].fillna(0) <= limit
    return _ratio(int(met.sum()), duration_s)


def describe_limits(table: pd.DataFrame, slo_ms: dict[str, float]) -> str:
    """``TTFT ≤ 2000 ms and the limits of its own``: the limits that goodput counts by, in words."""
    common = ", ".join(f"{name.upper()} ≤ {limit:g} ms" for name, limit in slo_ms.items())
    own = "the limits of its own" if any(name in table for name in OWN_LIMITS.values()) else ""
    return " and ".join(text for text in (common, own) if text)


def _spread(values: pd.Series) -> dict[str, float | None]:
    """Mean and percentiles (linear, as in numpy and vLLM) of the values that exist."""
    there = values.dropna()
    found = there.quantile([p / 100 for p in PERCENTILES]) if len(there) else [None] * len(PERCENTILES)
    spread = {"mean": _number(there.mean())}
    return spread | {f"p{p}": _number(value) for p, value in zip(PERCENTILES, found, strict=True)}


def _time(totals: Totals, name: str) -> float:
    return (totals.mean(name) or 0.0) * totals.ns


def _number(value: Any) -> float | None:
    return float(value) if pd.notna(value) else None


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def _percent(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None
