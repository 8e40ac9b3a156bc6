"""The check that runs by itself before the first run of an architecture that is not among those tested."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from kvlab_kernels.dispatch import Backend

from harness.errors import HarnessError
from harness.runner.families import TESTED_WITH, families
from harness.runner.logits_check import LogitsCheck, compare_logits

LARGEST = 4_000_000_000  # parameters; a check is some ten forward passes over at most 42 tokens


def auto_check(model: Any, backend: Backend, wanted: bool | str) -> dict[str, Any]:
    """What `environment.json` says of the check of `model`, which is made if it has to be.

    Args:
        wanted: `auto` (unless the architecture is among those tested, was found equal before, or is too large), true
            (always) or false.

    Raises:
        HarnessError: the runner says something else than the model.
    """
    if wanted not in (True, False, "auto"):
        raise HarnessError(f"device.check={wanted}: there are auto, true and false")
    if wanted == "auto":
        known, reason = _known(model, backend), ""
        if known:
            return {"verdict": "equal", **known, "cached": True}
        if _tested(model):
            reason = f"{model.config.model_type} is among the architectures tested with transformers {TESTED_WITH}"
        elif (size := sum(p.numel() for p in model.parameters())) > LARGEST:
            reason = f"{size / 1e9:.1f} billion parameters are more than the {LARGEST / 1e9:.0f} that auto checks"
        if reason:
            return {"verdict": "not made", "reason": reason}
    elif not wanted:
        return {"verdict": "not made", "reason": "device.check=false"}
    verdict = compare_logits(model, backend)
    if not verdict.equal:
        raise HarnessError(
            f"model {model.config.model_type}: the runner says something else than the model by itself (logits differ "
            f"by {verdict.difference:.1e} of their standard deviation, {verdict.tolerance:.0e} is allowed); "
            "device.check=false runs it all the same"
        )
    _remember(model, backend, verdict)
    return {"verdict": "equal", **asdict(verdict), "cached": False}


def _tested(model: Any) -> bool:
    version = transformers.__version__.split(".")[:2] == TESTED_WITH.split(".")
    return version and model.config.model_type in {config["model_type"] for config in families().values()}


def _place() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "kvlab" / "checks.json"


def _key(model: Any, backend: Backend) -> str:
    """The architecture and everything that may change what it computes, but for the weights."""
    config = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
    digest = hashlib.sha256(config.encode()).hexdigest()[:16]
    return f"{type(model).__name__} {digest}, transformers {transformers.__version__}, {model.dtype}, {backend.name}"


def _read() -> dict[str, Any]:
    try:
        return dict(json.loads(_place().read_text()))
    except (OSError, ValueError):
        return {}


def _known(model: Any, backend: Backend) -> dict[str, Any] | None:
    return _read().get(_key(model, backend))


def _remember(model: Any, backend: Backend, verdict: LogitsCheck) -> None:
    """Where there is nowhere to write, it is checked again the next time."""
    found, place = _read() | {_key(model, backend): asdict(verdict)}, _place()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        mine = place.with_name(f"{place.name}.{os.getpid()}")
        mine.write_text(json.dumps(found, indent=1))
        mine.replace(place)
    except OSError:
        pass
