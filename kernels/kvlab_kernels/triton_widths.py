"""Which widths of keys and values the Triton kernels are made for, and how they are cut into tiles.

A tile is as wide as a power of two. Keys that are far from one (a latent of 512 with its rotated part of 64) lie in two
tiles, side by side in memory, and a score is the sum of two products. Of a latent the first tile is the values too: it
is read once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kvlab_kernels.addresses import Addresses

HEAD_DIMS = (64, 80, 96, 128, 256)  # of keys and values that are equally wide
LATENTS = ((64, 16), (256, 32), (512, 64))  # of a latent and its rotated part
UNEQUAL = ((192, 128),)  # of keys and of values


class Widths(NamedTuple):
    """How a key and a value lie in tiles.

    Attributes:
        head: numbers of a key in the first tile.
        rest: those in the second tile; 0 = there is none.
        value: numbers of a value.
        latent: the first tile of the keys is the values.
    """

    head: int
    rest: int
    value: int
    latent: bool

    @property
    def key(self) -> int:
        return self.head + self.rest

    @property
    def constants(self) -> dict[str, Any]:
        """What the kernels are built for."""
        return {"HEAD_DIM": self.head, "HEAD_PAD": padded(self.head), "REST": self.rest, "VALUE_DIM": self.value,
                "VALUE_PAD": padded(self.value), "LATENT": self.latent}  # fmt: skip


def padded(width: int) -> int:
    """The width of the tile that holds so many numbers."""
    return 1 << (width - 1).bit_length()


def widths(key: int, value: int, latent: bool = False) -> Widths | None:
    """How keys and values of these widths lie in tiles; None = no kernel is made for them."""
    if latent:
        return Widths(value, key - value, value, True) if (value, key - value) in LATENTS else None
    if key == value:
        return Widths(key, 0, value, False) if key in HEAD_DIMS else None
    return Widths(value, key - value, value, False) if (key, value) in UNEQUAL else None


def served() -> str:
    """The widths there are, in words."""
    latents = ", ".join(f"{rank} + {rope}" for rank, rope in LATENTS)
    return (f"heads of {', '.join(map(str, HEAD_DIMS))}, keys of {UNEQUAL[0][0]} with values of {UNEQUAL[0][1]}, "
            f"latents of {latents}")  # fmt: skip


def check_pools(q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, addresses: Addresses) -> Widths:
    """How the pools lie in tiles.

    Raises:
        ValueError: what the kernels would silently read wrongly.
    """
    heads, key = q.shape[-2:]
    latent = v_pool.data_ptr() == k_pool.data_ptr() and v_pool.shape[2] < k_pool.shape[2]
    if v_pool.shape[:2] != k_pool.shape[:2] or not (k_pool.is_contiguous() and (latent or v_pool.is_contiguous())):
        raise ValueError(f"pools must be contiguous and alike: {tuple(k_pool.shape)}, {tuple(v_pool.shape)}")
    found = widths(key, v_pool.shape[2], latent)
    if key != k_pool.shape[2] or found is None or heads % k_pool.shape[1]:
        what = f"q {tuple(q.shape)} to pools {tuple(k_pool.shape)}, {tuple(v_pool.shape)}"
        raise ValueError(f"cannot attend with {what}: head_dim as in {served()}; query heads a multiple of KV heads")
    if q.stride(-1) != 1 or addresses.tables.stride(1) != 1:
        raise ValueError("the last dimension of q and of the tables must be dense")
    if not q.dtype == k_pool.dtype == v_pool.dtype:
        raise ValueError(f"dtypes differ: q {q.dtype}, k {k_pool.dtype}, v {v_pool.dtype}")
    size = addresses.block_size
    if size and (size < 0 or size & (size - 1)):
        raise ValueError(f"block_size must be 0 or a power of two, not {size}")
    return found


def output_for(q: torch.Tensor, value: int, out: torch.Tensor | None) -> torch.Tensor:
    """``[n, Hq, value]`` to write into: `out`, or new.

    Raises:
        ValueError: `out` is something else.
    """
    shape = (*q.shape[:2], value)
    out = torch.empty(shape, dtype=q.dtype, device=q.device) if out is None else out
    if out.shape != shape or not out.is_contiguous():
        raise ValueError(f"out must be contiguous {shape}, not {tuple(out.shape)}")
    return out
