"""An engine's steps as a client sees them: the tokens of one step arrive together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from harness.errors import HarnessError

TOGETHER = 0.5  # of the median gap between a request's tokens: tokens that arrive closer together are of one step


def client_steps(folder: Path) -> pd.DataFrame:
    """The steps of a job of `device=server`, in the columns of a step table that a latency model is fitted to.

    A new step begins with a token of a request that already has one in the current step, or after a pause. A step's
    time is the time since the tokens of the step before, provided that one request has a token in both; otherwise the
    engine may have been idle. The step of a first token is taken to have computed the request's prompt, less the tokens
    that the server reported as cached; a prompt that took several steps counts entirely in the last of them.

    Raises:
        HarnessError: no answer has two pieces, so no step can be seen.
    """
    pieces = pd.read_parquet(folder / "pieces.parquet").sort_values("time_s", kind="stable")
    requests = pd.read_csv(folder / "requests.csv").set_index("id")
    request, times = pieces["request"].to_numpy(), pieces["time_s"].to_numpy()
    number = pieces.groupby("request").cumcount().to_numpy()  # of the token in its answer
    gaps = np.diff(pieces.sort_values(["request", "time_s"])["time_s"].to_numpy())
    inside = np.diff(np.sort(request)) == 0
    if not inside.any():
        raise HarnessError(f"{folder}: no answer has two pieces, so there are no steps to see")
    steps = _together(request, times, TOGETHER * float(np.median(gaps[inside])))
    prompt = requests["prompt_tokens"].reindex(request).to_numpy(np.int64)
    cached = requests["cached_tokens"].fillna(0).reindex(request).to_numpy(np.int64)
    first = number == 0
    computed = np.where(first, np.maximum(prompt - cached, 1), 0)
    table = pd.DataFrame({
        "step": steps, "num_seqs": 1, "context_tokens": prompt + number, "prefill_tokens": computed,
        "prefill_attention": np.where(first, computed * (2 * prompt - computed) // 2, 0),
    }).groupby("step").sum()  # fmt: skip
    begun = pd.Series(times).groupby(steps).first().to_numpy()
    seen = pd.Series(steps).groupby(request).shift().to_numpy()  # the step of the request's token before
    busy = pd.Series(seen == steps - 1).groupby(steps).any().to_numpy()
    table["execute_ms"] = np.concatenate([[np.nan], np.diff(begun)]) * 1e3
    table = table.assign(idle_lanes=0, schedule_ms=0.0, complete_ms=0.0, start_s=begun - table["execute_ms"] / 1e3)
    return table[busy & (table["execute_ms"] > 0)].reset_index(drop=True)


def _together(request: np.ndarray, times: np.ndarray, pause_s: float) -> np.ndarray:
    """``[n]``: the step of each token, tokens being in order of time."""
    steps, step, inside, last = np.empty(len(times), np.int64), 0, set[int](), times[0]
    for at, (who, when) in enumerate(zip(request.tolist(), times.tolist(), strict=True)):
        if who in inside or when - last > pause_s:
            step += 1
            inside.clear()
        inside.add(who)
        steps[at], last = step, when
    return steps
