"""The groups of the configuration: which options each has, and what one says before Hydra composes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def files(folder: Path) -> list[Path]:
    """Of a group's options, by name. Those that begin with an underscore are no options: options are built on them."""
    return sorted(path for path in folder.glob("*.yaml") if not path.name.startswith("_"))


def options(folder: Path) -> list[str]:
    """The names of a group's options."""
    return [path.stem for path in files(folder)]


def written(path: Path) -> Any:
    """What an option's file says, over what it is built on: the files of its group that its defaults name."""
    own: Any = OmegaConf.load(path)
    defaults = own.pop("defaults", [])
    below = [name for name in defaults if isinstance(name, str) and name != "_self_"]
    return OmegaConf.merge(*(written(path.with_name(f"{name}.yaml")) for name in below), own)
