"""Row-wise pieces of a decoder in one pass over memory, on the CPU in float32, where PyTorch takes five or six."""

# Compiled functions carry no annotations: numba reads their types from the arguments, and names say what each is.
# mypy: allow-untyped-defs, disable-error-code="call-arg"

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numba
import torch
from numba import prange

from kvlab_kernels import numba_backend  # noqa: F401 (chooses the threads that numba shares with PyTorch)
from kvlab_kernels.cached import cached_njit

_WORTH_THREADS = 1 << 16  # numbers below which waking a thread takes longer than it helps


def prepare() -> None:
    """Compile everything here, or load it from the disk, so that no step does."""
    for parallel in (False, True):
        _norm_kernel(parallel)
        _rotate_kernel(parallel)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """``weight * x / sqrt(mean(x²) + epsilon)`` over the last dimension of ``x`` ``[..., C]``; weight ``[C]``."""
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    rows = x.view(-1, width).numpy()
    _norm_kernel(_threads(x) > 1)(rows, weight.numpy(), epsilon, out.view(-1, width).numpy())
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: ``x * cos + cat(-x[D/2:], x[:D/2]) * sin``, in place where the memory of ``x`` allows it.

    Args:
        x: ``[1, H, T, D]``, best a transposed view of ``[1, T, H, D]``; overwritten.
        cos, sin: ``[1, 1, T, D]``.
    """
    tokens = x[0].transpose(0, 1).contiguous()
    _rotate_kernel(_threads(tokens) > 1)(tokens.numpy(), cos[0, 0].numpy(), sin[0, 0].numpy())
    return tokens.transpose(0, 1).unsqueeze(0)


def _threads(x: torch.Tensor) -> int:
    return numba.get_num_threads() if x.numel() >= _WORTH_THREADS else 1


@cache
def _norm_kernel(parallel: bool) -> Callable[..., None]:
    def norm(rows, weight, epsilon, out):
        width = rows.shape[1] if parallel else len(weight)  # makes `parallel` part of what the disk cache looks at
        for i in prange(rows.shape[0]):
            squares = numba.float32(0)
            for c in range(width):
                squares += rows[i, c] * rows[i, c]
            factor = numba.float32(1 / math.sqrt(squares / width + epsilon))
            for c in range(width):
                out[i, c] = weight[c] * (rows[i, c] * factor)

    matrix = numba.float32[:, ::1]
    signature = numba.void(matrix, numba.float32[::1], numba.float64, matrix)
    return cached_njit(signature, parallel=parallel, fastmath=True, error_model="numpy", nogil=True)(norm)


@cache
def _rotate_kernel(parallel: bool) -> Callable[..., None]:
    def turn(tokens, cos, sin):
        _, heads, size = tokens.shape
        count = len(tokens) if parallel else len(cos)  # makes `parallel` part of what the disk cache looks at
        half = size // 2
        for t in prange(count):
            for head in range(heads):
                row = tokens[t, head]
                for d in range(half):
                    first, second = row[d], row[d + half]
                    row[d] = first * cos[t, d] - second * sin[t, d]
                    row[d + half] = second * cos[t, d + half] + first * sin[t, d + half]

    matrix = numba.float32[:, ::1]
    signature = numba.void(numba.float32[:, :, ::1], matrix, matrix)
    return cached_njit(signature, parallel=parallel, fastmath=True, error_model="numpy", nogil=True)(turn)
