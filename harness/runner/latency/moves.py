"""How long the moves of a step take on a simulated device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocators.base import Move
from harness.runner.latency.hardware import Hardware
from harness.runner.latency.weights import Weights

LAUNCH_NS = 5_000  # of the one kernel that makes all copies of a step


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """Copies read and write device memory; swaps cross the bus, and each piece of each is started by the host.

    Attributes:
        slot_bytes: K and V of one token in every layer, of one device's share.
        pieces: separate copies that one swapped move takes: K and V of every layer.
        hardware: of each device.
    """

    slot_bytes: float
    pieces: int
    hardware: Hardware

    @classmethod
    def of(cls, weights: Weights, hardware: Hardware, tensor_parallel: int = 1) -> MoveCosts:
        return cls(weights.slot_bytes(hardware.element_bytes) / tensor_parallel, 2 * weights.layers, hardware)

    def ns(self, moves: Iterable[Move]) -> int:
        """Of all moves of a step, one after the other."""
        copied = swapped = swaps = 0
        for move in moves:
            if move.kind == "copy":
                copied += move.length
            else:
                swapped += move.length
                swaps += 1
        total = 0.0
        if copied:
            total += LAUNCH_NS + 2 * copied * self.slot_bytes / self.hardware.bytes_per_ns
        if swaps:
            total += swapped * self.slot_bytes / self.hardware.host_gb_per_s
            total += swaps * self.pieces * self.hardware.host_copy_us * 1e3
        return round(total)
