"""The tables of a finished run, as exports read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from harness.errors import HarnessError
from harness.files import missing

REQUESTS, STEPS = "requests.csv", "steps.csv"


def requests_of(folder: Path) -> pd.DataFrame:
    """`requests.csv`. Raises HarnessError where there is none."""
    path = folder / REQUESTS
    if said := missing(str(path)):
        raise HarnessError(f"{path}: {said}: it holds no requests that were served")
    return pd.read_csv(path)


def config_of(folder: Path) -> dict[str, Any]:
    """`config.yaml`, interpolations resolved; empty where there is none."""
    path = folder / "config.yaml"
    values: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True) if path.exists() else {}
    return values if isinstance(values, dict) else {}
