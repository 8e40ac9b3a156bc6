"""Mixture of experts: both expert products of a layer together, by the tokens of the step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.operators.folder import Tables

SKEW = ("power_law_1.2", "power_law_1.01", "balanced")  # the first that the table has; assumed, no run records it
LIKE = {"fp8_block": ("fp8_block", "fp8"), "fp8": ("fp8", "fp8_block"), "nvfp4": ("nvfp4",),
        "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4")}  # fmt: skip

SHAPE = ("hidden_size", "inter_size", "topk", "num_experts")
# Kernels that engines are known to take for shapes that were measured by others only, and what they pad width and inner
# width to (vLLM's mxfp4.py).
BORROWED = {"marlin": (256, 128)}
LENT = {"flashinfer_trtllm": "sglang"}  # TensorRT-LLM's own, which FlashInfer hands to others, in whose tables it is


def expert_ns(tables: Tables, dtype: str, tokens: np.ndarray, hidden: int, inner: int, top_k: int, experts: int,
              tensor: int, expert: int, kernel: str = "", borrow: bool = True) -> np.ndarray:  # fmt: skip
    """``[len(tokens)]``: ns of one layer's experts on one device.

    Args:
        dtype: of the expert weights; of several tables for it the first is taken.
        tokens: of all devices that share the experts.
        tensor, expert: degrees in which each expert, and their number, are shared.
        kernel: part of the name of the kernel that the engine takes, where several share a key; else, or where none is
            called so, the median of them.
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
    """``[len(tokens)]``: what experts of this shape take by a kernel that another engine was measured with."""
    other = Tables(tables.folder, tables.gpu_name, LENT[kernel])
    rows, scale = _rows(other, dtype, shape, tensor, expert)
    named = rows[rows["kernel_source"].str.contains(kernel, regex=False)]
    tables.note(f"experts by {kernel} are those of {other.engine} {other.version}")
    for note in other.notes:
        tables.note(note)
    return scale * _curve(_of_skew(named if len(named) else rows), tokens)


def _borrowed(tables: Tables, dtype: str, shape: tuple[int, int, int, int], tensor: int, expert: int, kernel: str,
              tokens: np.ndarray) -> np.ndarray:  # fmt: skip
    """``[len(tokens)]``: what experts of this shape take by a kernel that was measured with another shape only.

    With as many tokens for an expert, products and weights both go by number, width and inner width of the experts, as
    the kernel pads them. It is a least time: few tokens read the weights, which takes any kernel alike. Zeros where no
    shape has the kernel.
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
    """Weights of an expert on one device, with what the kernel pads them to."""
    outer, within = BORROWED[kernel]
    return float(np.ceil(hidden / outer) * outer * np.ceil(inner / within) * within)


def _of_skew(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["distribution"] == next(one for one in SKEW if one in set(rows["distribution"]))]


def _rows(tables: Tables, dtype: str, shape: tuple[int, int, int, int], tensor: int, expert: int
          ) -> tuple[pd.DataFrame, float]:  # fmt: skip
    """The rows of a shape, and what their times are multiplied with.

    What this version lacks is taken from the newest other one that has it; experts that were not measured shared in so
    many parts take their share of the time of those shared in fewer. Both are noted.
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
    """By tokens: linear between points, in proportion beyond the last; never falling, as a step could be padded."""
    one = rows.groupby("num_tokens")["latency"].median().sort_index()
    at, ns = one.index.to_numpy(float), one.to_numpy() * 1e6
    ns = np.minimum.accumulate(ns[::-1])[::-1]
    found: np.ndarray = np.interp(tokens, at, ns) * np.maximum(tokens / at[-1], 1.0)
    return found
