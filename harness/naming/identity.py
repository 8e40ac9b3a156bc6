"""What a job is: its resolved configuration, less what sets repeats of it apart, names its row or draws its report.

Rows with the same identity are repeats of one measurement; rows with different ones are not, whatever they are called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from harness.installation import EXPERIMENTS

ROOT = str(EXPERIMENTS.parent)
LEFT_OUT = ("seed", "repeat", "repeats", "label", "baseline", "figure", "figures", "memory_map", "exports", "tables",
            "patience_s", "hydra")  # fmt: skip
ABSENT = object()


def identity(cfg: Any) -> dict[str, Any]:
    """The dotted keys of a configuration that say what is measured, with their values.

    A key called `seed` that has the run's own seed (as `scheduler.seed` does) is left out like it. A path inside this
    checkout is told from its root, so that it is the same in another one.

    Args:
        cfg: the whole configuration, composed or as `config.yaml` keeps it.
    """
    values = flat(cfg)
    seed = values.get("seed", ABSENT)
    return {
        key: value
        for key, value in values.items()
        if key.partition(".")[0] not in LEFT_OUT and not (key.endswith(".seed") and value == seed)
    }


def flat(cfg: Any) -> dict[str, Any]:
    """The values of a mapping, or of a part of a configuration, by dotted key; lists are text, whole numbers whole."""
    values: Any = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else cfg
    return dict(_flat(values))


def digest(found: Mapping[str, Any]) -> str:
    """An identity in 12 hexadecimal digits; the order of the keys does not matter."""
    text = json.dumps(found, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def distinguishing_keys(groups: Sequence[Sequence[Mapping[str, Any]]], aside: Sequence[str] = ()) -> list[str]:
    """Keys whose values tell the identities within each group apart: few, and plain ones.

    Args:
        groups: of identities that are different from each other.
        aside: keys that may not be taken.
    """
    keys = [key for key in dict.fromkeys(key for group in groups for found in group for key in found)
            if key not in aside and any(len(_values(group, [key])) > 1 for group in groups)]  # fmt: skip
    taken: list[str] = []
    parts = _parts(groups, taken)
    while keys:
        best = max(keys, key=lambda key: (_parts(groups, [*taken, key]), *_plain(groups, key)))
        if (more := _parts(groups, [*taken, best])) == parts:
            break
        taken, parts = [*taken, best], more
        keys.remove(best)
    return taken


def short(key: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The last words of a dotted key that no other key ends with: `block_size`, but `model.path`."""
    words = key.split(".")
    for count in range(1, len(words)):
        end = ".".join(words[-count:])
        if not any(other != key and (other == end or other.endswith(f".{end}")) for other in known):
            return end
    return key


def text(value: Any) -> str:
    """A value as one writes it on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat(values: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, _plain_value(value)


def _plain_value(value: Any) -> Any:
    if isinstance(value, list | tuple | Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 0.0 is 0
    return value.removeprefix(f"{ROOT}/") if isinstance(value, str) else value


def _values(group: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(repr(found.get(key, ABSENT)) for key in keys) for found in group}


def _parts(groups: Sequence[Sequence[Mapping[str, Any]]], keys: Sequence[str]) -> int:
    return sum(len(_values(group, keys)) for group in groups)


def _plain(groups: Sequence[Sequence[Mapping[str, Any]]], key: str) -> tuple[bool, int]:
    """Between keys that tell as much: one that all have, then the shortest."""
    return all(key in found for group in groups for found in group), -len(key.rpartition(".")[2])
