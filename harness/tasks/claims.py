"""The runs behind `experiment=claims`: each job is one of them, written out as the overrides of another experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from harness.config import asked_by, settled
from harness.errors import HarnessError
from harness.files import write_text
from harness.installation import EXPERIMENTS
from harness.lookup import locate, nearest
from harness.naming.labels import names
from harness.naming.names import workload_name


def run_part(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any],
             progress: Any = None) -> dict[str, Any]:  # fmt: skip
    """The task of `experiment=claims`: run `cfg.parts[cfg.part]`, a list of overrides, in this job's folder.

    The folder's `config.yaml` becomes that of the run, so that it can be repeated without this experiment.

    Raises:
        HarnessError: there is no such part.
    """
    if cfg.part not in cfg.parts:
        raise HarnessError(f"part={cfg.part}: no such run{nearest(str(cfg.part), list(cfg.parts))}")
    overrides = [*cfg.parts[cfg.part], f"seed={cfg.seed}"]
    asked = asked_by(overrides)
    part = settled(composed(overrides), asked)
    write_text(folder / "config.yaml", OmegaConf.to_yaml(part, resolve=True))
    task = locate(part.task, "task")
    row: dict[str, Any] = task(part, folder, asked, facts, progress)
    return {**names(part), "workload": workload_name(part.workload), **row}


def composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration that these overrides give, inside a running job or without one."""
    if GlobalHydra.instance().is_initialized():
        return compose("config", overrides=list(overrides))
    with initialize_config_dir(str(EXPERIMENTS), version_base="1.3"):
        return compose("config", overrides=list(overrides))
