"""What a row is called, derived from the configuration that ran and never from the name of a config file.

A published name belongs to a whole set-up: to its classes, and to every key in which that system is itself. Whatever
is set up otherwise is called by what it is made of, and by what was changed about it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

from harness.devices import is_elsewhere
from harness.naming.identity import digest, identity, text
from harness.schema.plugins import arguments

FIRST_COME = {"scheduler.policy": "fcfs", "scheduler.chunked_prefill": False}
ITERATION = FIRST_COME | {"scheduler.prefill_first": False}
ON_DEMAND = {"scheduler.watermark": 0.01, "scheduler.preemption": "recompute"}
BLOCKS = {"allocator.block_size": 16, "allocator.enable_prefix_caching": False}


@dataclass(frozen=True)
class Published:
    """A published system.

    Attributes:
        name: what it is called.
        scheduler, allocator: their classes.
        reservation: the function's name.
        keys: in which it is itself. One that is not set has its class's default, which is the same.
    """

    name: str
    scheduler: str
    allocator: str
    reservation: str
    keys: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, cfg: DictConfig, moved: Collection[str]) -> bool:
        """Whether `cfg` is this set-up, and none of its keys is among those that a sweep moves."""
        targets = (cfg.scheduler._target_, cfg.allocator._target_, cfg.reservation._target_)
        if targets != (self.scheduler, self.allocator, f"schedulers.reservation.{self.reservation}"):
            return False
        set_to = {key: cfg[group][name] for key in self.keys for group, name in [key.split(".")] if name in cfg[group]}
        return set_to.items() <= self.keys.items() and not any(key in self.keys for key in moved)


CONTINUOUS, PAGED, BUDDY = "schedulers.continuous.Continuous", "allocators.paged.Paged", "allocators.buddy.Buddy"
PUBLISHED = (
    Published("Orca (Max)", CONTINUOUS, BUDDY, "max_model_len", ITERATION),
    Published("Orca (Pow2)", CONTINUOUS, BUDDY, "pow2", ITERATION),
    Published("Orca (Oracle)", CONTINUOUS, BUDDY, "exact", ITERATION),
    Published("vLLM", CONTINUOUS, PAGED, "on_demand", ITERATION | ON_DEMAND | BLOCKS),
    Published("vAttention", CONTINUOUS, "allocators.virtual.Virtual", "on_demand",
              ITERATION | ON_DEMAND | {"allocator.background": True, "allocator.deferred": True}),
    # Caching prefixes, pieces of prompts and the like are switches of the engine itself.
    Published("vLLM v1", "schedulers.vllm_v1.VllmV1", PAGED, "on_demand",
              {"scheduler.policy": "fcfs", "allocator.block_size": 16}),
    Published("FasterTransformer", "schedulers.static.Static", "allocators.contiguous.Contiguous", "exact",
              FIRST_COME | {"scheduler.max_wait_s": 0, "allocator.fit": "slab", "allocator.lane_slots": "longest"}),
    Published("Ideal", "schedulers.ideal.Ideal", PAGED, "on_demand", BLOCKS | {"allocator.block_size": 1}),
)  # fmt: skip
# Of allocators and schedulers: sizes of a server, which belong to no system ...
SIZES = {"max_num_seqs", "max_num_batched_tokens", "host_slots", "map_us", "seed"}
# ... and what the words of a name say already.
WORDS = {"fit", "compaction", "growth", "enable_prefix_caching", "policy", "length_predictor", "bucket_by",
         "max_wait_s"}  # fmt: skip


def names(cfg: DictConfig) -> dict[str, str]:
    """What every row says of itself: system, allocator, reservation, scheduler, and the digest of its identity."""
    return {"system": label(cfg), **parts(cfg), "identity": digest(identity(cfg))}


def label(cfg: DictConfig, moved: Collection[str] = ()) -> str:
    """The label that the user gave, a published system's name, or what it is made of and what was changed about it.

    Args:
        moved: dotted keys that a sweep moves, so that they are told beside the name and are no part of it.
    """
    if cfg.label:
        return str(cfg.label)
    if is_elsewhere(cfg):
        return f"server {str(cfg.server.url).partition('//')[2]}"
    for system in PUBLISHED:
        if system.fits(cfg, moved):
            return system.name
    part = parts(cfg)
    name = f"{part['scheduler']} + {part['allocator']}({part['reservation']})"
    if _caches(cfg.allocator) and "allocator.enable_prefix_caching" not in moved:
        name += " + prefix cache"
    changed = [*_changed("scheduler", cfg, moved), *_changed("allocator", cfg, moved)]
    return f"{name} [{', '.join(changed)}]" if changed else name


def parts(cfg: DictConfig) -> dict[str, str]:
    """allocator, reservation and scheduler as short names, those of others with the module they come from; empty of a
    server, which has its own."""
    if is_elsewhere(cfg):
        return dict.fromkeys(("allocator", "reservation", "scheduler"), "")
    allocator = class_name(cfg.allocator._target_)
    fit = cfg.allocator.get("fit", "slab")
    if allocator == "contiguous" and fit != "slab":
        allocator = f"{allocator}:{fit}"
        allocator += ", compacting" if cfg.allocator.get("compaction", "never") != "never" else ""
        allocator += ", growing" if cfg.allocator.get("growth", 0) else ""
    return {
        "allocator": allocator,
        "reservation": str(cfg.reservation._target_).removeprefix("schedulers.reservation."),
        "scheduler": " ".join([class_name(cfg.scheduler._target_), *_qualities(cfg.scheduler)]),
    }


def class_name(target: str) -> str:
    """`vllm_v1` of `schedulers.vllm_v1.VllmV1`; a class of anybody else's keeps its whole name."""
    module, _, name = target.rpartition(".")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return words if module in (f"allocators.{words}", f"schedulers.{words}") else target


def _qualities(scheduler: DictConfig) -> list[str]:
    """What sets a scheduler apart from its class with first come, first served; usually nothing."""
    target, policy, told = (
        class_name(scheduler._target_),
        scheduler.get("policy", "fcfs"),
        scheduler.get("length_predictor"),
    )
    policy = class_name(policy._target_) if isinstance(policy, DictConfig) else str(policy)
    lanes, tokens = scheduler.get("max_num_seqs"), scheduler.get("max_num_batched_tokens")
    found = []
    if policy != "fcfs":
        found.append(policy + (f"({told})" if policy == "shortest_first" and told not in (None, "oracle") else ""))
    if _in_pieces(scheduler):
        found.append("sarathi")
    if target.startswith("static") and scheduler.get("max_wait_s"):
        found.append(f"full_of_{lanes}")
    if target == "static" and lanes is not None and tokens is not None and lanes >= tokens:
        found.append("memory_bound")
    if target == "past_future" and told not in (None, "history"):
        found.append(f"({told})")
    if "bucket_by" in scheduler:
        found.append(f"by_{scheduler.bucket_by}")
    return found


def _in_pieces(scheduler: DictConfig) -> bool:
    """Sarathi-Serve: continuous batching with prompts in pieces."""
    pieces = bool(scheduler.get("chunked_prefill")) and not scheduler.get("prefill_first")
    return pieces and scheduler._target_ == CONTINUOUS


def _caches(allocator: DictConfig) -> bool:
    """Whether prefixes are kept, by an allocator that can do without."""
    return bool(allocator.get("enable_prefix_caching")) and "enable_prefix_caching" in _defaults(allocator._target_)


def _changed(group: str, cfg: DictConfig, moved: Collection[str]) -> Iterator[str]:
    """``block_size=256``: what is not as the class has it by itself, and neither a size nor said in words."""
    said = SIZES | WORDS | ({"chunked_prefill"} if group == "scheduler" and _in_pieces(cfg.scheduler) else set())
    defaults = _defaults(str(cfg[group]._target_))
    for key, value in cfg[group].items():
        if key in defaults and key not in said and f"{group}.{key}" not in moved and value != defaults[key]:
            yield f"{key}={text(value)}"


def _defaults(target: str) -> dict[str, Any]:
    """Values that the arguments of a class have by themselves; nothing where there is no such class."""
    try:
        module, _, name = target.rpartition(".")
        known = arguments(getattr(importlib.import_module(module), name))
    except Exception:  # whatever it is: building it will tell
        return {}
    return {key: argument.default for key, argument in known.items()}
