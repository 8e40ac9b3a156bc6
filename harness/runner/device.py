"""From the configuration to a real runner: device, dtype, threads, weights, pool."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from kvlab_kernels.dispatch import Backend, backend_for
from omegaconf import DictConfig, OmegaConf

from allocators.base import Allocator
from allocators.layout import KVLayout
from harness.errors import HarnessError
from harness.layout import layout_of
from harness.runner.flat import Step, as_it_is, flatten
from harness.runner.model import ModelShape, build_model, read_config, shape_of, turn_weights
from harness.runner.packing import Packed
from harness.runner.pool import pool_units
from harness.runner.torch_runner import TorchModelRunner
from harness.workload import prompt_tokens

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Device:
    """A device with a model on it, ready for pools of any size.

    Attributes:
        step: computes what the model does.
        facts: what `environment.json` says of it.
    """

    device: torch.device
    dtype: torch.dtype
    model: Any
    shape: ModelShape
    layout: KVLayout
    backend: Backend
    seed: int
    facts: dict[str, Any]
    step: Step

    def capacity(self, cfg: DictConfig) -> int:
        """Slots in the pool that `cfg` asks for."""
        total = taken = None
        if self.device.type == "cuda" and cfg.gpu_memory_utilization is not None:
            taken = self._taken_at_peak(cfg)
            total = torch.cuda.get_device_properties(self.device).total_memory
        slots = pool_units(cfg, self.layout, total, taken)
        self.facts["kv_pool_bytes"] = slots * self.layout.unit_bytes
        return slots

    def runner(self, allocator: Allocator) -> TorchModelRunner:
        """A runner with an empty pool for `allocator`."""
        shape, (group, *others) = self.shape, self.layout.groups
        if others or group.key_width != group.value_width:
            raise HarnessError(
                "a model whose layers keep different things, or K and V of different widths, can't be run"
            )
        size = (len(group.layers), 2, allocator.capacity + 1, group.heads, group.key_width)
        try:
            kv = torch.zeros(size, dtype=self.dtype, device=self.device)
        except RuntimeError as error:
            raise HarnessError(f"a KV pool of {allocator.capacity} slots does not fit the device: {error}") from error
        return TorchModelRunner(
            self.model, kv, allocator, self.backend, lambda r: prompt_tokens(r, shape.vocab_size, self.seed), self.step,
            self.seed,
        )  # fmt: skip

    def _taken_at_peak(self, cfg: DictConfig) -> int:
        """Bytes in use at the peak of the largest step: a prompt of `max_num_batched_tokens` in a tiny pool."""
        tokens = min(cfg.scheduler.max_num_batched_tokens, max(cfg.max_model_len, 1))
        pieces = -(-cfg.scheduler.max_num_batched_tokens // tokens)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        runner = self.runner(_Extent(tokens))
        runner.forward(prefill_of([tokens] * pieces))
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        outside_torch = total - free - torch.cuda.memory_reserved(self.device)
        taken = torch.cuda.max_memory_allocated(self.device) + outside_torch
        del runner
        torch.cuda.empty_cache()
        return taken


def open_device(cfg: DictConfig) -> Device:
    """The device, model and kernels of `cfg`; kept for the next job if that asks for the same."""
    wanted = OmegaConf.create({"model": cfg.model, "device": cfg.device, "seed": cfg.seed})
    return _open(OmegaConf.to_yaml(wanted, resolve=True))


@lru_cache(maxsize=1)
def _open(key: str) -> Device:
    cfg = OmegaConf.create(key)
    device = _torch_device(cfg.device.kind)
    dtype = _dtype(cfg.device.dtype, device)
    config = read_config(cfg.model)
    model = build_model(cfg.model, config, device, dtype, cfg.seed)
    try:
        backend = backend_for(device, dtype, cfg.device.kernels)
    except (ValueError, ImportError) as error:
        raise HarnessError(f"device.kernels={cfg.device.kernels}: {error}") from error
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "kernels": backend.name,
        "kernels_reason": backend.reason,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    layout = layout_of(config, dtype.itemsize)
    opened = Device(device, dtype, model, shape_of(config), layout, backend, cfg.seed, facts, as_it_is(model))
    if device.type == "cpu":
        if dtype == torch.float32:
            turn_weights(model)
        facts |= _flatten(opened, cfg.device.get("flatten", "auto"))
        facts |= _choose_threads(opened, cfg.device.threads)
    return opened


def _flatten(device: Device, wanted: bool | str) -> dict[str, Any]:
    """Replace the model by what was traced from it, where that works and says the same of made-up steps."""
    if wanted is False:
        return {"flattened": False, "flattened_reason": "as configured"}
    steps = [prefill_of([9, 15]), decode_of(3, 7), decode_of(1, 7)]
    for step in steps:
        step.ids = np.random.default_rng(0).integers(0, device.shape.vocab_size, len(step.ids))
    said = [device.runner(_Extent(16)).forward(step) for step in steps]
    try:
        device.step = flatten(device.model)
        now = [device.runner(_Extent(16)).forward(step) for step in steps]
        difference = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(said, now, strict=True))
        if difference <= torch.finfo(device.dtype).eps ** 0.5:
            return {"flattened": True, "flattened_reason": f"logits differ by {difference:.0e} of the largest"}
        reason = f"logits differed by {difference:.0e} of the largest"
    except Exception as error:  # a tracer can meet anything
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    device.step = as_it_is(device.model)
    return {"flattened": False, "flattened_reason": reason}


def warm_up(runner: TorchModelRunner, cfg: DictConfig) -> dict[str, Any]:
    """Run one step of each kind and capture decode graphs, so that nothing is compiled or first met under the clock.

    Returns:
        Whether graphs were captured, and why not.
    """
    allocator, max_tokens = runner.allocator, cfg.scheduler.max_num_batched_tokens
    for lanes in (1, 2, 8, 64):
        runner.forward(decode_of(lanes, min(64, allocator.capacity)))
    runner.forward(prefill_of([min(max_tokens, allocator.capacity, 64)] * 2))
    if runner.device.type != "cuda":
        return {}
    facts = _capture(runner, cfg) if cfg.device.cuda_graphs else {"cuda_graphs": False, "cuda_graphs_reason": "off"}
    torch.cuda.synchronize(runner.device)
    return facts


def _capture(runner: TorchModelRunner, cfg: DictConfig) -> dict[str, Any]:
    smallest = runner.allocator.footprint(1) or 1
    lanes = min(cfg.scheduler.max_num_seqs, runner.allocator.capacity // smallest)
    try:
        runner.capture(lanes, cfg.max_model_len)
    except (RuntimeError, NotImplementedError) as error:  # steps run one kernel at a time instead
        runner.graphs = None
        return {"cuda_graphs": False, "cuda_graphs_reason": str(error).split("\n")[0]}
    return {"cuda_graphs": True, "cuda_graphs_reason": f"decode steps of up to {lanes} lanes"}


def decode_of(lanes: int, length: int) -> Packed:
    """A made-up step of `lanes` decodes that all look at row 0 and write to slot 0."""
    none, ids, slots = np.zeros(1, np.int32), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    lengths = np.full(lanes, length, np.int32)
    return Packed(ids, ids + length - 1, slots, lengths * 0, lengths, none, lanes, np.arange(lanes), [])


def prefill_of(prompts: list[int]) -> Packed:
    """A made-up step of prompts that all lie in row 0."""
    where = np.concatenate([np.arange(n) for n in prompts])
    starts = np.cumsum([0, *prompts]).astype(np.int32)
    lengths = np.array(prompts, np.int32)
    due = starts[1:].astype(np.int64) - 1
    return Packed(where * 0, where, where * 0, lengths * 0, lengths, starts, 0, due, [])


class _Extent(Allocator):
    """One extent from slot 0 in row 0: what made-up steps lie in."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, capacity)
        self.tables[:] = 0

    def footprint(self, tokens: int) -> int | None:
        return None

    def place(self, holder: Any, tokens: int) -> int | None:
        return None

    def release(self, holder: Any) -> None: ...

    def spans(self, holder: Any) -> list[tuple[int, int]]:
        return []


def _torch_device(kind: str) -> torch.device:
    if kind not in ("auto", "cuda", "cpu"):
        raise HarnessError(f"device.kind={kind}: there are auto, cuda, cpu and simulated")
    if kind == "cuda" and not torch.cuda.is_available():
        raise HarnessError("device=cuda: torch sees no CUDA device here; use device=cpu or device=auto")
    return torch.device("cuda:0" if kind != "cpu" and torch.cuda.is_available() else "cpu")


def dtype_of(cfg: DictConfig) -> torch.dtype:
    """The dtype of weights and KV cache on the device of `cfg`."""
    return _dtype(cfg.device.dtype, _torch_device(cfg.device.kind))


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise HarnessError(f"device.dtype={name}: there are auto, {', '.join(DTYPES)}")
    return DTYPES[name]


@torch.inference_mode()
def _choose_threads(device: Device, wanted: int | str) -> dict[str, Any]:
    """Set the number of threads: as asked, or the faster of one and all, timed in turn on a decode step."""
    if wanted != "auto":
        _set_threads(int(wanted))
        return {"threads": int(wanted), "threads_reason": "as configured"}
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if every == 1:
        _set_threads(1)
        return {"threads": 1, "threads_reason": "one processor"}
    runner = device.runner(_Extent(512))
    step, times, end = decode_of(16, 256), {1: list[float](), every: list[float]()}, time.perf_counter() + 1.5
    while time.perf_counter() < end or len(times[every]) < 5:
        for threads in times:
            _set_threads(threads)
            runner.forward(step)  # the first one after a change wakes the threads
            start = time.perf_counter()
            runner.forward(step)
            times[threads].append(time.perf_counter() - start)
    medians = {threads: float(np.median(spent[1:])) * 1e3 for threads, spent in times.items()}
    best = min(medians, key=lambda threads: medians[threads])
    _set_threads(best)
    told = ", ".join(f"{threads} -> {ms:.2f} ms" for threads, ms in medians.items())
    return {"threads": best, "threads_reason": f"faster at warm-up, a step of 16 decodes: {told}"}


def _set_threads(threads: int) -> None:
    import numba

    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
