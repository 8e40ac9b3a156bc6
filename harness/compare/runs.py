"""The finished runs of a folder, as they are compared: grouped by what was measured, told apart by their seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.exports.folder import config_of
from harness.files import records
from harness.naming.identity import flat, identity
from harness.report.sweep import Sweep
from harness.sweeps.resume import kind_of

OF_THE_MOMENT = ("load_average", "setup_s", "dirty")  # of an environment, what says nothing of another run


@dataclass(frozen=True)
class Group:
    """Repeats of one measurement.

    Attributes:
        folder: which they are in, as it was typed.
        label: what a report calls them.
        rows: the row of each one that finished.
        places: its folder, of each of `rows`.
        missing: how many did not finish.
    """

    folder: str
    label: str
    rows: list[dict[str, Any]]
    places: list[Path]
    missing: int

    @property
    def name(self) -> str:
        return f"{self.folder}: {self.label}"

    def values(self, metric: str) -> dict[Any, float]:
        """By seed; where several have one seed by their folder, so that they pair with nobody else's."""
        seeds = [row["seed"] for row in self.rows]
        keys = seeds if len(set(seeds)) == len(seeds) else self.places
        return {key: float(row[metric]) for key, row in zip(keys, self.rows, strict=True)
                if metric in row and pd.notna(row[metric])}  # fmt: skip

    def fact(self, name: str) -> Any:
        """What the first of them says; None where it says nothing."""
        value = self.rows[0].get(name)
        return value if pd.notna(value) else None

    def config(self) -> Mapping[str, Any]:
        return identity(config_of(self.places[0]))

    def environment(self) -> Mapping[str, Any]:
        try:
            values = json.loads((self.places[0] / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {key: value for key, value in flat(values).items() if key not in OF_THE_MOMENT}

    def prompts(self, seed: int) -> np.ndarray | None:
        """The lengths of the prompts of the run of a seed, as they came; None where no table tells them."""
        for row, place in zip(self.rows, self.places, strict=True):
            if row["seed"] == seed and (place / "requests.csv").exists():
                return pd.read_csv(place / "requests.csv", usecols=["prompt_tokens"])["prompt_tokens"].to_numpy()
        return None


def read_groups(folder: str) -> list[Group]:
    """The groups of a run or a sweep, in order.

    Raises:
        HarnessError: it is neither, or nothing of it finished.
    """
    path = Path(folder)
    kind_of(path)
    sweep = Sweep.read(path)
    rows = {row["dir"]: row for row in records(sweep.table)}
    found = []
    for group in records(sweep.groups):
        if dirs := group["dirs"]:
            same = sweep.table[
                (sweep.table["identity"] == group["identity"]) & (sweep.table["system"] == group["system"])
            ]
            missing = int((same["status"] != "finished").sum())
            found.append(Group(folder, group["label"], [rows[name] for name in dirs], [path / name for name in dirs],
                               missing))  # fmt: skip
    if not found:
        raise HarnessError(f"{folder}: none of its jobs finished: there is nothing to compare")
    return found
