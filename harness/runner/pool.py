"""How many slots the KV pool has: one rule for real and simulated devices."""

from __future__ import annotations

from harness.config.keys.run import MOST_SLOTS
from harness.errors import HarnessError


def pool_slots(kv_slots: int | None, kv_bytes: int | None, gpu_memory_utilization: float | None, bytes_per_slot: int,
               device_bytes: int | None, taken_bytes: int | None) -> int:  # fmt: skip
    """Slots in the pool; the most specific wish wins: `gpu_memory_utilization`, then `kv_bytes`, then `kv_slots`.

    Args:
        bytes_per_slot: K and V of one token in every layer.
        device_bytes: memory of the device; None where it is not known (CPU).
        taken_bytes: weights, activations at their peak and whatever else lies on the device.

    Raises:
        HarnessError: no wish, a wish that makes no sense, or less room than one slot.
    """
    if gpu_memory_utilization is not None:
        if device_bytes is None or taken_bytes is None:
            raise HarnessError("gpu_memory_utilization needs a GPU; on a CPU set kv_slots or kv_bytes")
        kv_bytes = int(device_bytes * gpu_memory_utilization) - taken_bytes
        if kv_bytes < bytes_per_slot:
            raise HarnessError(
                f"gpu_memory_utilization={gpu_memory_utilization} leaves no room for a KV pool: weights and "
                f"activations take {taken_bytes / 2**30:.1f} of {device_bytes / 2**30:.1f} GiB"
            )
    if kv_bytes is not None:
        if kv_bytes < bytes_per_slot:
            raise HarnessError(f"kv_bytes={kv_bytes} is less than one slot of {bytes_per_slot} bytes")
        kv_slots = kv_bytes // bytes_per_slot
        if kv_slots > MOST_SLOTS:
            raise HarnessError(f"kv_bytes={kv_bytes} are {kv_slots:,} slots of {bytes_per_slot} bytes; a pool has at "
                               f"most {MOST_SLOTS:,}")  # fmt: skip
    if kv_slots is None:
        raise HarnessError("kv_slots is null, and so are kv_bytes and gpu_memory_utilization")
    return kv_slots
