"""How steady a machine was while its steps were timed: what of a model's error lies within a run, what between runs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.runner.latency.fitted import FittedLatency

PIECES = 10  # of a run, over time
FEWEST = 40  # steps in a piece, so that it is the machine that is seen and not one step


def drift(latency: FittedLatency, steps: pd.DataFrame, held_back: np.ndarray) -> pd.DataFrame:
    """A row for each piece of each run, in the order in which they ran. A busy machine changes its pace within a run,
    too: so errors are told with the pace of a run taken off, and with that of each piece.

    Args:
        steps: of a step table, with `run` (its name) and `begun` (when it did, s).
        held_back: ``[n]``, those that were not fitted.

    Returns:
        `run`; `time_s` since the first run began; `steps`; `slower_pct`, how much more time the steps took than the
        model says; `piece_pct`, the median |error| of its steps that were not fitted when the pace of the piece (the
        median over its fitted ones) is taken off; and of the whole run `run_slower_pct` and `within_pct`, the same.
    """
    spent = (steps["schedule_ms"] + steps["execute_ms"] + steps["complete_ms"]).to_numpy() * 1e6
    told = latency.predict(steps) + latency.overhead_ns
    first, rows = steps["begun"].min(), []
    for name in steps["run"].unique():
        at = np.flatnonzero(steps["run"] == name)
        slower, within = _pace(spent[at], told[at], held_back[at])
        begun = steps["begun"].iloc[at[0]] - first
        rows += [
            {"run": name, "time_s": begun + steps["start_s"].iloc[part].mean(), "steps": len(part),
             "slower_pct": 100 * (spent[part].sum() / told[part].sum() - 1),
             "piece_pct": _pace(spent[part], told[part], held_back[part])[1], "run_slower_pct": slower,
             "within_pct": within}
            for part in np.array_split(at, max(min(PIECES, len(at) // FEWEST), 1))
        ]  # fmt: skip
    return pd.DataFrame(rows)


def _pace(spent: np.ndarray, told: np.ndarray, held_back: np.ndarray) -> tuple[float, float]:
    """(how much slower than the model, median over the fitted steps; median |error| of the others with that taken off),
    in percent; nan where there are none."""
    if held_back.all() or not held_back.any():
        return np.nan, np.nan
    factor = float(np.median(spent[~held_back] / told[~held_back]))
    error = np.abs(told[held_back] * factor / spent[held_back] - 1)
    return 100 * (factor - 1), 100 * float(np.median(error))


def spread_of(runs: pd.DataFrame) -> dict[str, float]:
    """What the summary says of `drift`: the median error within a run, within a piece, and how far runs were apart."""
    each = runs.drop_duplicates("run")
    return {
        "error_within_run_pct": float(each["within_pct"].median()),
        "error_within_piece_pct": float(runs["piece_pct"].median()),
        "drift_fastest_pct": float(each["run_slower_pct"].min()),
        "drift_slowest_pct": float(each["run_slower_pct"].max()),
    }


def unlike(steps: pd.DataFrame) -> float | None:
    """How much two decode steps with the same lanes differ, one after the other in a run: median, in percent, over √2.
    A model that knows the work and nothing of the moment misses a step by as much at best.

    Args:
        steps: as in `drift`; None where no two are alike.
    """
    spent = (steps["schedule_ms"] + steps["execute_ms"] + steps["complete_ms"]).to_numpy()
    alike = steps[["run", "num_seqs", "idle_lanes", "prefill_tokens"]]
    same = (alike == alike.shift()).all(axis=1).to_numpy() & (steps["prefill_tokens"] == 0).to_numpy()
    ratios = spent[1:][same[1:]] / spent[:-1][same[1:]]
    return 100 * float(np.median(np.abs(ratios - 1))) / 2**0.5 if len(ratios) else None
