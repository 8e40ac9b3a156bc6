"""Objects looked up by name, and the nearest names to a mistyped one."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from harness.errors import HarnessError

# Modules that a configuration may name, and that had another name in version 0.1.
MOVED = {f"harness.{name}": f"harness.tasks.{name}" for name in ("calibrate", "capacity", "claims", "paging_overhead")}
MOVED["harness.answers_check"] = "harness.tasks.same_outputs"


def locate(target: str, key: str) -> Any:
    """The object that a `_target_` names.

    Raises:
        HarnessError: the module or the name does not exist; the message names the nearest.
    """
    from hydra.utils import get_object

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
    """``; did you mean paged?``, or all of `names` if none is close."""
    return hint(name, names, 3) or (f"; there are {', '.join(sorted(names))}" if names else "")


def hint(name: str, names: Iterable[str], most: int = 1) -> str:
    """``; did you mean paged?``, or nothing if none of `names` is close; for messages that list them all."""
    meant = near(name, names, most=most)
    return f"; {meant}" if meant else ""


def near(value: Any, names: Iterable[str], prefix: str = "", most: int = 2) -> str:
    """``did you mean paged?``, or nothing if none of `names` is close."""
    close = closest(str(value), names, most)
    return f"did you mean {' or '.join(prefix + name for name in close)}?" if close else ""


def closest(name: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Those of `names` that are most like `name`, the most similar first.

    Args:
        cutoff: least similarity, as of `difflib.get_close_matches`.
    """
    return get_close_matches(name, list(names), most, cutoff)
