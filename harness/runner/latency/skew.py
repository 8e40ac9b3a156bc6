"""What unequal contexts of the decodes in a step add to its attention, against decodes of their mean."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from harness.errors import HarnessError
from harness.runner.latency.table_files import read_table

AXES = ("n", "skew_rate", "kv_big", "kp")
LABELS = [f"{axis}_label" for axis in AXES]


class Spread(NamedTuple):
    """How unequal the contexts of a step's decodes are: longest and shortest history, their sum and number."""

    longest: int
    shortest: int
    total: int
    lanes: int

    @property
    def rate(self) -> float:
        """Where the mean lies between shortest and longest: with two lengths only, the share of the long ones."""
        return (self.total / self.lanes - self.shortest) / (self.longest - self.shortest)


class Skew(NamedTuple):
    """What unequal contexts cost: `alpha` of the way from the time at their mean to the time at their maximum.

    Attributes:
        bins, labels: by axis (n, skew_rate, kv_big, kp): upper bounds and what the buckets are called.
        alphas: by (prefill chunk, labels of the four axes).
        default: alpha where no bucket was measured, as for prefill chunks between the measured ones.
    """

    bins: Mapping[str, Sequence[float]]
    labels: Mapping[str, Sequence[str]]
    alphas: Mapping[tuple[Any, ...], float]
    default: float

    def alpha(self, chunk: float, history: float, spread: Spread) -> float:
        values = {"n": spread.lanes, "skew_rate": spread.rate, "kv_big": spread.longest, "kp": history}
        return self.alphas.get((chunk, *(self._label(axis, value) for axis, value in values.items())), self.default)

    def _label(self, axis: str, value: float) -> str:
        labels = self.labels[axis]
        return labels[min(max(bisect_left(self.bins[axis], value) - 1, 0), len(labels) - 1)]


def skew_enabled(meta: Mapping[str, Any]) -> bool:
    """Whether the tables' `meta.yaml` wants the correction."""
    return bool((meta.get("skew_fit") or {}).get("enabled"))


def load_skew(folder: Path, meta: Mapping[str, Any], tensor_parallel: int = 1) -> Skew:
    """The correction from `skew_fit.csv`. What `meta.yaml` leaves out of it (as where it turns the correction off) is
    read off the names of the buckets, and the default is the mean of all, weighted by their samples.

    Raises:
        HarnessError: no such file or column, or a bucket whose name can't be read.
    """
    table = read_table(folder, "skew_fit", ["pc", *LABELS, "alpha", "n_samples"], texts=LABELS)
    fit = meta.get("skew_fit") or {}
    axes, of = fit.get("bucket_axes") or {}, (fit.get("per_tp") or {}).get(tensor_parallel) or {}
    bins, labels = {}, {}
    for axis, column in zip(AXES, LABELS, strict=True):
        if f"{axis}_bins" in axes and f"{axis}_labels" in axes:
            bins[axis], labels[axis] = axes[f"{axis}_bins"], axes[f"{axis}_labels"]
        else:
            bins[axis], labels[axis] = _axis(table[column], folder)
    default = of.get("alpha_default")
    if default is None:
        default = float((table["alpha"] * table["n_samples"]).sum() / table["n_samples"].sum())
    keys = zip(table["pc"], *(table[column] for column in LABELS), strict=True)
    return Skew(bins, labels, dict(zip(keys, table["alpha"], strict=True)), default)


def _axis(names: pd.Series, folder: Path) -> tuple[list[float], list[str]]:
    """(bounds, labels) of the buckets of an axis, ascending; a bucket ends at the number in its name: `n<=8`, `kp=0`,
    `kvB<=4k`, `sr<=15%`, and `n>256` is what is left."""
    ends = {}
    for name in names.unique():
        found = re.fullmatch(r"\w+(<=|=|>)(\d+)(k|%)?", str(name))
        if not found:
            raise HarnessError(f"{folder}/skew_fit.csv: the bucket {name!r} is none of the kind n<=8, kp=0 or kvB>16k")
        sign, number, unit = found.groups()
        end = int(number) * {"k": 1024, "%": 0.01, None: 1}[unit]
        ends[str(name)] = float("inf") if sign == ">" else end
    labels = sorted(ends, key=lambda name: ends[name])
    return [-1.0, *(ends[label] for label in labels)], labels
