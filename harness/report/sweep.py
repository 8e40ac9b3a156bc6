"""The data of all figures: the comparison of a sweep, its groups of repeats, and the files of its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from allocators.base import LayoutBooks
from harness.metrics.spread import LEAST, half_of
from harness.metrics.steps import INTEGERS, SPENT
from harness.report.comparison import comparison, find_baseline, names, read_jobs, swept_columns
from harness.report.repeats import aggregate, insignificant, what_repeats
from harness.report.rows import sound

NARROW: Any = dict.fromkeys(INTEGERS[1 : SPENT.start], np.int64)  # bytes of a pool are more than 2**31
SPENT_MS = [f"{name}_ms" for name in INTEGERS[SPENT]]
ROWS = 200_000  # read at once


@dataclass
class Sweep:
    """A sweep (or a single job) as read from disk.

    Attributes:
        folder: where its jobs lie.
        table: the comparison, one row per job.
        baseline: label of the system that ratios are against.
    """

    folder: Path
    table: pd.DataFrame
    baseline: str = ""
    _steps: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, folder: Path, baseline: str | None = None) -> Sweep:
        """Read a folder. Raises HarnessError when there is no such baseline."""
        jobs = read_jobs(folder)
        try:
            comparison(jobs)
        except (TypeError, ValueError, KeyError, AttributeError):  # a summary with values that no job writes
            jobs = sound(jobs, lambda job: aggregate(comparison(job)))
        return cls(folder, comparison(jobs, baseline), find_baseline(jobs, baseline) if len(jobs) else "")

    def join(self, columns: pd.DataFrame) -> Sweep:
        """The same sweep with columns added to its comparison, by job folder."""
        table = self.table.copy()
        for name in columns:
            table[name] = table["dir"].map(columns[name]).astype("float64")
        return Sweep(self.folder, table, self.baseline, self._steps)

    @cached_property
    def groups(self) -> pd.DataFrame:
        """One row per system and swept values, as `aggregate` makes them."""
        return aggregate(self.table, self.baseline)

    @cached_property
    def done(self) -> pd.DataFrame:
        """The groups with at least one finished repeat."""
        return self.groups[self.groups["repeats"] > 0].reset_index(drop=True)

    @cached_property
    def inside(self) -> pd.DataFrame:
        """The rows of `done` whose steps and pool are known, as those of a live server are not."""
        return self.done[self.done["kv_used_pct"].notna()].reset_index(drop=True)

    @property
    def unit(self) -> str:
        """The unit of pools: `slots`, or `bytes` if layers keep different tokens."""
        split = [column for column in self.done if str(column).startswith("kv_used.")]  # by groups of layers
        states = "kv_state_pct" in self.done and (self.done["kv_state_pct"] > 0).any()
        return "bytes" if states or self.done[split].notna().any(axis=None) else "slots"

    @property
    def simulated(self) -> bool:
        """Whether no job ran on a real device: step times are then an input, and fitting them is meaningless."""
        return "device" in self.done and all(str(name).startswith("simulated") for name in self.done["device"])

    @property
    def swept(self) -> list[str]:
        return swept_columns(self.table)

    def steps(self, job: str) -> pd.DataFrame:
        """The step table of a job."""
        if job not in self._steps:
            self._steps[job] = pd.read_csv(self.folder / job / "steps.csv", dtype=NARROW)
        return self._steps[job]

    def requests(self, jobs: list[str], columns: list[str]) -> pd.DataFrame:
        """The given columns of the finished requests of these jobs, pooled."""
        tables = []
        for job in jobs:
            path, kinds = self.folder / job / "requests.csv", {"status": "category"}
            table = pd.read_csv(path, usecols=["status", *columns], dtype=kinds)
            tables.append(table.loc[table["status"] == "finished", columns])
        return pd.concat(tables, ignore_index=True)

    def quantiles(self, jobs: list[str], columns: list[str], shares: np.ndarray) -> dict[str, np.ndarray]:
        """By column, the ends of the 95 % interval of each quantile's mean over the jobs ``[2, len(shares)]``.

        Ends are clipped at the smallest value. Empty for fewer than three jobs; a column without values in one of the
        jobs is left out.

        Args:
            shares: in percent.
        """
        if len(jobs) < LEAST:
            return {}
        tables, found = [self.requests([job], columns) for job in jobs], {}
        for name in columns:
            values = [table[name].dropna().to_numpy() for table in tables]
            if all(map(len, values)):
                of_jobs = np.array([np.percentile(of_job, shares) for of_job in values])
                half = half_of(len(jobs)) * of_jobs.std(axis=0, ddof=1)[None]
                found[name] = np.maximum(of_jobs.mean(axis=0) + np.array([[-1.0], [1.0]]) * half, of_jobs.min())
        return found

    @cached_property
    def what_ran(self) -> str:
        """One line: model, workload, requests, pool, device; values that differ are left out or counted."""
        rows = self.table[self.table["status"] == "finished"]
        parts = [names(rows[key].dropna()) for key in ("model", "workload") if key in rows]
        pool = {"slots": "KV pool of {} slots (tokens)", "bytes": "KV pool of {} bytes"}[self.unit]
        for key, text in (("injected", "{} requests"), ("capacity", pool)):
            values = set(rows[key].dropna()) if key in rows else set()
            if len(values) == 1:
                parts.append(text.format(f"{int(values.pop()):,}"))
        parts.append(names(rows["device"].dropna()) if "device" in rows else "")
        parts.append(what_repeats(self.table, self.groups))
        return "  ·  ".join(part for part in parts if part)

    @cached_property
    def insignificant(self) -> list[str]:
        """A sentence about systems that repeats do not tell apart; empty if there are none or too few repeats."""
        return insignificant(self.table, self.groups)

    def capacity(self, job: str) -> int:
        """The capacity of a job's pool in its unit, which is the sum of the books of any step."""
        first = pd.read_csv(self.folder / job / "steps.csv", nrows=1)
        return int(first[[name for name in LayoutBooks._fields if name in first]].iloc[0].sum())

    def over_time(self, job: str, columns: list[str], bins: int = 300) -> tuple[np.ndarray, np.ndarray]:
        """Columns of the step table over time: (edges in s ``[n + 1]``, time-weighted means ``[n, len(columns)]``).

        A column that the table does not have is 0. Steps stay as they are while there are no more than `bins` of them.
        """
        wanted, parts = {"start_s", *SPENT_MS, "repeat", *columns}, []
        clock = Clockwork()
        path = self.folder / job / "steps.csv"
        for rows in pd.read_csv(path, usecols=wanted.__contains__, dtype=NARROW, chunksize=ROWS):
            clock.add(rows)
            parts.append(rows.reindex(columns=columns, fill_value=0).to_numpy())
        spent, values = clock.spent(), np.concatenate(parts)
        edges = np.concatenate([[0.0], np.cumsum(spent)])
        if len(spent) <= bins:
            return edges, values.astype(np.float64)
        coarse = np.linspace(0, edges[-1], bins + 1)
        areas = (np.concatenate([[0.0], np.cumsum(column * spent)]) for column in values.T)
        at = np.column_stack([np.interp(coarse, edges, area) for area in areas])
        return coarse, np.diff(at, axis=0) / np.diff(coarse)[:, None]


class Clockwork:
    """The time of each row of a step table in s.

    A row that stands for a jump of many steps lasts until the next row begins, since its steps differ in length.
    """

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []

    def add(self, rows: pd.DataFrame) -> None:
        """Further rows of a `steps.csv`, with `start_s`, what was spent, and `repeat` where there is one."""
        repeat = rows["repeat"].to_numpy() if "repeat" in rows else np.ones(len(rows))
        self._parts.append(np.stack([rows["start_s"], rows[SPENT_MS].sum(axis=1) / 1e3, repeat]))

    def spent(self) -> np.ndarray:
        """``[rows]``: the time of each row that was added."""
        start, spent, repeat = np.concatenate(self._parts, axis=1)
        until_next = np.append(np.diff(start), spent[-1:] * repeat[-1:])
        return np.where(repeat > 1, until_next, spent)
