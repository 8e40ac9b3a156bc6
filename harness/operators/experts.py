"""Mixture of experts: both expert products of a layer together, by the tokens of the step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.operators.folder import Tables

SKEW = ("power_law_1.2", "power_law_1.01", "balanced")  # the first that the table has; assumed, no run records it
# The kernel that the engine takes where several share a key; None in a pair = where attention is data parallel.
# TensorRT-LLM on Blackwell: moe_config.backend TRTLLM (the "min latency" kernels), CUTLASS under attention DP, as the
# scripts of InferenceX set it.
KERNELS = {"trtllm": ("moe_torch_flow_min_latency", "moe_torch_flow_cutlass")}
LIKE = {"fp8_block": ("fp8_block", "fp8"), "fp8": ("fp8", "fp8_block"), "nvfp4": ("nvfp4",),
        "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4")}  # fmt: skip


def expert_ns(tables: Tables, dtype: str, tokens: np.ndarray, hidden: int, inner: int, top_k: int, experts: int,
              tensor: int, expert: int, lockstep: bool = False) -> np.ndarray:  # fmt: skip
    """``[len(tokens)]``: ns of one layer's experts on one device.

    Args:
        dtype: of the expert weights; of several tables for it the first is taken.
        tokens: of all devices that share the experts.
        tensor, expert: degrees in which each expert, and their number, are shared.
        lockstep: attention is data parallel.

    Raises:
        HarnessError: the table lacks the shape.
    """
    frame = tables.read("moe_perf")
    if frame is None:
        raise HarnessError(f"there is no moe_perf of {tables.engine} on {tables.gpu_name}")
    shape = frame[(frame["hidden_size"] == hidden) & (frame["inter_size"] == inner) & (frame["topk"] == top_k)
                  & (frame["num_experts"] == experts) & (frame["moe_tp_size"] == tensor)
                  & (frame["moe_ep_size"] == expert)]  # fmt: skip
    have = set(shape["moe_dtype"])
    kind = next((one for one in LIKE.get(dtype, (dtype,)) if one in have), None)
    if kind is None:
        raise HarnessError(f"moe_perf of {tables.engine} {tables.version} on {tables.gpu_name} has no {dtype} experts "
                           f"of {experts} x {hidden} x {inner}, top {top_k}, shared {tensor} x {expert} ways"
                           + (f" (it has {', '.join(sorted(have))})" if have else ""))  # fmt: skip
    rows = shape[shape["moe_dtype"] == kind]
    rows = rows[rows["distribution"] == next(one for one in SKEW if one in set(rows["distribution"]))]
    kernels = set(rows["kernel_source"])
    if len(kernels) > 1:
        wanted = KERNELS.get(tables.engine, ())
        named = [one for one in (reversed(wanted) if lockstep else wanted) if one in kernels]
        if named:
            rows = rows[rows["kernel_source"] == named[0]]
    return _curve(rows, tokens)


def _curve(rows: pd.DataFrame, tokens: np.ndarray) -> np.ndarray:
    """By tokens: linear between points, in proportion beyond the last; never falling, as a step could be padded."""
    one = rows.groupby("num_tokens")["latency"].median().sort_index()
    at, ns = one.index.to_numpy(float), one.to_numpy() * 1e6
    ns = np.minimum.accumulate(ns[::-1])[::-1]
    found: np.ndarray = np.interp(tokens, at, ns) * np.maximum(tokens / at[-1], 1.0)
    return found
