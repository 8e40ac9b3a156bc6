"""Config files of models by hub name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.lookup import closest

SHIPPED = Path(__file__).parent / "models"


@lru_cache(maxsize=64)
def model_config(name: str, folder: Path | None = None) -> Mapping[str, Any]:
    """The config of `ORGANISATION/NAME`, from `folder` or those that are shipped: NAME.json or NAME/config.json.

    Raises:
        HarnessError: there is none; the message has the nearest name.
    """
    for root in (folder, SHIPPED):
        if root is None:
            continue
        for path in (root / f"{name}.json", root / name / "config.json"):
            if path.is_file():
                try:
                    values: Any = json.loads(path.read_text(encoding="utf-8"))
                except json.JSONDecodeError as error:
                    raise HarnessError(f"{path} is no JSON: {error}") from error
                if not isinstance(values, dict):
                    raise HarnessError(f"{path} must be a JSON object, as a config.json is")
                return values
    known = sorted(str(path.relative_to(SHIPPED).with_suffix("")) for path in SHIPPED.rglob("*.json"))
    near = closest(name, known, cutoff=0.5)
    hint = f" (the nearest that is shipped is {near[0]})" if near else ""
    raise HarnessError(f"no config.json of the model {name}: put one at measured.models=DIR/{name}.json{hint}")
