"""What is known of a machine: its peaks, its memory, and the share of the peaks that kernels reach."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from harness.errors import HarnessError

FOLDER = Path(__file__).parent


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
            near = get_close_matches(name, names(), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise HarnessError(f"device.hardware={name}: there are {', '.join(names())}, or a YAML file{hint}")
        name = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        return Hardware(**name)  # type: ignore[arg-type]
    except TypeError as error:
        known = ", ".join(item.name for item in fields(Hardware))
        raise HarnessError(f"device.hardware: {error}; the keys are {known}") from error
