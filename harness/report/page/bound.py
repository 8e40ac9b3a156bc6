"""What limited a run, interval by interval: why no more requests were in the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from harness.report.sweep import NARROW, ROWS, SPENT_MS, Clockwork

CAUSES = {
    "slots": "KV memory: the next request was refused room",
    "sequences": "max_num_seqs: the batch was full",
    "tokens": "max_num_batched_tokens: the step's tokens were spent",
    "closed": "the batch was closed, or the scheduler held the next request back",
    "compute": "nobody waited: the steps themselves took the time",
    "arrivals": "nothing to do: the next request had not arrived",
}
WANTED = [
    "num_seqs",
    "decode_seqs",
    "idle_lanes",
    "prefill_tokens",
    "waiting",
    "head_blocked",
    "repeat",
    "start_s",
    *SPENT_MS,
]


def cause_of(steps: pd.DataFrame, max_num_seqs: int, max_num_batched_tokens: int) -> np.ndarray:
    """The index of `CAUSES` for each row of a step table; the first that applies."""
    waits, empty = steps["waiting"].to_numpy() > 0, steps["num_seqs"].to_numpy() == 0
    prompts = steps["prefill_tokens"].to_numpy()
    lanes = steps["num_seqs"].to_numpy() + steps["idle_lanes"].to_numpy()
    spent = (prompts > 0) & (prompts + steps["decode_seqs"].to_numpy() >= 0.75 * max_num_batched_tokens)
    conditions = [
        steps["head_blocked"].to_numpy() > 0,
        waits & (lanes >= max_num_seqs),
        waits & spent,
        waits,
        ~empty,
    ]
    return np.select(conditions, range(5), 5)


def bound_over_time(path: Path, max_num_seqs: int, max_num_batched_tokens: int, bins: int = 200
                    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(edges in s ``[bins + 1]``, share of each bin's time in which each cause was the limit ``[bins, len(CAUSES)]``).

    Args:
        path: a `steps.csv`.
    """
    causes, clock = [], Clockwork()
    for steps in pd.read_csv(path, usecols=WANTED.__contains__, dtype=NARROW, chunksize=ROWS):
        causes.append(cause_of(steps, max_num_seqs, max_num_batched_tokens))
        clock.add(steps)
    cause, ends = np.concatenate(causes), np.concatenate([[0.0], np.cumsum(clock.spent())])
    edges = np.linspace(0, ends[-1], bins + 1)
    shares = np.empty((bins, len(CAUSES)))
    for i in range(len(CAUSES)):
        area = np.concatenate([[0.0], np.cumsum((cause == i) * np.diff(ends))])
        shares[:, i] = np.diff(np.interp(edges, ends, area))
    return edges, shares / max(edges[1] - edges[0], 1e-12)
