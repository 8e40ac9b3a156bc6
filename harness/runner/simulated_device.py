"""A device of which only the time is known that its steps would take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any

from omegaconf import DictConfig, OmegaConf

from allocators.base import Allocator
from allocators.layout import KVLayout
from harness.errors import HarnessError
from harness.layout import layout_of
from harness.layout.weights import Weights, weights_of
from harness.runner.latency.base import Latency
from harness.runner.latency.choose import choose_latency, mismatch, who
from harness.runner.latency.hardware import Hardware, load_hardware
from harness.runner.latency.moves import MoveCosts
from harness.runner.model import plain_config
from harness.runner.pool import pool_units
from harness.runner.simulated import SimulatedModelRunner

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_BYTES = {"fp8": 1, "int8": 1}


def open_device(cfg: DictConfig, asked: Collection[str] = ()) -> SimulatedDevice:
    """See `harness.devices`."""
    device = SimulatedDevice(cfg, asked)
    _ = device.capacity, device.latency, device.moves  # what can be refused is refused now
    return device


def layout_for(cfg: DictConfig) -> KVLayout:
    """See `harness.devices`."""
    return SimulatedDevice(cfg).layout


class SimulatedDevice:
    """See `harness.devices.Device`. Each part is made once, when it is first asked for, from those above it.

    Args:
        cfg: the whole configuration.
        asked: dotted keys given on the command line.

    Raises:
        HarnessError: any part may.
    """

    sampler = None

    def __init__(self, cfg: DictConfig, asked: Collection[str] = ()) -> None:
        self.cfg = cfg
        self.asked = asked
        self.facts: dict[str, Any] = {"device": "simulated"}

    @cached_property
    def model(self) -> Any:
        """The model's config."""
        return plain_config(self.cfg.model)

    @cached_property
    def hardware(self) -> Hardware | None:
        """The machine that `device.hardware` names."""
        wanted = self.cfg.device.hardware
        if wanted is None:
            return None
        machine = load_hardware(wanted if isinstance(wanted, str) else OmegaConf.to_container(wanted))  # type: ignore[arg-type]
        size = ELEMENT_BYTES.get(self.cfg.device.get("dtype"))
        return replace(machine, element_bytes=size) if size else machine

    @cached_property
    def devices(self) -> int:
        """How many machines share the model."""
        wanted = self.cfg.device.tensor_parallel
        if type(wanted) is not int or wanted < 1:
            raise HarnessError(f"device.tensor_parallel={wanted}: must be a whole number of devices, at least 1")
        return wanted

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of a weight, and of a number in the KV cache.

        They follow `device.dtype` as on a real device; `auto` is what the hardware says, and 2 where none is named.
        """
        if self.hardware is not None:
            return self.hardware.element_bytes
        return ELEMENT_BYTES.get(self.cfg.device.get("dtype"), 2)

    @cached_property
    def layout(self) -> KVLayout:
        """What the model keeps."""
        kv_bytes = KV_BYTES.get(self.cfg.device.get("kv_dtype"))
        layout = layout_of(self.model, self.element_bytes, kv_bytes, tensor_parallel=self.devices)
        return layout.within(self.cfg.max_model_len)

    @cached_property
    def weights(self) -> Weights:
        """Of the model."""
        return weights_of(self.model)

    @cached_property
    def capacity(self) -> int:
        """Of the pool, in units of the layout; weights are all that lies beside it."""
        device_bytes = weight_bytes = 0
        if self.cfg.gpu_memory_utilization is not None:
            device_bytes = self.machine("gpu_memory_utilization").memory_bytes * self.devices
            weight_bytes = self.weights.parameters * self.element_bytes
        return pool_units(self.cfg, self.layout, device_bytes, weight_bytes)

    @cached_property
    def latency(self) -> Latency:
        """How long steps take."""
        return choose_latency(self)

    @cached_property
    def moves(self) -> MoveCosts | None:
        """What copies and swaps cost; None where no hardware is named."""
        return None if self.hardware is None else MoveCosts.of(self.layout, self.hardware)

    @property
    def name(self) -> str:
        return f"simulated: {who(self.cfg)}"

    @property
    def warnings(self) -> list[str]:
        return mismatch(self.cfg, self.asked)

    def machine(self, needed_by: str) -> Hardware:
        """The hardware, which somebody needs.

        Raises:
            HarnessError: none is named.
        """
        if self.hardware is None:
            raise HarnessError(f"{needed_by} needs device.hardware, for example device.hardware=a100_40gb")
        return self.hardware

    def runner(self, allocator: Allocator) -> SimulatedModelRunner:
        return SimulatedModelRunner(self.latency, self.cfg.simulation.exact_steps, self.moves, self.cfg.seed)
