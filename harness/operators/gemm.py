"""Matrix products: time by tokens for any width, from the measured widths."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.operators.folder import Gpu, Tables, versions

BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "int4_wo": 0.53125}
LARGE, WIDE = 16384, 4096  # tokens and widths of products that run into a power cap


class Gemm:
    """out[m, n] = in[m, k] · Wᵀ in one element type.

    Between measured widths the logarithm of the efficiency against the roofline is interpolated, linearly in log n and
    log k; in m the time is linear. Holes along m take the efficiency of their neighbours. Times never fall with m (the
    engine could pad), so a single slow point is cut to the smallest of those after it (`smooth`).

    Args:
        frame: columns m, n, k, latency (ms) of one element type.
        smooth: whether slow points are cut.
    """

    def __init__(self, frame: pd.DataFrame, gpu: Gpu, dtype: str, smooth: bool = True) -> None:
        self.gpu, self.dtype, self.smooth = gpu, dtype, smooth
        self.m, self.n, self.k = (np.sort(frame[name].unique()).astype(float) for name in "mnk")
        at = tuple(np.searchsorted(getattr(self, name), frame[name]) for name in "nkm")
        times = np.full((len(self.n), len(self.k), len(self.m)), np.nan)
        times[at] = frame["latency"].to_numpy() * 1e6
        roof = self.roofline(self.m[None, None, :], self.n[:, None, None], self.k[None, :, None])
        self.logs = np.log(times / roof)
        for row in self.logs.reshape(-1, len(self.m)):
            there = np.isfinite(row)
            if there.any() and not there.all():
                row[~there] = np.interp(np.log(self.m[~there]), np.log(self.m[there]), row[there])
        self.sustained = sustained(frame, gpu, dtype)

    def roofline(self, m: np.ndarray, n: np.ndarray | float, k: np.ndarray | float) -> np.ndarray:
        """The least possible time in ns."""
        size = BYTES.get(self.dtype, 2.0)
        moved = m * k * min(size, 2.0) + np.asarray(n * k) * size + m * n * 2.0
        longest: np.ndarray = np.maximum(2.0 * m * n * k / self.gpu.flops(self.dtype), moved / self.gpu.bytes_per_ns)
        return longest

    def ns(self, tokens: np.ndarray, n: int, k: int) -> np.ndarray:
        """``[len(tokens)]``: ns of a product with `n` x `k` weights, by its tokens."""
        corners = [(i, j, u * v) for i, u in _beside(self.n, n) for j, v in _beside(self.k, k)
                   if np.isfinite(self.logs[i, j, 0])]  # fmt: skip
        if not corners:
            raise HarnessError(f"gemm_perf has no {self.dtype} product of about {n} x {k}")
        total = sum(weight for _, _, weight in corners)
        log = sum(weight / total * self.logs[i, j] for i, j, weight in corners)
        times = np.exp(log) * self.roofline(self.m, n, k)
        if self.smooth:
            times = np.minimum.accumulate(times[::-1])[::-1]
        found = np.interp(tokens, self.m, times)
        beyond: np.ndarray = np.maximum(np.asarray(tokens) / self.m[-1], 1.0)
        return found * beyond


class Gemms:
    """Products by element type; a type's table is read when it is first used.

    Args:
        static_scales: for an engine that quantises in the preceding norm (TensorRT-LLM), exclude the quantiser that its
            tables include: from fp8 the separately measured one is subtracted; an NVFP4 product after a norm takes no
            longer than another engine's, whose tables are measured with quantised inputs.
        dynamic_scales: an NVFP4 product of any other engine includes a kernel that quantises its input.
        sustained: no product exceeds the share of the GPU's peak that it can sustain (see `sustained`), for fp8 this
            share; 0 = no limit. vLLM's tables were timed with uninitialized weights, which takes little power; so for
            bfloat16, where all engines call the same library, SGLang's tables, timed with random weights, count too.
        launches: fp8_block products, the only ones timed outside a graph and thus with their launches, take no longer
            than bfloat16 products with a quantiser before.
    """

    def __init__(self, tables: Tables, smooth: bool = True, static_scales: bool = False, dynamic_scales: bool = False,
                 launches: bool = False, sustained: float = 0.0) -> None:  # fmt: skip
        self.tables, self.smooth, self.sustained = tables, smooth, sustained
        self.static_scales, self.dynamic_scales, self.launches = static_scales, dynamic_scales, launches
        self._made: dict[tuple[str, str], Gemm] = {}

    def ns(self, dtype: str, tokens: np.ndarray, n: int, k: int, normed: bool = False) -> np.ndarray:
        """As `Gemm.ns`, with the quantiser of its input as the rules say; `normed`: a norm comes right before."""
        time = self._bare(self.tables, dtype, tokens, n, k)
        if dtype == "fp8" and self.static_scales:
            time = np.maximum(time - self._quantiser(tokens, k), 0.5 * time)
        if dtype == "nvfp4" and self.static_scales and normed:
            for other in self._others:
                time = np.minimum(time, self._bare(other, dtype, tokens, n, k))
        elif dtype == "nvfp4" and self.dynamic_scales:
            time = time + self._quantised(dtype, tokens, k)
        if dtype == "fp8_block" and self.launches:
            whole = self._bare(self.tables, "bfloat16", tokens, n, k) + self._quantised(dtype, tokens, k)
            time = np.minimum(time, whole)
        if self.sustained:
            others = {"fp8": self.sustained, "bfloat16": self._drawn}.get(dtype, 1.0)
            share = min(self._made[self.tables.engine, dtype].sustained, others)
            time = np.maximum(time, 2.0 * tokens * n * k / (share * self.tables.gpu.flops(dtype)))
        return time

    def _quantised(self, dtype: str, tokens: np.ndarray, k: int) -> np.ndarray:
        """A kernel that reads bfloat16 and writes `dtype`."""
        gpu = self.tables.gpu
        moved: np.ndarray = tokens * k * (2.0 + BYTES[dtype])
        return moved / (gpu.bytes_per_ns * gpu.pointwise_share) + gpu.pointwise_ns

    def _bare(self, tables: Tables, dtype: str, tokens: np.ndarray, n: int, k: int) -> np.ndarray:
        key = tables.engine, dtype
        if key not in self._made:
            frame = tables.read("gemm_perf")
            have = sorted(frame["gemm_dtype"].unique()) if frame is not None else []
            if frame is None or dtype not in have:
                raise HarnessError(f"gemm_perf of {tables.engine} {tables.version} on {tables.gpu_name} has "
                                   f"{', '.join(have) or 'none'}, not {dtype}")  # fmt: skip
            self._made[key] = Gemm(frame[frame["gemm_dtype"] == dtype], tables.gpu, dtype, self.smooth)
        return self._made[key].ns(tokens, n, k)

    @cached_property
    def _others(self) -> list[Tables]:
        """vLLM's newest tables of the GPU, if they have NVFP4 products."""
        if not versions(self.tables.folder / self.tables.gpu_name / "vllm"):
            return []
        other = Tables(self.tables.folder, self.tables.gpu_name, "vllm")
        frame = other.read("gemm_perf")
        if frame is None or "nvfp4" not in set(frame["gemm_dtype"]):
            return []
        self.tables.note(f"NVFP4 products take no longer than those of vllm {other.version}, without a quantiser")
        return [other]

    @cached_property
    def _drawn(self) -> float:
        """What products in bfloat16 keep up by SGLang's newest table, if the GPU has one."""
        if not versions(self.tables.folder / self.tables.gpu_name / "sglang"):
            return 1.0
        frame = Tables(self.tables.folder, self.tables.gpu_name, "sglang").read("gemm_perf")
        if frame is None:
            return 1.0
        return sustained(frame[frame["gemm_dtype"] == "bfloat16"], self.tables.gpu, "bfloat16")

    def _quantiser(self, tokens: np.ndarray, k: int) -> np.ndarray:
        total = np.zeros(len(tokens))
        for name in ("computescale_perf", "scale_matrix_perf"):
            frame = self.tables.read(name)
            if frame is None:
                continue
            widths = np.sort(frame["k"].unique())
            for i, weight in _beside(widths, k):
                one = frame[frame["k"] == widths[i]].sort_values("m")
                total += weight * np.interp(tokens, one["m"], one["latency"] * 1e6)
        return total


def sustained(frame: pd.DataFrame, gpu: Gpu, dtype: str) -> float:
    """The share of the GPU's peak that the largest products of one element type reach (median); 1 if none is so large.

    They alone ran long enough to meet the power cap: smaller ones in bfloat16 are up to a quarter faster.
    """
    large = frame[(frame["m"] >= LARGE) & (frame[["n", "k"]].min(axis=1) >= WIDE)]
    if not len(large):
        return 1.0
    flops = 2e-6 * large["m"] * large["n"] * large["k"] / large["latency"]
    return min(float(flops.median()) / gpu.flops(dtype), 1.0)


def _beside(axis: np.ndarray, value: float) -> list[tuple[int, float]]:
    """The two measured widths around a value and their weights, by logarithm; the outermost alone if it is outside."""
    right = int(np.searchsorted(axis, value))
    if right == 0 or (right < len(axis) and axis[right] == value):
        return [(right, 1.0)]
    if right == len(axis):
        return [(right - 1, 1.0)]
    share = float(np.log(value / axis[right - 1]) / np.log(axis[right] / axis[right - 1]))
    return [(right - 1, 1 - share), (right, share)]
