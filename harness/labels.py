"""What a row is called, derived from the configuration that ran and never from the name of a config file."""

from __future__ import annotations

import re

from omegaconf import DictConfig

KNOWN = {
    ("Continuous", "Buddy", "max_model_len"): "Orca (Max)",
    ("Continuous", "Buddy", "pow2"): "Orca (Pow2)",
    ("Continuous", "Buddy", "exact"): "Orca (Oracle)",
    ("Continuous", "Paged", "on_demand"): "vLLM",
    ("Continuous", "Virtual", "on_demand"): "vAttention",
    ("VllmV1", "Paged", "on_demand"): "vLLM v1",
    ("Ideal", "Paged", "on_demand"): "Ideal",
}


def parts(cfg: DictConfig) -> dict[str, str]:
    """allocator, reservation and scheduler as short names."""
    allocator = _short(cfg.allocator._target_).lower()
    fit = cfg.allocator.get("fit", "slab")
    if allocator == "contiguous" and fit != "slab":
        allocator = f"{allocator}:{fit}"
        allocator += ", compacting" if cfg.allocator.get("compaction", "never") != "never" else ""
        allocator += ", growing" if cfg.allocator.get("growth", 0) else ""
    return {
        "allocator": allocator,
        "reservation": _short(cfg.reservation._target_),
        "scheduler": " ".join([class_name(cfg.scheduler._target_), *_qualities(cfg.scheduler)]),
    }


def label(cfg: DictConfig) -> str:
    """The published name of a system if it has one, else what it is made of."""
    if cfg.label:
        return str(cfg.label)
    qualities = _qualities(cfg.scheduler)
    key = (_short(cfg.scheduler._target_), _short(cfg.allocator._target_), _short(cfg.reservation._target_))
    if key in KNOWN and not qualities:
        return KNOWN[key]
    part = parts(cfg)
    return f"{part['scheduler']} + {part['allocator']}({part['reservation']})"


def _qualities(scheduler: DictConfig) -> list[str]:
    """What sets a scheduler apart from its class with first come, first served; usually nothing."""
    target, policy, told = (
        _short(scheduler._target_),
        scheduler.get("policy", "fcfs"),
        scheduler.get("length_predictor"),
    )
    policy = class_name(policy._target_) if isinstance(policy, DictConfig) else str(policy)
    lanes, tokens = scheduler.get("max_num_seqs"), scheduler.get("max_num_batched_tokens")
    found = []
    if policy != "fcfs":
        found.append(policy + (f"({told})" if policy == "shortest_first" and told not in (None, "oracle") else ""))
    if target == "Continuous" and scheduler.get("chunked_prefill") and not scheduler.get("prefill_first"):
        found.append("sarathi")
    if target.startswith("Static") and scheduler.get("max_wait_s"):
        found.append(f"full_of_{lanes}")
    if target == "Static" and lanes is not None and tokens is not None and lanes >= tokens:
        found.append("memory_bound")
    if target == "PastFuture" and told not in (None, "history"):
        found.append(f"({told})")
    if "bucket_by" in scheduler:
        found.append(f"by_{scheduler.bucket_by}")
    return found


def class_name(target: str) -> str:
    """`vllm_v1` of `schedulers.vllm_v1.VllmV1`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _short(target)).lower()


def _short(target: str) -> str:
    return target.rpartition(".")[2]
