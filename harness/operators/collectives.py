"""Collectives: the engine's all-reduce, NCCL's gathers and scatters, or a formula."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.operators.folder import Tables, versions


def all_reduce_ns(tables: Tables, elements: np.ndarray, devices: int) -> np.ndarray:
    """``[len(elements)]``: ns of one all-reduce of `elements` elements (tokens x hidden, bfloat16), in a CUDA graph.

    From the engine's own table, else NCCL's, else `ring_ns` over the GPU's links.
    """
    if devices == 1:
        return np.zeros(len(elements))
    frame = tables.read("custom_allreduce_perf")
    if frame is not None:
        rows = frame[frame["num_gpus"] == devices]
        if "backend" in rows:
            rows = rows[rows["backend"].str.endswith("_graph")]
        if len(rows):
            return line(rows["message_size"], rows["latency"] * 1e6, elements)
    return collective_ns(tables, "all_reduce", elements, devices)


# Bytes up to which vLLM 0.10.2 fuses an all-reduce with the norm behind it, by devices (collective_fusion.py).
FUSED = {2: 64 << 20, 4: 1 << 20, 8: 1 << 19}


def fused_reduce_ns(tables: Tables, elements: np.ndarray, devices: int, apart: np.ndarray) -> np.ndarray:
    """``[len(elements)]``: ns of an all-reduce and a norm in one kernel: TensorRT-LLM's, which others use through
    FlashInfer. If the GPU has no table of it, the engine's own all-reduce.

    Args:
        apart: ns of both kernels one after the other, which is what large all-reduces take.
    """
    if devices == 1 or (tables.engine == "vllm" and devices not in FUSED):
        return apart
    one = all_reduce_ns(tables, elements, devices)
    place = tables.folder / tables.gpu_name / "trtllm"
    if tables.engine != "trtllm" and versions(place):
        one = np.minimum(one, all_reduce_ns(Tables(tables.folder, tables.gpu_name, "trtllm"), elements, devices))
        tables.note("small all-reduces, with the norm behind them, are TensorRT-LLM's")
    small = 2 * elements <= FUSED[devices] if tables.engine == "vllm" else True  # SGLang's 2,048 tokens hold any batch
    found: np.ndarray = np.where(small, np.minimum(one, apart), apart)
    return found


def collective_ns(tables: Tables, name: str, elements: np.ndarray, devices: int) -> np.ndarray:
    """``[len(elements)]``: ns of one of NCCL's collectives, by the number of 2-byte elements."""
    if devices == 1:
        return np.zeros(len(elements))
    frame = tables.collectives()
    if frame is None:
        if name != "all_reduce":
            raise HarnessError(f"there is no table of NCCL's {name} on {tables.gpu_name}")
        return ring_ns(2.0 * elements, devices, tables.gpu.link_bytes_per_ns, 10_000.0, tables.gpu.bytes_per_ns)
    rows = frame[(frame["op_name"] == name) & (frame["num_gpus"] == devices) & (frame["nccl_dtype"] == "half")]
    if not len(rows):
        raise HarnessError(f"NCCL's table of {tables.gpu_name} has no {name} of {devices} devices")
    return line(rows["message_size"], rows["latency"] * 1e6, elements)


def ring_ns(size: np.ndarray, devices: int, bytes_per_ns: float, latency_ns: float, memory: float) -> np.ndarray:
    """``[len(size)]``: ns of a ring all-reduce of `size` bytes: 2(n − 1) messages of one share each, and each reduced
    piece written once and read twice (LLMServingSim 2, MIT). Both constants belong to a machine and are given, not
    measured.
    """
    share = np.asarray(size, float) / devices
    return 2 * (devices - 1) * (latency_ns + share / bytes_per_ns) + (devices - 1) * 3 * share / memory


def line(at: pd.Series | np.ndarray, ns: pd.Series | np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Linear between points, extrapolated from the last two beyond them."""
    order = np.argsort(np.asarray(at))
    x, y = np.asarray(at, float)[order], np.asarray(ns, float)[order]
    found: np.ndarray = np.interp(wanted, x, y)
    if len(x) > 1:
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        found = found + np.maximum(np.asarray(wanted) - x[-1], 0) * slope
    return found
