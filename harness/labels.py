"""What a row is called, derived from the configuration that ran and never from the name of a config file."""

from __future__ import annotations

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
        "scheduler": _short(cfg.scheduler._target_).lower(),
    }


def label(cfg: DictConfig) -> str:
    """The published name of a system if it has one, else what it is made of."""
    if cfg.label:
        return str(cfg.label)
    key = (_short(cfg.scheduler._target_), _short(cfg.allocator._target_), _short(cfg.reservation._target_))
    if key in KNOWN:
        return KNOWN[key]
    part = parts(cfg)
    return f"{part['scheduler']} + {part['allocator']}({part['reservation']})"


def _short(target: str) -> str:
    return target.rpartition(".")[2]
