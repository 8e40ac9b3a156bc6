"""Keys that were asked for and have no effect: said in one line each, or a sweep over them would look like a result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.config.check import plain, schema
from harness.devices import KINDS
from harness.lookup import near
from harness.schema.key import Values, at
from harness.schema.keys import KEYS, SECTIONS
from harness.schema.keys.run import SERVING

GROUPS = ("experiment", "server", "system", "hydra")  # they choose other keys
ARRIVALS = ("workload.arrival", "workload.rate", "workload.concurrency", "workload.num_requests")
# What a task does not look at, by sections and keys; with `only`, all but these.
IDLE: Mapping[str, Collection[str]] = {
    "harness.tasks.capacity.find_capacity": ("workload.arrival", "workload.rate", "workload.concurrency", "memory_map"),
    "harness.live.beside.beside": ("workload.arrival", "workload.rate", "workload.concurrency", "memory_map"),
    "harness.tasks.calibrate.measure": (*ARRIVALS, "workload.duration_s", "memory_map"),
}
# Of a server that is not ours.
ITS_OWN = ("allocator", "reservation", "scheduler", "model", "kv_slots", "kv_bytes", "gpu_memory_utilization", "debug",
           "memory_map", "simulation")  # fmt: skip
ANY = ("task", "seed", "repeat", "label", "figures", "patience_s")  # task looks at these
ONLY: Mapping[str, Collection[str]] = {
    "harness.tasks.paging_overhead.measure": (*ANY, "model", "device", "overhead"),
    "harness.tasks.claims.run_part": (*ANY, "baseline", "figure", "part", "parts"),
    "harness.validate.task.validate": (*ANY, "validate"),
}


def without_effect(cfg: DictConfig, asked: Collection[str]) -> list[str]:
    """A line for the keys among `asked` that change nothing in this configuration, those of one reason together.

    Args:
        cfg: the whole configuration, settled.
        asked: dotted keys given on the command line.
    """
    values, _ = plain(cfg)
    reasons: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted({*asked, *(key for key in values if key not in KEYS and key not in SECTIONS)}):
        value = at(values, name)
        if value is not None and name.split(".")[0].split("/")[0] not in GROUPS and (why := _reason(cfg, values, name)):
            reasons[why].append(name if isinstance(value, Mapping) else f"{name}={value}")
    return [f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {why[len(names) > 1]}"
            for why, names in reasons.items()]  # fmt: skip


def _reason(cfg: DictConfig, values: Values, name: str) -> tuple[str, str] | None:
    """Why a key has no effect, as is said of one and of several; None where it has one."""
    task = values["task"]
    if _within(name, IDLE.get(task, ())) or (task in ONLY and not _within(name, ONLY[task])):
        return f"{task} sets it itself, or does without", f"{task} sets them itself, or does without"
    if task in SERVING and KINDS[values["device"]["kind"]].runs == "elsewhere" and _within(name, ITS_OWN):
        return "the server has its own", "the server has its own"
    keys = [key for one, key in schema(values).items() if _within(one, (name,)) and at(values, one) is not None]
    failing = [next((when.text for when in key.when if not when.holds(values)), None) for key in keys]
    if failing and failing[0] and all(failing):
        return f"it counts only {failing[0]}", f"they count only {failing[0]}"
    known = name in SECTIONS or name in KEYS or "." in name or not task.startswith("harness.")
    if known or _mentioned(cfg, name):
        return None
    hint = near(name, [key for key in KEYS if "." not in key])
    why = f"there is no such key{f'; {hint}' if hint else ''}"
    return why, why


def _within(name: str, sections: Collection[str]) -> bool:
    return any(f"{name}.".startswith(f"{section}.") for section in sections)


def _mentioned(cfg: DictConfig, name: str) -> bool:
    """Whether a value of another key is made of it."""
    return name in " ".join(text for text in _texts(OmegaConf.to_container(cfg)) if "${" in text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(item)
