"""What is known of a machine: its peaks, its memory, and the share of the peaks that kernels reach."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from harness.errors import HarnessError
from harness.files import parse_yaml
from harness.lookup import hint

FOLDER = Path(__file__).parent
MAY_BE_0 = ("link_gb_per_s", "link_latency_us", "host_gb_per_s", "host_copy_us")


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    Attributes:
        name: for people.
        tflops: dense peak of the dtype that models run in, 10^12 FLOP/s.
        memory_gb_per_s: peak of its main memory, 10^9 byte/s.
        memory_bytes: what a process can use of it.
        link_gb_per_s: to its peers with tensor parallelism, 10^9 byte/s one way.
        element_bytes: bytes of a weight or of a number in the KV cache.
        compute_efficiency: share of the peak that large matrix products reach (0.6-0.7 is usual for tuned libraries).
        memory_efficiency: share of the peak that streaming weights or KV reaches.
        link_latency_us: what a collective costs beyond its bytes.
        host_gb_per_s: to and from host memory, 10^9 byte/s one way (PCIe 4.0 x16 reaches about 25).
        host_copy_us: what each copy to or from host memory costs beyond its bytes: one move, in one layer, of K or V.
            1.5 is what Fig. 19a of the PagedAttention paper implies for an A100 (swaps of small blocks).
    """

    name: str
    tflops: float
    memory_gb_per_s: float
    memory_bytes: int
    link_gb_per_s: float
    element_bytes: int = 2
    compute_efficiency: float = 0.65
    memory_efficiency: float = 0.85
    link_latency_us: float = 10.0
    host_gb_per_s: float = 25.0
    host_copy_us: float = 1.5

    def __post_init__(self) -> None:
        for item in fields(self)[1:]:
            value, kind = getattr(self, item.name), "whole number" if item.type == "int" else "number"
            number = isinstance(value, int if item.type == "int" else int | float) and not isinstance(value, bool)
            if not number or not (0 <= value < math.inf) or (value == 0 and item.name not in MAY_BE_0):
                least = "of at least 0" if item.name in MAY_BE_0 else "above 0"
                raise ValueError(f"{item.name} must be a {kind} {least}, not {value!r:.60}")

    @property
    def flops_per_ns(self) -> float:
        return self.tflops * 1e3 * self.compute_efficiency

    @property
    def bytes_per_ns(self) -> float:
        return self.memory_gb_per_s * self.memory_efficiency


def names() -> list[str]:
    """Of the machines that are known."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_hardware(name: str | Hardware | dict[str, Any]) -> Hardware:
    """A known machine, the machine of a YAML file, or the machine of a mapping.

    Raises:
        HarnessError: no such machine or file, or keys it does not know.
    """
    if isinstance(name, Hardware):
        return name
    if isinstance(name, str):
        path = FOLDER / f"{name}.yaml" if (FOLDER / f"{name}.yaml").is_file() else Path(name)
        if not path.is_file():
            meant = hint(name, names())
            raise HarnessError(f"device.hardware={name}: there are {', '.join(names())}, or a YAML file{meant}")
        name = _read(path)
    try:
        return Hardware(**name)
    except ValueError as error:
        raise HarnessError(f"device.hardware: {error}") from error
    except TypeError as error:
        known = ", ".join(item.name for item in fields(Hardware))
        raise HarnessError(f"device.hardware: {error}; the keys are {known}") from error


def _read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise HarnessError(f"device.hardware={path} can't be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise HarnessError(f"device.hardware={path} must be a mapping with the keys "
                           f"{', '.join(item.name for item in fields(Hardware))}")  # fmt: skip
    return values
