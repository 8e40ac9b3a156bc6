"""Things found by the name somebody typed, or what is nearest to it."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from hydra.utils import get_object

from harness.errors import HarnessError

# Modules that a configuration may name and that lay elsewhere in version 0.1.
MOVED = {f"harness.{name}": f"harness.tasks.{name}" for name in ("calibrate", "capacity", "claims", "paging_overhead")}
MOVED["harness.answers_check"] = "harness.tasks.same_outputs"


def locate(target: str, key: str) -> Any:
    """The object that a `_target_` names.

    Raises:
        HarnessError: the module or the name does not exist; the message names the nearest.
    """
    try:
        return get_object(target)
    except Exception as error:
        module, _, name = target.rpartition(".")
        if module in MOVED:
            raise HarnessError(f"{key}={target}: {module} is {MOVED[module]} now: {MOVED[module]}.{name}") from error
        try:
            names = [n for n in dir(importlib.import_module(module)) if not n.startswith("_")]
        except Exception as import_error:
            raise HarnessError(f"{key}={target}: module {module!r} can't be imported: {import_error}") from error
        raise HarnessError(f"{key}={target}: {module} has no {name!r}{nearest(name, names)}") from error


def nearest(name: str, names: Collection[str]) -> str:
    """A clause with the closest of `names` to `name`, or with all of them when none is close."""
    if meant := near(name, names, most=3):
        return f"; {meant}"
    return f"; there are {', '.join(sorted(names))}" if names else ""


def near(value: Any, names: Iterable[str], prefix: str = "", most: int = 2) -> str:
    """``did you mean paged?``, or nothing."""
    close = get_close_matches(str(value), list(names), n=most, cutoff=0.6)
    return f"did you mean {' or '.join(prefix + name for name in close)}?" if close else ""
