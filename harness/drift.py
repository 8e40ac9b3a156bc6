"""How steady a machine was while its steps were timed: what of a model's error lies within a run, what between runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from harness.runner.latency.fitted import FittedLatency

PIECES = 10  # of a run, over time
FEWEST = 40  # steps in a piece, so that it is the machine that is seen and not one step


def drift(latency: FittedLatency, steps: pd.DataFrame, held_back: np.ndarray) -> pd.DataFrame:
    """A row for each piece of each run, in the order in which they ran.

    Args:
        steps: of a step table, with `run` (its name) and `begun` (when it did, s).
        held_back: ``[n]``, those that were not fitted.

    Returns:
        `run`; `time_s` since the first run began; `steps`; `slower_pct`, how much more time the steps took than the
        model says; and of the whole run `run_slower_pct`, the median over its fitted steps, and `within_pct`, the
        median |error| of its other steps when that is taken off.
    """
    spent = (steps["schedule_ms"] + steps["execute_ms"] + steps["complete_ms"]).to_numpy() * 1e6
    told = latency.predict(steps) + latency.overhead_ns
    first, rows = steps["begun"].min(), []
    for name in steps["run"].unique():
        at = np.flatnonzero(steps["run"] == name)
        fitted, other = at[~held_back[at]], at[held_back[at]]
        factor = float(np.median(spent[fitted] / told[fitted]))
        within = float(np.median(np.abs(told[other] * factor / spent[other] - 1))) if len(other) else np.nan
        begun = steps["begun"].iloc[at[0]] - first
        rows += [
            {"run": name, "time_s": begun + steps["start_s"].iloc[part].mean(), "steps": len(part),
             "slower_pct": 100 * (spent[part].sum() / told[part].sum() - 1), "run_slower_pct": 100 * (factor - 1),
             "within_pct": 100 * within}
            for part in np.array_split(at, max(min(PIECES, len(at) // FEWEST), 1))
        ]  # fmt: skip
    return pd.DataFrame(rows)


def spread_of(runs: pd.DataFrame) -> dict[str, float]:
    """What the summary says of `drift`: the median error within a run, and how far the runs were apart."""
    each = runs.drop_duplicates("run")
    return {
        "error_within_run_pct": float(each["within_pct"].median()),
        "drift_fastest_pct": float(each["run_slower_pct"].min()),
        "drift_slowest_pct": float(each["run_slower_pct"].max()),
    }


def draw_drift(runs: pd.DataFrame, path: Path) -> None:
    """`drift` over time, a colour for each run."""
    from harness.report.style import frame, new_figure

    fig = new_figure(10, 4.4)
    ax = fig.subplots()
    for name, rows in runs.groupby("run", sort=False):
        line = ax.plot(rows["time_s"], rows["slower_pct"], marker="o", markersize=3, linewidth=1)[0]
        ax.annotate(str(name).replace("_in_flight_", " in flight, pass "), (rows["time_s"].iloc[0],
                    rows["slower_pct"].max()), color=line.get_color(), fontsize=7, rotation=60, xytext=(0, 4),
                    textcoords="offset points")  # fmt: skip
    ax.axhline(0, color="#222222", linewidth=0.8)
    ax.set(xlabel="time, s", ylabel="steps took longer than the model says, %")
    ax.margins(y=0.25)
    ax.grid()
    spread = spread_of(runs)
    title = (f"Within a run the model misses a step by {spread['error_within_run_pct']:.1f} % (median); runs are "
             f"{spread['drift_fastest_pct']:+.0f} to {spread['drift_slowest_pct']:+.0f} % apart from it")  # fmt: skip
    caption = f"Each point: up to a tenth of a run, at least {FEWEST} steps where it has so many."
    frame(fig, title, "", caption).savefig(path)
