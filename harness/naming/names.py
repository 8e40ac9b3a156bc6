"""What a model and a workload are called: by what they are, not by the name of the group they were set from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.groups import written
from harness.installation import EXPERIMENTS
from harness.naming.identity import flat, text

LENGTHS = ("prompt", "output")


def model_name(model: Any) -> str:
    """`opt_mini`, `opt_mini [hidden_size=512]` where its shape was changed, or the folder or file it comes from.

    Args:
        model: the group `model`. A name that is no file's of that group is somebody's own, and stays.
    """
    name, path, config = str(model.get("name")), model.get("path"), model.get("config")
    shipped = _shipped("model", name)
    if path:
        return _of(None if shipped else name, _folder_name(str(path)))
    if isinstance(config, str):
        return _of(None if shipped else name, _file_name(Path(config)))
    return _changed(name, flat(config), flat(shipped["config"])) if shipped else name


def workload_name(workload: Any) -> str:
    """`sharegpt`, `sharegpt [output.cap=64]` where its lengths were changed, or `trace FILE`.

    Lengths drawn from recorded ones are others as soon as anything about them is changed; a family (`lognormal`) stays
    itself with other numbers.

    Args:
        workload: the group `workload`. A name that is no file's of that group is somebody's own, and stays.
    """
    name, path = str(workload.get("name")), workload.get("path")
    shipped = _shipped("workload", name)
    if path:
        file = Path(str(path)).name.removesuffix(".gz")
        stem = file.rpartition(".")[0] or file
        return f"trace {stem}" if shipped else _of(name, stem)
    if not shipped:
        return name
    ours, theirs = ({f"{key}.{at}": value for key in LENGTHS for at, value in flat(group[key]).items()}
                    for group in (workload, shipped))  # fmt: skip
    if "histogram" not in (theirs.get(f"{key}.kind") for key in LENGTHS):
        ours, theirs = ({key: found[key] for key in found if key.endswith(".kind")} for found in (ours, theirs))
    return _changed(name, ours, theirs)


def _of(name: str | None, source: str) -> str:
    """A name of one's own, with the file behind it where that is called otherwise."""
    if name is None:
        return source
    return name if _words(name) == _words(source.partition(" (")[0]) else f"{name} ({source})"


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


def _changed(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    told = [f"{key}={text(value)}" for key, value in ours.items() if value != theirs.get(key)]
    return f"{name} [{', '.join(told)}]" if told else name


def _folder_name(path: str) -> str:
    """``opt-125m`` of a folder; a hub's name as it is."""
    place = Path(path)
    return _typed(place.resolve().name, place / "config.json") if place.is_dir() else path


def _file_name(file: Path) -> str:
    """The stem, or the folder's name of a `config.json`."""
    return _typed(file.resolve().parent.name if file.stem == "config" else file.stem, file)


def _typed(name: str, config: Path) -> str:
    """With the architecture behind it, where the name does not say it already."""
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):  # who needs it will say so
        return name
    return f"{name} ({kind})" if kind and str(kind) not in name.lower() else name


@cache
def _shipped(group: str, name: str) -> dict[str, Any]:
    """The group's own file of that name; empty if there is none."""
    path = EXPERIMENTS / group / f"{name}.yaml"
    values: Any = OmegaConf.to_container(written(path)) if path.is_file() else {}
    return dict(values)
