"""What a sweep is to run, written down before its first job: whoever reads its folder needs to know no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.errors import HarnessError
from harness.files import write_text

PLAN = "plan.json"
OVER = ("finished", "failed")  # a job that ended by itself


@dataclass(frozen=True)
class Job:
    """A job of a sweep.

    Attributes:
        dir: its folder, inside the sweep's.
        overrides: what sets it apart on the command line, for the record.
        config: its whole configuration, interpolations as they were written; None in plans of earlier versions.
        names: what `harness.naming.labels.names` calls it, for the table while it has no summary.
    """

    dir: str
    overrides: list[str] = field(default_factory=list)
    config: Any = None
    names: dict[str, str] = field(default_factory=dict)

    @property
    def cfg(self) -> DictConfig:
        """The configuration, as Hydra composed it."""
        cfg = OmegaConf.create(self.config)
        OmegaConf.set_struct(cfg, True)
        return cfg


@dataclass(frozen=True)
class Plan:
    """A sweep.

    Attributes:
        jobs: in order.
        command: the arguments of `python -m harness` that made it.
        directory: the working directory, to which its paths are relative.
        baseline, figure, figures: what its report compares with and draws, and how.
        code: a digest of the sources it was planned with, and the versions of the packages.
    """

    jobs: list[Job]
    command: list[str] = field(default_factory=list)
    directory: str = "."
    baseline: str | None = None
    figure: str | None = None
    figures: str = "screen"
    code: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        head = {key: value for key, value in vars(self).items() if key != "jobs"}
        jobs = ",\n  ".join(json.dumps(asdict(job)) for job in self.jobs)
        write_text(folder / PLAN, f'{json.dumps(head, indent=1)[:-2]},\n "jobs": [\n  {jobs}\n ]\n}}\n')

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.dir == name)


def read_plan(folder: Path) -> Plan | None:
    """The plan of a sweep; None where there is none.

    Raises:
        HarnessError: there is one, and it can't be read.
    """
    path = folder / PLAN
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise HarnessError(f"{path} is not the plan of a sweep: {type(error).__name__}: {error}; without it, `report` "
                           "takes the folders of jobs as they lie there") from error  # fmt: skip


def plain(cfg: DictConfig) -> Any:
    """A configuration as JSON keeps it, or else (keys that are numbers, infinities) as YAML text."""
    values = OmegaConf.to_container(cfg)
    kept = json.loads(json.dumps(values, default=str))
    return values if kept == values and "Infinity" not in json.dumps(values) else OmegaConf.to_yaml(cfg)


def summary_of(folder: Path) -> dict[str, Any] | None:
    """What a job says of itself; None while it has said nothing.

    Raises:
        HarnessError: what is there is not what a job writes.
    """
    path = folder / "summary.json"
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise HarnessError(f"{path} can't be read: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("status"), str):
        raise HarnessError(f"{path} is not what a job writes")
    return row


def has_ended(folder: Path) -> bool:
    """Whether the job in a folder ended by itself, well or not."""
    try:
        row = summary_of(folder)
    except HarnessError:
        return False
    return row is not None and row["status"] in OVER


@lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> Plan:
    content = json.loads(path.read_text(encoding="utf-8"))
    entries = content if isinstance(content, list) else content.pop("jobs")  # a list: an earlier version wrote it
    head = {} if isinstance(content, list) else content
    jobs = list(_jobs(entries))
    return Plan(jobs, **{key: value for key, value in head.items() if key in Plan.__dataclass_fields__})


def _jobs(entries: Any) -> Iterator[Job]:
    for entry in entries:
        known = {key: value for key, value in entry.items() if key in Job.__dataclass_fields__}
        if Path(str(entry["dir"])).is_absolute() or ".." in Path(str(entry["dir"])).parts:
            raise ValueError(f"{entry['dir']!r} is no folder inside")
        for key, kinds in (("overrides", list), ("config", dict | str | None), ("names", dict)):
            if key in known and not isinstance(known[key], kinds):
                raise TypeError(f"{key} of job {entry['dir']} is no {kinds}")
        yield Job(**{**known, "dir": str(entry["dir"])})
