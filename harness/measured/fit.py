"""Fits the constants of machines to the groups of rows in a split: `python -m harness.measured.fit`.

    python -m harness.measured.fit ROWS TABLES SPLIT [MOST]

prints the content of `harness/operators/machines.yaml`. All groups of an engine are fitted together, with equal weight
for each row; a GPU's constant is of the first of them. Starting from `machines.yaml`, one constant after the other is
set to the best value of its grid, in rounds, until none changes. The interval of each is that of the best value over
resampled rows, with the others fixed. Rows whose pool may fill are left out: the pool determines them, not these
constants. Of a group with more than MOST rows (60) every second, third, … is used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from harness.errors import HarnessError, answer
from harness.measured.predict import Predictor, busy
from harness.measured.settings import Row, read_row
from harness.operators.machines import Machine, whose

GRID: dict[str, np.ndarray] = {
    "fp8_share": np.round(np.arange(0.44, 0.661, 0.02), 2), "tokenize_us": np.arange(0.0, 20.1, 1.0),
    "host_ms": np.round(np.arange(0, 1.51, 0.1), 2), "eager_kernel_us": np.arange(0.0, 121.0, 5.0),
    "bare_kernel_us": np.arange(0.0, 121.0, 5.0),
    "client_ms": np.array([0.0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 60, 80, 100, 120, 140]),
}  # fmt: skip
BUSY, CUT, RESAMPLES, ROUNDS = 1.15, 1.0, 200, 4


def fit(predictor: Predictor, rows: pd.DataFrame, groups: list[Mapping[str, str]], start: Machine, most: int = 60
        ) -> tuple[Machine, dict[str, list[float]], int]:  # fmt: skip
    """(the best constants for some groups together, their values with intervals, the number of rows)."""
    chosen = [row for group in groups for row in _rows(predictor, rows, group, most)]
    known: dict[Machine, np.ndarray] = {}
    best, count = start, len(chosen)
    for _ in range(ROUNDS):
        before = best
        for name in GRID:
            errors = _profile(predictor, chosen, best, name, known)
            best = replace(best, **{name: float(GRID[name][errors.mean(axis=1).argmin()])})
        if best == before:
            break
    rng, found = np.random.default_rng(0), {}
    for name in GRID:
        errors = _profile(predictor, chosen, best, name, known)
        drawn = [GRID[name][errors[:, rng.integers(0, count, count)].mean(axis=1).argmin()] for _ in range(RESAMPLES)]
        found[name] = [getattr(best, name), *(float(edge) for edge in np.percentile(drawn, (5, 95)))]
    return best, found, count


def _rows(
    predictor: Predictor, rows: pd.DataFrame, group: Mapping[str, str], most: int
) -> list[tuple[Row, float, float]]:
    of_group = rows[(rows["model_path"] == group["model"]) & (rows["system"] == group["gpu"])
                    & (rows["backend"] == group["engine"])]  # fmt: skip
    if "precision" in group:
        of_group = of_group[of_group["precision"] == group["precision"]]
    chosen, every = [], -(-len(of_group) // most)
    for number, values in of_group[::every].iterrows():
        measured = values["silicon_ttft_ms"], values["silicon_tpot_ms"]
        try:
            row = read_row(int(str(number)), {str(key): value for key, value in values.items()})
            if predictor.predict(row).pool or busy(predictor, row, *measured) > BUSY:
                continue
        except HarnessError:
            continue
        chosen.append((row, *measured))
    if not chosen:
        raise HarnessError(f"no row of {dict(group)} can be fitted to")
    return chosen


def _profile(predictor: Predictor, rows: list[tuple[Row, float, float]], machine: Machine, name: str,
             known: dict[Machine, np.ndarray]) -> np.ndarray:  # fmt: skip
    """``[grid, rows]``: |ln| of TPOT plus that of TTFT, each clipped, along one constant; `known` caches results."""
    along = [replace(machine, **{name: float(value)}) for value in GRID[name]]
    for one in along:
        if one not in known:
            known[one] = np.array([_error(predictor, *row, one) for row in rows])
    return np.array([known[one] for one in along])


def _error(predictor: Predictor, row: Row, ttft_ms: float, tpot_ms: float, machine: Machine) -> float:
    predictor.machines[row.gpu, row.engine] = machine
    told = predictor.predict(row)
    return sum(min(abs(np.log(one / was)), CUT) for one, was in ((told.tpot_ms, tpot_ms), (told.ttft_ms, ttft_ms)))


def main(rows: str, tables: str, split: str, most: str = "60") -> None:
    """Print the constants as YAML."""
    table, told = pd.read_csv(rows), yaml.safe_load(Path(split).read_text(encoding="utf-8"))
    values: dict[str, dict[str, Any]] = {name: {} for name in GRID}
    for engine in dict.fromkeys(group["engine"] for group in told["fit"]):
        groups = [group for group in told["fit"] if group["engine"] == engine]
        start = Machine.of(groups[0]["gpu"], engine)
        best, found, count = fit(Predictor(Path(tables)), table, groups, start, int(most))
        for name, interval in found.items():
            values[name].setdefault(whose(name, groups[0]["gpu"], engine), interval)
        print(f"# {groups}: {count} rows, {best.said}", file=sys.stderr, flush=True)
    print(yaml.safe_dump(values, sort_keys=False, default_flow_style=None))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:5])
    except HarnessError as error:
        answer(error)
