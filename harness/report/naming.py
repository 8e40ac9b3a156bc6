"""What tells the rows of a comparison apart: the keys that a sweep varies, and for equal names any key that differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from harness.errors import HarnessError
from harness.folders.plan import read_plan
from harness.naming.identity import digest, distinguishing_keys, identity, short, text
from harness.naming.labels import class_name, label
from harness.report.rows import parse_overrides

WHO = ["system", "allocator", "reservation", "scheduler"]
# Keys that name or repeat a row, or say where and how it is reported: they tell no rows apart.
NOT_SWEPT = {*WHO, *(f"{part}._target_" for part in WHO), "repeat", "seed", "label", "baseline", "figure"}
TRUER = ("model", "device", "workload")  # a summary's entry is more precise than the override

Row = dict[str, Any]
Point = tuple[str, ...]


class Setup(NamedTuple):
    """A row's configuration.

    Attributes:
        cfg: the whole configuration.
        name: the system's name in the row's summary.
        keys: its identity.
    """

    cfg: DictConfig
    name: str
    keys: Mapping[str, Any]


def axes(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The overrides whose values differ between jobs, with the value of each row (None = not set)."""
    asked = [parse_overrides(row.get("overrides")) for row in rows]
    found = {}
    for key in dict.fromkeys(key for overrides in asked for key in overrides):
        values = [overrides.get(key) for overrides in asked]
        if len(set(values)) > 1 and key not in NOT_SWEPT and not key.startswith("hydra."):
            found[key] = _truer(values, rows, key) if key in TRUER else values
    return found


def name_rows(folder: Path, rows: list[Row]) -> None:
    """Write into each row its `identity`, and a `system` that no row with another identity has at the same point.

    Names are derived again from the configuration in the job's folder, without the keys that the sweep varies. If
    several configurations would share a name, the values that differ are added in brackets.

    Args:
        folder: of the sweep.
        rows: as returned by `read_rows`.
    """
    moved = axes(rows)
    setups = _setups(folder, rows)
    named: dict[str, list[tuple[Row, Point, Setup]]] = defaultdict(list)
    for number, row in enumerate(rows):
        if setup := setups.get(row.get("identity")):
            if row["system"] == setup.name:  # else the row has a label of its own
                row["system"] = label(setup.cfg, moved)
            named[row["system"]].append((row, tuple(str(values[number]) for values in moved.values()), setup))
    for alike in named.values():
        points: dict[Point, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for row, point, setup in alike:
            points[point][row["identity"]] = setup.keys
        if all(len(found) == 1 for found in points.values()):
            continue
        differing = _differences([list(found.values()) for found in points.values()], list(moved))
        for row, _, setup in alike:
            if words := differing(setup.keys):
                row["system"] = f"{row['system']} [{', '.join(words)}]"


def _differences(groups: list[list[Mapping[str, Any]]], aside: list[str]) -> Callable[[Mapping[str, Any]], list[str]]:
    """A function from an identity to the values that tell it from the others of its group: ``["block_size=256"]``."""
    everybody = [found for group in groups for found in group]
    known, keys = dict.fromkeys(key for found in everybody for key in found), distinguishing_keys(groups, aside)

    def word(key: str, value: Any) -> str:
        if not key.endswith("._target_"):
            return f"{short(key, known)}={text(value)}"
        return f"{key.removesuffix('._target_')}={class_name(value)}"

    return lambda found: [word(key, found[key]) for key in keys if key in found]


def _setups(folder: Path, rows: Iterable[Row]) -> dict[Any, Setup]:
    """By identity, the configuration of the first row that has it.

    A row without an identity is given that of its configuration.
    """
    plan, found = _plan(folder), dict[Any, Setup]()
    for row in rows:
        if row.get("identity") in found:
            continue
        cfg = _config(folder / row["dir"] / "config.yaml") or plan.get(row["dir"])
        if cfg is None:
            continue
        try:
            keys = identity(cfg)
            row["identity"] = row.get("identity") or digest(keys)
            label(cfg)
        except Exception:  # a configuration of another version or origin: its row keeps its name
            continue
        found.setdefault(row["identity"], Setup(cfg, str(row["system"]), keys))
    return found


def _config(path: Path) -> DictConfig | None:
    try:
        cfg = OmegaConf.load(path)
    except Exception:  # missing, cut off, or not YAML
        return None
    return cfg if isinstance(cfg, DictConfig) else None


def _plan(folder: Path) -> dict[str, DictConfig]:
    try:
        plan = read_plan(folder)
    except HarnessError:
        plan = None
    return {job.dir: job.cfg for job in plan.jobs if job.config} if plan else {}


def _truer(values: Sequence[Any], rows: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """The summaries' entries; a row without one takes the entry of rows with the same value, if these agree."""
    said = defaultdict(set)
    for value, row in zip(values, rows, strict=True):
        if pd.notna(row.get(key)):
            said[value].add(str(row[key]))
    return [row[key] if pd.notna(row.get(key)) else (*said[value],)[0] if len(said[value]) == 1 else value
            for value, row in zip(values, rows, strict=True)]  # fmt: skip
