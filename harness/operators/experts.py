"""Mixture of experts: time of a layer's two expert products by the tokens of the step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.operators.folder import Tables

SKEW = ("power_law_1.2", "power_law_1.01", "balanced")  # the first that the table has; assumed, no run records it
LIKE = {"fp8_block": ("fp8_block", "fp8"), "fp8": ("fp8", "fp8_block"), "nvfp4": ("nvfp4",),
        "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4")}  # fmt: skip

SHAPE = ("hidden_size", "inter_size", "topk", "num_experts")
# Kernels that engines are known to use for shapes that were measured with other kernels only, and the multiples to
# which they pad hidden and inner size (vLLM's mxfp4.py).
BORROWED = {"marlin": (256, 128)}
LENT = {"flashinfer_trtllm": "sglang"}  # TensorRT-LLM's own, which FlashInfer hands to others, in whose tables it is


def expert_ns(tables: Tables, dtype: str, tokens: np.ndarray, hidden: int, inner: int, top_k: int, experts: int,
              tensor: int, expert: int, kernel: str = "", borrow: bool = True) -> np.ndarray:  # fmt: skip
    """``[len(tokens)]``: ns of one layer's experts on one device.

    Args:
        dtype: of the expert weights; if it has several tables, the first is used.
        tokens: of all devices that share the experts.
        tensor, expert: tensor-parallel and expert-parallel degree of the experts.
        kernel: part of the name of the engine's kernel, if several share a key; without a match the median of them is
            used.
        borrow: see `_borrowed` and `_lent`.

    Raises:
        HarnessError: the table lacks the shape.
    """
    shape = hidden, inner, top_k, experts
    rows, scale = _rows(tables, dtype, shape, tensor, expert)
    rows = _of_skew(rows)
    named = rows["kernel_source"].str.contains(kernel, regex=False)
    if kernel in LENT and borrow and not named.any():
        return _lent(tables, dtype, shape, tensor, expert, kernel, tokens)
    own = scale * _curve(rows[named] if kernel and named.any() else rows, tokens)
    if kernel in BORROWED and borrow and not named.any():
        return np.maximum(own, _borrowed(tables, dtype, shape, tensor, expert, kernel, tokens))
    return own


def _lent(tables: Tables, dtype: str, shape: tuple[int, int, int, int], tensor: int, expert: int, kernel: str,
          tokens: np.ndarray) -> np.ndarray:  # fmt: skip
    """``[len(tokens)]``: ns of experts of this shape with a kernel that was measured in another engine."""
    other = Tables(tables.folder, tables.gpu_name, LENT[kernel])
    rows, scale = _rows(other, dtype, shape, tensor, expert)
    named = rows[rows["kernel_source"].str.contains(kernel, regex=False)]
    tables.note(f"experts by {kernel} are those of {other.engine} {other.version}")
    for note in other.notes:
        tables.note(note)
    return scale * _curve(_of_skew(named if len(named) else rows), tokens)


def _borrowed(tables: Tables, dtype: str, shape: tuple[int, int, int, int], tensor: int, expert: int, kernel: str,
              tokens: np.ndarray) -> np.ndarray:  # fmt: skip
    """``[len(tokens)]``: ns of experts of this shape with a kernel that was measured with another shape only.

    For the same tokens per expert, products and weights both scale with number, hidden and inner size of the experts,
    as padded by the kernel. It is a lower bound: for few tokens reading the weights dominates, which takes as long with
    any kernel. Zeros if no shape has the kernel.
    """
    for _, frame in tables.every("moe_perf"):
        found = frame[(frame["moe_ep_size"] == expert) & (frame["moe_tp_size"] == tensor)]
        found = found[found["moe_dtype"].isin(LIKE.get(dtype, (dtype,)))
                      & found["kernel_source"].str.contains(kernel, regex=False)]  # fmt: skip
        if not len(found):
            continue
        hidden, inner, top_k, number = (int(found[name].iloc[0]) for name in SHAPE)
        found = found[np.logical_and.reduce([found[name] == found[name].iloc[0] for name in SHAPE])]
        tables.note(f"experts take no less than by {kernel}, measured with {number} of {hidden} x {inner}, top {top_k}")
        share = (
            _padded(kernel, shape[0], shape[1] / tensor) * shape[3] / (_padded(kernel, hidden, inner / tensor) * number)
        )
        alike = tokens * (shape[2] / shape[3]) / (top_k / number)
        return share * _curve(_of_skew(found), alike)
    return np.zeros(len(tokens))


def _padded(kernel: str, hidden: int, inner: float) -> float:
    """Size of an expert on one device, as padded by the kernel."""
    outer, within = BORROWED[kernel]
    return float(np.ceil(hidden / outer) * outer * np.ceil(inner / within) * within)


def _of_skew(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["distribution"] == next(one for one in SKEW if one in set(rows["distribution"]))]


def _rows(tables: Tables, dtype: str, shape: tuple[int, int, int, int], tensor: int, expert: int
          ) -> tuple[pd.DataFrame, float]:  # fmt: skip
    """The rows of a shape, and a factor for their times.

    Rows that this version lacks are those of the newest other version that has them; a tensor-parallel degree that was
    not measured takes its share of the time of a lower one. Both are noted.
    """
    known: set[str] = set()
    for version, frame in tables.every("moe_perf"):
        found = frame[frame["moe_ep_size"] == expert]
        for column, value in zip(SHAPE, shape, strict=True):
            found = found[found[column] == value]
        known |= set(found["moe_dtype"])
        for kind in LIKE.get(dtype, (dtype,)):
            of_kind = found[found["moe_dtype"] == kind]
            parts = [part for part in sorted(set(of_kind["moe_tp_size"])) if part <= tensor and not tensor % part]
            if not parts:
                continue
            if version != tables.version:
                tables.note(f"experts are those of {tables.engine} {version}")
            if parts[-1] != tensor:
                tables.note(f"experts shared {tensor} ways take {parts[-1]}/{tensor} of those shared {parts[-1]} ways")
            return of_kind[of_kind["moe_tp_size"] == parts[-1]], parts[-1] / tensor
    hidden, inner, top_k, experts = shape
    raise HarnessError(f"moe_perf of {tables.engine} on {tables.gpu_name} has no {dtype} experts of {experts} x "
                       f"{hidden} x {inner}, top {top_k}, shared {tensor} x {expert} ways"
                       + (f" (it has {', '.join(sorted(known))})" if known else ""))  # fmt: skip


def _curve(rows: pd.DataFrame, tokens: np.ndarray) -> np.ndarray:
    """ns by tokens: linear between points, proportional beyond the last; never falling, as a step could be padded."""
    one = rows.groupby("num_tokens")["latency"].median().sort_index()
    at, ns = one.index.to_numpy(float), one.to_numpy() * 1e6
    ns = np.minimum.accumulate(ns[::-1])[::-1]
    found: np.ndarray = np.interp(tokens, at, ns) * np.maximum(tokens / at[-1], 1.0)
    return found
