"""What weights and KV pool of a real device will take, against the memory that is there, before any of it is taken."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from harness.errors import HarnessError
from harness.layout import layout_of
from harness.layout.weights import weights_of
from harness.naming.names import model_name
from harness.runner.model import plain_config
from harness.runner.pool import pool_units

CGROUP = Path("/sys/fs/cgroup")


def check_memory(cfg: DictConfig, element_bytes: int, free: Callable[[], int | None], resident: bool) -> None:
    """See that the weights and the KV pool of `cfg` fit.

    Args:
        element_bytes: of a weight, and of a number in the pool.
        free: bytes that can be had; None = unknown, so nothing is said.
        resident: the weights are there already.

    Raises:
        HarnessError: they do not; the message says how much they take, and what would take less.
    """
    try:
        config = plain_config(cfg.model)
        model, layout = weights_of(config), layout_of(config, element_bytes)
    except (AttributeError, HarnessError):  # a shape that is not counted here
        return
    per_slot = layout.token_bytes or layout.state_bytes
    weights, pool = 0 if resident else model.parameters * element_bytes, 0
    if cfg.gpu_memory_utilization is None:
        pool = pool_units(cfg, layout, None, None) * layout.unit_bytes
    slots = pool // per_slot
    there = free()
    if there is not None and weights + pool > there:
        gc.collect()  # the pool of a job before may hang in a circle of references
        there = free()
    if there is None or weights + pool <= there:
        return
    fits = max(int(0.9 * there) - weights, 0) // per_slot
    way = f"kv_slots={fits} would fit" if fits else "choose a smaller model, device.dtype=bfloat16 or device=simulated"
    raise HarnessError(
        f"the weights of model {model_name(cfg.model)} take {_gb(weights)} and a KV pool of {slots:,} slots "
        f"{_gb(pool)}, but only {_gb(there)} of memory are free here; {way}"
    )


def free_bytes() -> int | None:
    """Main memory that this process could still get: of the machine, and of its control group; None = unknown."""
    found = [size for size in (_machine(), _group()) if size is not None]
    return min(found, default=None)


def _machine() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:  # not Linux: all there is, free or not
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _group() -> int | None:
    """What a container's limit leaves (control groups, version 2); None without one."""
    try:
        limit, used = (CGROUP / name for name in ("memory.max", "memory.current"))
        return int(limit.read_text()) - int(used.read_text())
    except (OSError, ValueError):
        return None


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
