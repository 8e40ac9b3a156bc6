"""Attention of prompts and of decodes, from tables of equal sequences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.operators.folder import Tables

# The kernel that the engine uses on that GPU, if two kernels share a key: by engine and first letter of the GPU
# (SGLang's default attention backend is trtllm_mha on Blackwell since 0.5.5 and fa3 on Hopper).
KERNELS = {"sglang": ("trtllm_mha", "fa3")}


class Surface(NamedTuple):
    """Times over two logarithmic axes.

    Attributes:
        batch, length: ascending.
        ns: ``[batch, length]``, without holes: points too large to measure take as long per token (decode) or per pair
            (prompt) as the next smaller one.
    """

    batch: np.ndarray
    length: np.ndarray
    ns: np.ndarray


def prompt_surface(tables: Tables, heads: int, kv_heads: int, width: int, kv: str, window: int = 0) -> Surface:
    """``batch`` whole prompts of ``length`` tokens, in one layer."""
    frame = _rows(tables, "context_attention_perf", heads, kv_heads, width, kv, window)
    return surface(frame, "batch_size", "isl", 2.0)


def decode_surface(tables: Tables, heads: int, kv_heads: int, width: int, kv: str, window: int = 0) -> Surface:
    """``batch`` sequences that attend to ``length`` tokens each, the new one included, in one layer."""
    frame = _rows(tables, "generation_attention_perf", heads, kv_heads, width, kv, window)
    return surface(frame.assign(context=frame["step"] + 1), "batch_size", "context", 1.0)


def surface(frame: pd.DataFrame, first: str, second: str, power: float) -> Surface:
    """From rows to a grid without holes.

    Args:
        power: the power of the length with which times grow where points are too large to measure.
    """
    pivot = frame.pivot_table(index=first, columns=second, values="latency", aggfunc="median").sort_index()
    batch, length = pivot.index.to_numpy(float), pivot.columns.to_numpy(float)
    order = np.argsort(length)
    length, ns = length[order], pivot.to_numpy(float)[:, order] * 1e6
    for i in range(len(batch)):
        for j in range(len(length)):
            if np.isfinite(ns[i, j]):
                continue
            if i and np.isfinite(ns[i - 1, j]):
                ns[i, j] = ns[i - 1, j] * batch[i] / batch[i - 1]
            elif j and np.isfinite(ns[i, j - 1]):
                ns[i, j] = ns[i, j - 1] * (length[j] / length[j - 1]) ** power
    for j in range(len(length) - 2, -1, -1):  # what is too small
        there = np.isfinite(ns[:, j])
        ns[~there, j] = ns[~there, j + 1]
    return Surface(batch, length, ns)


def _rows(tables: Tables, name: str, heads: int, kv_heads: int, width: int, kv: str, window: int) -> pd.DataFrame:
    """The rows of one shape, of the kernel that the engine uses.

    Raises:
        HarnessError: the table lacks the shape.
    """
    frame = tables.read(name)
    if frame is None:
        raise HarnessError(f"there is no {name} of {tables.engine} on {tables.gpu_name}")
    # Prompts of models without grouped heads are stored with as many KV heads as heads.
    rows = frame[(frame["num_heads"] == heads) & (frame["num_key_value_heads"] == kv_heads)]
    if "head_dim" in frame:
        rows = rows[rows["head_dim"] == width]
    if "window_size" in frame:
        rows = rows[rows["window_size"] == window]
    elif window:
        rows = rows[:0]
    if not len(rows):
        raise HarnessError(f"{name} of {tables.engine} {tables.version} on {tables.gpu_name} has no attention of "
                           f"{heads} heads, {kv_heads} for KV, {width} wide, window {window}")  # fmt: skip
    if kv in set(rows["kv_cache_dtype"]):
        rows = rows[rows["kv_cache_dtype"] == kv]
    if rows["attn_dtype"].nunique() > 1:  # an fp8 cache is read by an fp8 kernel, if there is one
        rows = rows[rows["attn_dtype"] == ("fp8" if kv == "fp8" else "bfloat16")]
    kernels = set(rows["kernel_source"])
    wanted = next((one for one in KERNELS.get(tables.engine, ()) if one in kernels), None)
    if wanted and len(kernels) > 1:
        rows = rows[rows["kernel_source"] == wanted]
    return rows
