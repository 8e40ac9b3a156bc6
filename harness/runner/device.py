"""From the configuration to a model on a device of torch: dtype, weights, kernels, threads."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from kvlab_kernels.dispatch import Backend, backend_for
from omegaconf import DictConfig, OmegaConf

from allocators.base import Allocator
from allocators.layout import KVLayout
from harness.errors import HarnessError
from harness.runner.auto_check import auto_check
from harness.runner.dummy import DummyAllocator, dummy_decode, dummy_prefill
from harness.runner.flat import Step, as_it_is, flatten
from harness.runner.group_pool import GroupPool
from harness.runner.kv_pool import KVPool
from harness.runner.memory import check_memory, free_bytes
from harness.runner.model import build_model, column_major_weights, read_config
from harness.runner.probe import Probed, probe
from harness.runner.refusals import refuse_kernels, refuse_lengths
from harness.runner.torch_runner import TorchModelRunner
from harness.workload import prompt_tokens

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Loaded:
    """A model on a device, ready for pools of any size.

    Attributes:
        probed: what the model keeps of each token, and how it attends.
        step: computes what the model does.
        facts: what `environment.json` says of it.
    """

    device: torch.device
    dtype: torch.dtype
    model: Any
    probed: Probed
    layout: KVLayout
    backend: Backend
    seed: int
    facts: dict[str, Any]
    step: Step

    def runner(self, allocator: Allocator) -> TorchModelRunner:
        """A runner with an empty pool for `allocator`.

        Raises:
            HarnessError: it does what is not modelled for this model.
        """
        who = f"model {self.model.config.model_type}"
        if self.probed.calls.mixers and allocator.shares:
            raise HarnessError(f"{who}: of its recurrent layers no state is kept for a prefix, so none can be shared; "
                               "use an allocator without prefix caching")  # fmt: skip
        pool: KVPool | GroupPool
        if allocator.by_slot:
            pool = KVPool(self.probed, allocator.capacity + 1, self.dtype, self.device)
        elif not allocator.group_layers or self.probed.calls.most:
            raise HarnessError(f"{who}: {type(allocator).__name__} places layers apart, which is simulated only")
        else:
            unit_bytes = self.layout.within(allocator.max_model_len).unit_bytes
            pool = GroupPool(self.probed, allocator, unit_bytes, self.dtype, self.device)
        size = self.vocabulary
        return TorchModelRunner(
            self.model, pool, self.probed.calls, allocator, self.backend, lambda r: prompt_tokens(r, size, self.seed),
            self.step, self.seed,
        )  # fmt: skip

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return int(self.model.config.get_text_config().vocab_size)


def load(cfg: DictConfig) -> Loaded:
    """The model of `cfg` on its device, with its kernels; kept for the next job if that asks for the same.

    Raises:
        HarnessError: whatever of them can't be had or is not modelled; it is known before anything runs.
    """
    wanted = OmegaConf.create({"model": cfg.model, "device": cfg.device, "seed": cfg.seed})
    key = OmegaConf.to_yaml(wanted, resolve=True)
    if key not in _LOADED:
        _LOADED.clear()  # two of them may not fit
    if (device := _torch_device(cfg.device.kind)).type == "cpu":
        check_memory(cfg, dtype_of(cfg).itemsize, free_bytes, resident=key in _LOADED)
    else:  # all of its memory: what others hold of it may be about to be freed
        total = torch.cuda.get_device_properties(device).total_memory
        check_memory(cfg, dtype_of(cfg).itemsize, lambda: total, resident=False)
    if key not in _LOADED:
        _LOADED[key] = _load(key)
    refuse_lengths(_LOADED[key].model, cfg.max_model_len)
    return _LOADED[key]


_LOADED: dict[str, Loaded] = {}  # the last one, by what was asked for


def open_model(cfg: DictConfig) -> tuple[Any, Backend]:
    """The model of `cfg` on its device, with our attention, and the kernels that it is computed with.

    Raises:
        HarnessError: there is no such device, dtype or backend, or no such model.
    """
    device = _torch_device(cfg.device.kind)
    dtype = _dtype(cfg.device.dtype, device)
    model = build_model(cfg.model, read_config(cfg.model), device, dtype, cfg.seed)
    try:
        return model, backend_for(device, dtype, cfg.device.kernels)
    except (ValueError, ImportError) as error:
        raise HarnessError(f"device.kernels={cfg.device.kernels}: {error}") from error


def _load(key: str) -> Loaded:
    cfg: Any = OmegaConf.create(key)
    model, backend = open_model(cfg)
    device, dtype = model.device, model.dtype
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "kernels": backend.name,
        "kernels_reason": backend.reason,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    probed = probe(model)
    refuse_kernels(model, probed, backend)
    layout = probed.layout(dtype.itemsize)
    facts["attention"] = "the model's own, over a dense mask: slow" if probed.calls.most else "ours"
    loaded = Loaded(device, dtype, model, probed, layout, backend, cfg.seed, facts, as_it_is(model))
    facts["check"] = auto_check(model, backend, cfg.device.get("check", "auto"))
    if device.type == "cpu":
        if dtype == torch.float32:
            column_major_weights(model)
        facts |= _flatten(loaded, cfg.device.get("flatten", "auto"))
        facts |= _choose_threads(loaded, cfg.device.threads)
    return loaded


def _flatten(loaded: Loaded, wanted: bool | str) -> dict[str, Any]:
    """Replace the model by what was traced from it, where that works and says the same of made-up steps."""
    if loaded.probed.calls.most:
        return {"flattened": False, "flattened_reason": "the model's own attention is called as it is"}
    if wanted is False:
        return {"flattened": False, "flattened_reason": "as configured"}
    steps = [dummy_prefill([9, 15]), dummy_decode(3, 7), dummy_decode(1, 7)]
    for step in steps:
        step.ids = np.random.default_rng(0).integers(0, loaded.vocabulary, len(step.ids))
    said = [loaded.runner(DummyAllocator.extent(16)).forward(step) for step in steps]
    try:
        loaded.step = flatten(loaded.model, loaded.probed.calls)
        now = [loaded.runner(DummyAllocator.extent(16)).forward(step) for step in steps]
        difference = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(said, now, strict=True))
        if difference <= torch.finfo(loaded.dtype).eps ** 0.5:
            return {"flattened": True, "flattened_reason": f"logits differ by {difference:.0e} of the largest"}
        reason = f"logits differed by {difference:.0e} of the largest"
    except Exception as error:  # a tracer can meet anything
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    loaded.step = as_it_is(loaded.model)
    return {"flattened": False, "flattened_reason": reason}


def _torch_device(kind: str) -> torch.device:
    if kind not in ("auto", "cuda", "cpu"):
        raise HarnessError(f"device.kind={kind}: there are auto, cuda, cpu and simulated")
    if kind == "cuda" and not torch.cuda.is_available():
        raise HarnessError("device=cuda: torch sees no CUDA device here; use device=cpu or device=auto")
    return torch.device("cuda:0" if kind != "cpu" and torch.cuda.is_available() else "cpu")


def dtype_of(cfg: DictConfig) -> torch.dtype:
    """The dtype of weights and KV cache on the device of `cfg`."""
    return _dtype(cfg.device.dtype, _torch_device(cfg.device.kind))


def runnable(kind: str) -> list[str]:
    """Names of the kernels that run on a device of that kind here."""
    return ["triton", "torch"] if _torch_device(kind).type == "cuda" else ["numba", "torch"]


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise HarnessError(f"device.dtype={name}: there are auto, {', '.join(DTYPES)}")
    return DTYPES[name]


@torch.inference_mode()
def _choose_threads(loaded: Loaded, wanted: int | str) -> dict[str, Any]:
    """Set the number of threads: as asked, or the faster of one and all, timed in turn on a decode step."""
    if wanted != "auto":
        _set_threads(int(wanted))
        return {"threads": int(wanted), "threads_reason": "as configured"}
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if every == 1:
        _set_threads(1)
        return {"threads": 1, "threads_reason": "one processor"}
    runner = loaded.runner(DummyAllocator.extent(512))
    step, times, end = dummy_decode(16, 256), {1: list[float](), every: list[float]()}, time.perf_counter() + 1.5
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
