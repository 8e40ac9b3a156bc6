"""How many slots the KV pool has: one rule for real and simulated devices."""

from __future__ import annotations

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
        if not 0 < gpu_memory_utilization <= 1:
            raise HarnessError(f"gpu_memory_utilization must be above 0 and at most 1, got {gpu_memory_utilization}")
        if device_bytes is None or taken_bytes is None:
            raise HarnessError("gpu_memory_utilization needs a GPU; on a CPU set kv_slots or kv_bytes")
        kv_bytes = int(device_bytes * gpu_memory_utilization) - taken_bytes
        if kv_bytes < bytes_per_slot:
            raise HarnessError(
                f"gpu_memory_utilization={gpu_memory_utilization} leaves no room for a KV pool: weights and "
                f"activations take {taken_bytes / 2**30:.1f} of {device_bytes / 2**30:.1f} GiB"
            )
    if kv_bytes is not None:
        if isinstance(kv_bytes, bool) or not isinstance(kv_bytes, int | float) or kv_bytes != kv_bytes // 1:
            raise HarnessError(f"kv_bytes must be a whole number, got {kv_bytes!r}")
        if kv_bytes < bytes_per_slot:
            raise HarnessError(f"kv_bytes={kv_bytes} is less than one slot of {bytes_per_slot} bytes")
        return int(kv_bytes) // bytes_per_slot  # 12e9 is a float, and how one writes it
    if isinstance(kv_slots, bool) or not isinstance(kv_slots, int) or kv_slots < 1:
        raise HarnessError(f"kv_slots must be a whole number of at least 1, got {kv_slots!r}")
    return kv_slots
