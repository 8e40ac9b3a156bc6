"""The kernels in plain PyTorch: the readable form, right on every device and dtype, and the fall-back of the others."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvlab_kernels.addresses import Addresses
from kvlab_kernels.variant import PLAIN, AttentionVariant

SHORTEST_TILE = 64  # queries that attend together under a window


def decode_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    addresses: Addresses,
    scale: float,
    out: torch.Tensor | None = None,
    max_length: int | None = None,
    variant: AttentionVariant = PLAIN,
) -> torch.Tensor:
    """Attend with one query per sequence to the tokens of that sequence which it sees.

    Args:
        q: ``[B, Hq, D]``, one query per sequence.
        k_pool: ``[S, Hkv, D]``, keys of one layer; ``Hq`` is a multiple of ``Hkv``.
        v_pool: ``[S, Hkv, Dv]``, values of one layer; the first columns of the keys may serve as such (a view).
        addresses: where the tokens of each sequence lie.
        scale: what the scores are multiplied by.
        out: ``[B, Hq, Dv]`` to write into; a new tensor by default.
        max_length: the longest length, where the caller knows it (saves a device synchronisation).
        variant: what a query sees, and what is done to its scores. What no query sees is not read.

    Returns:
        ``[B, Hq, Dv]``; zeros for a sequence of length 0.
    """
    longest = int(addresses.lengths.max()) if max_length is None else max_length
    if longest == 0:
        shape = (*q.shape[:2], v_pool.shape[2])
        return q.new_zeros(shape) if out is None else out.zero_()
    slots, seen = _padded_slots(addresses, longest, variant)
    keys = k_pool[slots].transpose(1, 2)  # [B, Hkv, width, D]
    values = keys[..., : v_pool.shape[2]] if values_in_keys(k_pool, v_pool) else v_pool[slots].transpose(1, 2)
    attended = _attend(q.unsqueeze(2), keys, values, seen[:, None, None, :], scale, variant).squeeze(2)
    attended = attended.masked_fill((addresses.lengths == 0)[:, None, None], 0)
    return attended if out is None else out.copy_(attended)


def prefill_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    addresses: Addresses,
    query_starts: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
    max_query: int | None = None,
    max_length: int | None = None,
    variant: AttentionVariant = PLAIN,
) -> torch.Tensor:
    """Attend causally with the last tokens of each sequence, packed in one row without padding.

    Args:
        q: ``[T, Hq, D]``; the queries of sequence ``i`` are rows ``query_starts[i]`` to ``query_starts[i + 1]``, the
            last positions of its ``lengths[i]`` tokens, whose keys and values are in the pool already.
        k_pool: ``[S, Hkv, D]``, keys of one layer; ``Hq`` is a multiple of ``Hkv``.
        v_pool: ``[S, Hkv, Dv]``, values of one layer; the first columns of the keys may serve as such (a view).
        addresses: where the tokens of each sequence lie.
        query_starts: ``[B + 1]`` int32.
        scale: what the scores are multiplied by.
        out: ``[T, Hq, Dv]`` to write into; a new tensor by default.
        max_query: unused here; kernels that launch a grid need it.
        max_length: unused here, likewise.
        variant: what a query sees, and what is done to its scores. What no query sees is not read.

    Returns:
        ``[T, Hq, Dv]``.
    """
    out = q.new_empty(*q.shape[:2], v_pool.shape[2]) if out is None else out
    starts = query_starts.tolist()
    rows, lengths = addresses.rows.tolist(), addresses.lengths.tolist()
    for row, length, (first, last) in zip(rows, lengths, pairwise(starts), strict=True):
        if first == last:
            continue
        table, context = addresses.tables[row], length - (last - first)
        tile = max(variant.reach, SHORTEST_TILE) if variant.reach else last - first
        for at in range(first, last, tile):  # of queries, so that few of the tokens read are seen by none
            to = min(at + tile, last)
            begin, end = variant.first_of(context + at - first), context + to - first
            keys = _tokens(k_pool, table, addresses.block_size, begin, end).transpose(0, 1)
            if values_in_keys(k_pool, v_pool):
                values = keys[..., : v_pool.shape[2]]
            else:
                values = _tokens(v_pool, table, addresses.block_size, begin, end).transpose(0, 1)
            queries = q[at:to].transpose(0, 1)
            attended = _attend_causally(queries[None], keys[None], values[None], begin, scale, variant)[0]
            out[at:to] = attended.transpose(0, 1)
    return out


def write_kv(
    k_pool: torch.Tensor, v_pool: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, slots: torch.Tensor
) -> None:
    """Store the keys and values of new tokens of one layer.

    Args:
        k_pool, v_pool: ``[S, Hkv, D or Dv]``.
        k: ``[T, Hkv, D]``.
        v: ``[T, Hkv, Dv]``; None where the values are a part of the keys.
        slots: ``[T]`` int64; a negative one is skipped.
    """
    stored = slots >= 0
    k_pool[slots[stored]] = k[stored]
    if v is not None:
        v_pool[slots[stored]] = v[stored]


def values_in_keys(k_pool: torch.Tensor, v_pool: torch.Tensor) -> bool:
    """Whether the values are the first columns of the keys, as those of a latent are."""
    return k_pool.data_ptr() == v_pool.data_ptr()


def copy_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy slots ``sources[N]`` to ``targets[N]`` (int64, disjoint) in every layer of ``kv`` ``[L, 2, S, Hkv, D]``."""
    move_slots(kv, sources, targets)


def move_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy as `copy_slots` does, but sources and targets may overlap: as if all sources were read first.

    Layers do not depend on each other, so the temporary is never larger than one layer's keys of the moved slots.
    """
    for plane in kv.flatten(0, 1):
        plane.index_copy_(0, targets, plane.index_select(0, sources))


def swap_out(
    kv: torch.Tensor,
    host: torch.Tensor,
    slots: torch.Tensor,
    host_slots: torch.Tensor,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Copy ``slots[N]`` of ``kv`` ``[L, 2, S, Hkv, D]`` to ``host_slots[N]`` of ``host`` ``[L, 2, Sh, Hkv, D]``."""
    _copy_across(kv, host, slots, host_slots, stream)


def swap_in(
    kv: torch.Tensor,
    host: torch.Tensor,
    slots: torch.Tensor,
    host_slots: torch.Tensor,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Copy ``host_slots[N]`` of ``host`` back to ``slots[N]`` of ``kv``, in every layer."""
    _copy_across(host, kv, host_slots, slots, stream)


def _padded_slots(addresses: Addresses, longest: int, variant: AttentionVariant) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of the tokens that the last one of each sequence sees ``[B, width]``, and which of them exist.

    Padding repeats the first slot that is seen: a probability of 0 times whatever lies in a foreign slot may be NaN.
    """
    tables, rows, lengths, block_size = addresses
    width = min(longest, variant.reach or longest)
    positions = torch.arange(width, device=tables.device)
    if width < longest:
        first = variant.first_seen((lengths - 1).clamp(min=0))[:, None]
        seen = first + positions < lengths[:, None]
        positions = first + torch.where(seen, positions, 0)
    else:
        seen = positions < lengths[:, None]
        positions = torch.where(seen, positions, 0)
    table = tables[rows].long()
    if block_size == 0:
        slots = table[:, :1] + positions
    else:
        slots = table.gather(1, positions // block_size) * block_size + positions % block_size
    return torch.where(lengths[:, None] > 0, slots, 0), seen


def _tokens(pool: torch.Tensor, table: torch.Tensor, block_size: int, begin: int, end: int) -> torch.Tensor:
    """Tokens ``begin`` to ``end`` of a sequence ``[n, Hkv, D]``: a view of an extent, gathered by blocks otherwise."""
    if block_size == 0:
        start = int(table[0])
        return pool[start + begin : start + end]
    first = begin // block_size
    blocks = table[first : -(-end // block_size)].long()
    whole_blocks = pool[: len(pool) // block_size * block_size].unflatten(0, (-1, block_size))
    return whole_blocks[blocks].flatten(0, 1)[begin - first * block_size : end - first * block_size]


def _attend_causally(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, begin: int, scale: float,
                     variant: AttentionVariant) -> torch.Tensor:  # fmt: skip
    """Attention of ``q`` ``[1, Hq, n, D]``, the last positions of ``k`` and ``v``, which begin at position `begin`."""
    queries, tokens = q.shape[2], k.shape[2]
    if variant.is_plain and queries in (1, tokens):
        grouped = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(q, k, v, is_causal=queries > 1, scale=scale, enable_gqa=grouped)
    position = begin + torch.arange(tokens, device=q.device)
    own = position[tokens - queries :, None]
    seen = (position <= own) & (position >= variant.first_seen(own))
    return _attend(q, k, v, seen, scale, variant)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float,
            variant: AttentionVariant) -> torch.Tensor:  # fmt: skip
    """Attention of ``q`` ``[B, Hq, n, D]`` over ``k`` and ``v`` ``[B, Hkv, t, D or Dv]`` where `seen` ``[…, n, t]``."""
    grouped = q.shape[1] != k.shape[1]
    if variant.sinks is None and not variant.softcap:
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)
    if grouped:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    weights = (q @ k.transpose(2, 3)).float() * scale
    if variant.softcap:
        weights = torch.tanh(weights / variant.softcap) * variant.softcap
    weights = weights.masked_fill(~seen, float("-inf"))
    if variant.sinks is not None:
        sinks = variant.sinks.float()[None, :, None, None].expand(*weights.shape[:3], 1)
        weights = torch.cat([weights, sinks], -1)
    return weights.softmax(-1)[..., : k.shape[2]].to(v.dtype) @ v


def _copy_across(
    source: torch.Tensor,
    target: torch.Tensor,
    source_slots: torch.Tensor,
    target_slots: torch.Tensor,
    stream: torch.cuda.Stream | None,
) -> None:
    """Copy slots between pools that may lie on two devices, one layer's keys or values at a time."""
    source_slots = source_slots.to(source.device)
    target_slots = target_slots.to(target.device)
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        for source_plane, target_plane in zip(source.flatten(0, 1), target.flatten(0, 1), strict=True):
            moved = source_plane.index_select(0, source_slots).to(target.device)
            target_plane.index_copy_(0, target_slots, moved)
