"""How large the KV pool is: one rule for real and simulated devices."""

from __future__ import annotations

from typing import Any

from allocators.layout import KVLayout
from harness.errors import HarnessError
from harness.schema.keys.run import MOST_SLOTS


def pool_units(cfg: Any, layout: KVLayout, device_bytes: int | None, taken_bytes: int | None) -> int:
    """Size of the pool, in units of `layout`: slots, or bytes where layers keep different tokens.

    The most specific wish wins: `gpu_memory_utilization`, then `kv_bytes`, then `kv_slots`, the bytes of so many tokens
    kept in every layer that keeps tokens (states come out of the same bytes).

    Args:
        cfg: the configuration with those three keys.
        device_bytes: memory of the device; None where it is not known (CPU).
        taken_bytes: weights, activations at their peak and whatever else lies on the device.

    Raises:
        HarnessError: no wish, a wish that makes no sense, or less room than one slot.
    """
    share, kv_bytes, kv_slots = cfg.gpu_memory_utilization, cfg.kv_bytes, cfg.kv_slots
    slot = layout.token_bytes or layout.state_bytes
    if share is not None:
        kv_bytes = _left(share, slot, device_bytes, taken_bytes)
    if kv_bytes is not None:
        if kv_bytes < slot:
            raise HarnessError(f"kv_bytes={kv_bytes} is less than one slot of {slot} bytes")
        if kv_bytes // slot > MOST_SLOTS:
            slots = f"{kv_bytes // slot:,} slots of {slot} bytes"
            raise HarnessError(f"kv_bytes={kv_bytes} are {slots}; a pool has at most {MOST_SLOTS:,}")
        return int(kv_bytes) // layout.unit_bytes
    if kv_slots is None:
        raise HarnessError("kv_slots is null, and so are kv_bytes and gpu_memory_utilization")
    if not layout.token_bytes:
        raise HarnessError(f"kv_slots={kv_slots}: no layer of the model keeps tokens; set kv_bytes")
    return int(kv_slots * layout.token_bytes // layout.unit_bytes)


def _left(share: float, slot: int, device_bytes: int | None, taken_bytes: int | None) -> int:
    """Bytes that a share of a device's memory leaves for the pool."""
    if device_bytes is None or taken_bytes is None:
        raise HarnessError("gpu_memory_utilization needs a GPU; on a CPU set kv_slots or kv_bytes")
    left = int(device_bytes * share) - taken_bytes
    if left < slot:
        raise HarnessError(
            f"gpu_memory_utilization={share} leaves no room for a KV pool: weights and activations take "
            f"{taken_bytes / 2**30:.1f} of {device_bytes / 2**30:.1f} GiB"
        )
    return left
