"""Our attention in any Hugging Face causal LM: the packed tokens of all sequences, over the pool's tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers.utils
import transformers.utils.import_utils
from kvlab_kernels.addresses import Addresses
from kvlab_kernels.dispatch import Backend

# `transformers` offers to fetch kernels through a package that has the name of our own folder: it must not try.
transformers.utils.is_kernels_available = transformers.utils.import_utils.is_kernels_available = (
    lambda *args, **kwargs: False
)

NAME = "kvlab"


@dataclass(slots=True)
class StepContext:
    """What attention needs to know of a step. Decoding lanes come first in the packed row, then prompt chunks.

    Attributes:
        kv: ``[L, 2, S, Hkv, D]``, the pool and its scratch slot.
        slots: ``[T]`` int64, where the new K and V of each packed token go.
        decode: addresses of the decoding lanes (one query each), None without any.
        prefill: addresses of the prompt chunks, None without any.
        query_starts: ``[chunks + 1]`` int32, where each chunk begins among the tokens after the decoding lanes.
        max_decode, max_prefill, max_query: host-known bounds of lengths, so that no kernel has to ask the device.
    """

    kv: torch.Tensor
    backend: Backend
    slots: torch.Tensor
    decode: Addresses | None = None
    prefill: Addresses | None = None
    query_starts: torch.Tensor | None = None
    max_decode: int = 0
    max_prefill: int = 0
    max_query: int = 0


_tracing = False


@contextmanager
def tracing() -> Iterator[None]:
    """Within it attention leaves a mark (a call of `kvlab::attention`) instead of being computed."""
    global _tracing
    _tracing = True
    try:
        yield
    finally:
        _tracing = False


@torch.library.custom_op("kvlab::attention", mutates_args=())
def _mark(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int, scaling: float, window: int) -> torch.Tensor:
    """``[1, T, Hq, D]``; it stands in a traced model for `attend`, and is never run."""
    raise NotImplementedError("a mark in a traced model")


@_mark.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int, scaling: float, window: int) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


def paged_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                    attention_mask: Any, scaling: float | None = None, kv_step: StepContext | None = None,
                    sliding_window: int | None = None, softcap: float | None = None,
                    **kwargs: Any) -> tuple[torch.Tensor, None]:  # fmt: skip
    """An attention function for `transformers.AttentionInterface`.

    Args:
        query: ``[1, Hq, T, D]``; key, value: ``[1, Hkv, T, D]`` of the packed row.

    Returns:
        ``[1, T, Hq, D]`` and no weights.

    Raises:
        NotImplementedError: the model asks for a sliding window or soft-capped scores.
    """
    if softcap:
        raise NotImplementedError("models with soft-capped attention scores are not supported")
    layer: int = module.layer_idx  # type: ignore[assignment]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if _tracing:
        return torch.ops.kvlab.attention(query, key, value, layer, scaling, sliding_window or 0), None
    if kv_step is None:
        raise RuntimeError(f"{type(module).__name__} did not hand its keyword arguments on to its attention function")
    return attend(kv_step, query, key, value, layer, scaling, sliding_window or 0), None


def attend(step: StepContext, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scaling: float,
           window: int) -> torch.Tensor:  # fmt: skip
    """Write the new keys and values of one layer and attend; `window` tokens at most can be seen, 0 = all."""
    if window and window < max(step.max_decode, step.max_prefill):
        raise NotImplementedError(f"a context beyond the model's sliding window of {window} is not supported")
    backend = step.backend
    k_pool, v_pool = step.kv[layer]
    q = query[0].transpose(0, 1).contiguous()
    k, v = key[0].transpose(0, 1).contiguous(), value[0].transpose(0, 1).contiguous()
    backend.write_kv(k_pool, v_pool, k, v, step.slots)
    out = torch.empty_like(q)
    lanes = 0
    if step.decode is not None:
        lanes = len(step.decode.rows)
        backend.decode_attention(
            q[:lanes], k_pool, v_pool, step.decode, scaling, out=out[:lanes], max_length=step.max_decode
        )
    if step.prefill is not None:
        backend.prefill_attention(
            q[lanes:], k_pool, v_pool, step.prefill, step.query_starts, scaling, out=out[lanes:],
            max_query=step.max_query, max_length=step.max_prefill,
        )  # fmt: skip
    return out.unsqueeze(0)


transformers.AttentionInterface.register(NAME, paged_attention)
