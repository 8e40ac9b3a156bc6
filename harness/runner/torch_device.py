"""A device on which torch computes every step of a real model."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import torch
from omegaconf import DictConfig

from allocators.base import Allocator
from allocators.layout import KVLayout
from harness.layout import layout_of
from harness.runner.device import Loaded, dtype_of, load
from harness.runner.dummy import DummyAllocator, dummy_decode, dummy_prefill, row_0_at_slot_0
from harness.runner.model import read_config
from harness.runner.nvml import NvmlSampler
from harness.runner.pool import pool_units
from harness.runner.torch_runner import TorchModelRunner


def open_device(cfg: DictConfig, asked: Collection[str] = ()) -> TorchDevice:
    """See `harness.devices`."""
    device = TorchDevice(cfg, load(cfg))
    device.facts["kv_pool_bytes"] = device.capacity * device.layout.unit_bytes
    return device


def layout_for(cfg: DictConfig) -> KVLayout:
    """See `harness.devices`."""
    return layout_of(read_config(cfg.model), dtype_of(cfg).itemsize)


class TorchDevice:
    """See `harness.devices.Device`.

    Args:
        cfg: the whole configuration.
        loaded: its model, which other jobs may use after this one.
    """

    def __init__(self, cfg: DictConfig, loaded: Loaded) -> None:
        self.cfg = cfg
        self.loaded = loaded
        self.facts: dict[str, Any] = {**loaded.facts}
        self.warnings: list[str] = []
        self.sampler = NvmlSampler() if loaded.device.type == "cuda" else None

    @property
    def name(self) -> str:
        return str(self.facts["device"])

    @property
    def layout(self) -> KVLayout:
        return self.loaded.layout.within(self.cfg.max_model_len)

    @cached_property
    def capacity(self) -> int:
        """Of the pool that the configuration asks for, in units of the layout."""
        total = taken = None
        if self.loaded.device.type == "cuda" and self.cfg.gpu_memory_utilization is not None:
            taken = self._taken_at_peak()
            total = torch.cuda.get_device_properties(self.loaded.device).total_memory
        return pool_units(self.cfg, self.layout, total, taken)

    def runner(self, allocator: Allocator) -> TorchModelRunner:
        """A runner with an empty pool for `allocator`, warmed up."""
        runner = self.loaded.runner(allocator)
        self.facts |= warm_up(runner, self.cfg)
        return runner

    def _taken_at_peak(self) -> int:
        """Bytes in use at the peak of the largest step: a prompt of `max_num_batched_tokens` in a tiny pool."""
        device, budget = self.loaded.device, self.cfg.scheduler.max_num_batched_tokens
        tokens = min(budget, max(self.cfg.max_model_len, 1))
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        runner = self.loaded.runner(DummyAllocator.extent(tokens))
        runner.forward(dummy_prefill([tokens] * -(-budget // tokens)))
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        outside_torch = total - free - torch.cuda.memory_reserved(device)
        taken = torch.cuda.max_memory_allocated(device) + outside_torch
        del runner
        torch.cuda.empty_cache()
        return taken


def warm_up(runner: TorchModelRunner, cfg: DictConfig) -> dict[str, Any]:
    """Run one step of each kind and capture decode graphs, so that nothing is compiled or first met under the clock.

    Returns:
        Whether graphs were captured, and why not.
    """
    allocator, max_tokens = runner.allocator, cfg.scheduler.max_num_batched_tokens
    longest = min(64, allocator.capacity, allocator.max_model_len)
    with row_0_at_slot_0(allocator):
        for lanes in (1, 2, 8, 64):
            runner.forward(dummy_decode(lanes, longest))
        runner.forward(dummy_prefill([min(max_tokens, longest)] * 2))
    if runner.device.type != "cuda":
        return {}
    facts = capture(runner, cfg) if cfg.device.cuda_graphs else {"cuda_graphs": False, "cuda_graphs_reason": "off"}
    torch.cuda.synchronize(runner.device)
    return facts


def capture(runner: TorchModelRunner, cfg: DictConfig) -> dict[str, Any]:
    """Capture decode graphs, if the model's steps can be; what `environment.json` says of it."""
    smallest = runner.allocator.footprint(1) or 1
    lanes = min(cfg.scheduler.max_num_seqs, runner.allocator.capacity // smallest)
    try:
        runner.capture(lanes, min(cfg.max_model_len, runner.allocator.capacity))
    except (RuntimeError, NotImplementedError) as error:  # steps run one kernel at a time instead
        runner.graphs = None
        return {"cuda_graphs": False, "cuda_graphs_reason": str(error).split("\n")[0]}
    return {"cuda_graphs": True, "cuda_graphs_reason": f"decode steps of up to {lanes} lanes"}
