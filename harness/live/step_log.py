"""Steps that an engine logged itself: JSON lines with the composition of each step's batch and its time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.errors import HarnessError
from harness.validate.files import read_lines

NEEDED = ("num_seqs", "context_tokens", "prefill_tokens", "execute_ms")
ABSENT = {"prefill_attention": None, "idle_lanes": 0, "schedule_ms": 0.0, "complete_ms": 0.0}


def read_step_log(path: str) -> pd.DataFrame:
    """A step table to fit, from lines such as `{"num_seqs": 8, "context_tokens": 4096, "prefill_tokens": 0,
    "execute_ms": 12.5}`: sequences in the step; tokens they have stored after it; new tokens of those that have more
    than one; its time. Without `prefill_attention` (pairs of a prompt token and a token it attends to) the prefill is
    taken to be one prompt without a cached prefix; `idle_lanes`, `schedule_ms` and `complete_ms` default to 0. Other
    fields are ignored.

    Raises:
        HarnessError: no such file, or an invalid line; the message names the line and what is wrong with it.
    """
    rows = []
    for number, row in read_lines(Path(path), "beside.steps"):
        for name in NEEDED:
            value = row.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
                raise HarnessError(f"{path}, line {number}: {name} must be a number, 0 or more, and is {value!r}")
        prompts = row["prefill_tokens"]
        row["prefill_attention"] = row.get("prefill_attention", prompts * (prompts + 1) // 2)
        rows.append({**ABSENT, **row})
    if not rows:
        raise HarnessError(f"beside.steps={path}: no line in it")
    table = pd.DataFrame(rows)[[*NEEDED, *ABSENT]]
    return table[(table["num_seqs"] > 0) & (table["execute_ms"] > 0)].assign(
        start_s=lambda steps: steps["execute_ms"].cumsum() / 1e3
    )
