"""Capacity: the highest arrival rate at which a system still meets a criterion, found by bisection over whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf, open_dict

from harness.errors import HarnessError
from harness.files import write_table
from harness.job import run_job
from harness.naming.labels import label
from harness.naming.names import model_name, workload_name
from harness.published import rates

TABLES = ("requests.csv", "steps.csv", "workload.jsonl")  # of a probe: the same again from its config.yaml
MOST_PROBES = 40
FASTEST, SLOWEST = 1e5, 1e-4  # requests per second


def find_capacity(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any],
                  progress: object = None) -> dict[str, Any]:  # fmt: skip
    """The task of `experiment=capacity`: search the capacity of one system, and write every probe.

    A probe is a whole run at one rate, in a folder of its own; `probes.csv` lists them all, so it can be followed while
    the search is under way. The search starts from what the system serves of a burst. Nothing is shared with other
    jobs: any number of them may run at once.

    `cfg.search` says: `metric` (a key of `summary.json`) and `limit`, the most it may be; `tolerance`, the relative
    width of the last bracket; `start`, the first rate (null: from a burst); `burst`, its requests; `rates`, further
    rates to run (a list, or the name of a published figure whose points are wanted); `keep_tables`.

    Returns:
        The summary of the run at the capacity, with `capacity_rate` (requests/s), the lowest rate seen to fail
        (`capacity_fails_at`), `criterion`, `trace_s` and `probes`.

    Raises:
        HarnessError: no rate meets the criterion, or none fails it.
    """
    search = cfg.search
    if cfg.workload.duration_s is None:
        raise HarnessError("a capacity holds for a trace of a stated length: set workload.duration_s (in s)")
    probes = Probes(cfg, folder)
    low, high = bracket(probes, search.start or probes.burst(search.burst))
    while high - low > search.tolerance * low:
        middle = (low + high) / 2
        low, high = (middle, high) if probes.meets(middle) else (low, middle)
    for rate in _rates(cfg):
        probes.row(rate)
    facts["device"] = cfg.device.kind
    criterion = f"{search.metric} ≤ {search.limit:g}, nothing rejected, arrivals for {cfg.workload.duration_s:g} s"
    best, next_one = probes.row(low), probes.row(high)
    found = {"capacity_rate": best["rate"], "capacity_fails_at": next_one["rate"], "criterion": criterion}
    found |= {"probes": len(probes.rows), "trace_s": cfg.workload.duration_s}
    return {key: value for key, value in best.items() if key not in NOT_COPIED} | found


# Of a probe, what the job says itself.
NOT_COPIED = {"system", "allocator", "reservation", "scheduler", "identity", "status", "error", "overrides", "repeat",
              "seed", "workload", "offered_rate", "workload_notes", "dir", "rate", "meets"}  # fmt: skip


@dataclass
class Probes:
    """The runs made so far, by rate; a rate is run once.

    Attributes:
        cfg: of the job; a probe differs from it in the arrivals only.
        folder: of the job.
        rows: what `summary.json` says, by rate in requests/s.
    """

    cfg: DictConfig
    folder: Path
    rows: dict[float, dict[str, Any]] = field(default_factory=dict)

    def meets(self, rate: float) -> bool:
        """Whether the criterion is met at `rate`."""
        return bool(self.row(rate)["meets"])

    def row(self, rate: float) -> dict[str, Any]:
        """The run at `rate`, made now if need be."""
        rate = float(f"{rate:.4g}")
        if rate not in self.rows:
            row = self._run(f"rate_{rate:g}", {"rate": rate, "arrival": "poisson"})
            value, lost = row[self.cfg.search.metric], row["rejected"] + row["unfinished"] + row.get("failed", 0)
            met = value is not None and value <= self.cfg.search.limit and not lost
            self.rows[rate] = row | {"rate": rate, "meets": met}
            table = pd.DataFrame([self.rows[at] for at in sorted(self.rows)])
            first = ["rate", "meets", self.cfg.search.metric]
            table = table[[*first, *table.columns.difference(first, sort=False)]]
            write_table(self.folder / "probes.csv", table)
        return self.rows[rate]

    def burst(self, requests: int) -> float:
        """Requests per second that are served of so many at once: near the capacity, and quick to find out."""
        arrivals = {"rate": None, "arrival": "burst", "duration_s": None, "num_requests": requests}
        return float(self._run("burst", arrivals)["request_throughput"])

    def _run(self, name: str, arrivals: dict[str, Any]) -> dict[str, Any]:
        cfg = self.cfg.copy()
        with open_dict(cfg):
            cfg.task = "harness.job.serve"
            cfg.workload = OmegaConf.merge(cfg.workload, arrivals)
        row = run_job(cfg, self.folder / name, [f"workload.{key}={value}" for key, value in arrivals.items()])
        if row["status"] != "finished":
            raise HarnessError(f"the probe {name} failed: {row['error']}")
        if not self.cfg.search.keep_tables:
            for table in TABLES:
                (self.folder / name / table).unlink(missing_ok=True)
        return row | {"dir": name}


def bracket(probes: Probes, start: float) -> tuple[float, float]:
    """(a rate that meets the criterion, a higher one that fails it), by steps that double each time.

    Raises:
        HarnessError: there is no such pair between 0.0001 and 100,000 requests per second.
    """
    rate, step = start, 1.06
    first = probes.meets(rate)
    for _ in range(MOST_PROBES):
        further = rate * step if first else rate / step
        if not SLOWEST <= further <= FASTEST:
            break
        if probes.meets(further) != first:
            return (rate, further) if first else (further, rate)
        rate, step = further, step**2
    always = "met" if first else "missed"
    raise HarnessError(f"{probes.cfg.search.metric} ≤ {probes.cfg.search.limit:g} is {always} at every rate tried")


def _rates(cfg: DictConfig) -> Sequence[float]:
    wanted = cfg.search.rates
    if isinstance(wanted, str):
        return rates(wanted, f"{model_name(cfg.model)}_{workload_name(cfg.workload)}", label(cfg))
    return [float(rate) for rate in wanted or []]
