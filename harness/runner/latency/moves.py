"""How long the moves of a step take on a simulated device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocators.base import Move
from allocators.layout import KVLayout
from harness.runner.latency.hardware import Hardware

LAUNCH_NS = 5_000  # of the one kernel that makes all copies of a step


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """Copies read and write device memory; swaps cross the bus, and each piece of each is started by the host.

    Attributes:
        unit_bytes: of what moves are counted in (a slot, mostly), of one device's share.
        pieces: separate copies that one swapped move takes: K and V of every layer.
        hardware: of each device.
    """

    unit_bytes: float
    pieces: int
    hardware: Hardware

    @classmethod
    def of(cls, layout: KVLayout, hardware: Hardware) -> MoveCosts:
        pieces = sum(len(group.layers) * group.tensors for group in layout.groups)
        return cls(layout.unit_bytes / layout.devices, pieces, hardware)

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
            total += LAUNCH_NS + 2 * copied * self.unit_bytes / self.hardware.bytes_per_ns
        if swaps:
            total += swapped * self.unit_bytes / self.hardware.host_gb_per_s
            total += swaps * self.pieces * self.hardware.host_copy_us * 1e3
        return round(total)
