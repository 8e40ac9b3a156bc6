"""The kernels in plain PyTorch: the readable form, right on every device and dtype, and the fall-back of the others."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvlab_kernels.addresses import Addresses


def decode_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    addresses: Addresses,
    scale: float,
    out: torch.Tensor | None = None,
    max_length: int | None = None,
) -> torch.Tensor:
    """Attend with one query per sequence to all tokens of that sequence.

    Args:
        q: ``[B, Hq, D]``, one query per sequence.
        k_pool: ``[S, Hkv, D]``, keys of one layer; ``Hq`` is a multiple of ``Hkv``.
        v_pool: ``[S, Hkv, D]``, values of one layer.
        addresses: where the tokens of each sequence lie.
        scale: what the scores are multiplied by.
        out: ``[B, Hq, D]`` to write into; a new tensor by default.
        max_length: the longest length, where the caller knows it (saves a device synchronisation).

    Returns:
        ``[B, Hq, D]``; zeros for a sequence of length 0.
    """
    width = int(addresses.lengths.max()) if max_length is None else max_length
    if width == 0:
        return q.new_zeros(q.shape) if out is None else out.zero_()
    slots, stored = _padded_slots(addresses, width)
    attended = scaled_dot_product_attention(
        q.unsqueeze(2),  # [B, Hq, 1, D]
        k_pool[slots].transpose(1, 2),  # [B, Hkv, width, D]
        v_pool[slots].transpose(1, 2),
        attn_mask=stored[:, None, None, :],
        scale=scale,
        enable_gqa=q.shape[1] != k_pool.shape[1],
    ).squeeze(2)
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
) -> torch.Tensor:
    """Attend causally with the last tokens of each sequence, packed in one row without padding.

    Args:
        q: ``[T, Hq, D]``; the queries of sequence ``i`` are rows ``query_starts[i]`` to ``query_starts[i + 1]``, the
            last positions of its ``lengths[i]`` tokens, whose keys and values are in the pool already.
        k_pool: ``[S, Hkv, D]``, keys of one layer; ``Hq`` is a multiple of ``Hkv``.
        v_pool: ``[S, Hkv, D]``, values of one layer.
        addresses: where the tokens of each sequence lie.
        query_starts: ``[B + 1]`` int32.
        scale: what the scores are multiplied by.
        out: ``[T, Hq, D]`` to write into; a new tensor by default.
        max_query: unused here; kernels that launch a grid need it.
        max_length: unused here, likewise.

    Returns:
        ``[T, Hq, D]``.
    """
    out = torch.empty_like(q) if out is None else out
    starts = query_starts.tolist()
    rows, lengths = addresses.rows.tolist(), addresses.lengths.tolist()
    for row, length, (first, last) in zip(rows, lengths, pairwise(starts), strict=True):
        if first == last:
            continue
        table = addresses.tables[row]
        attended = _attend_causally(
            q[first:last].transpose(0, 1),
            _tokens(k_pool, table, addresses.block_size, length).transpose(0, 1),
            _tokens(v_pool, table, addresses.block_size, length).transpose(0, 1),
            scale,
        )
        out[first:last] = attended.transpose(0, 1)
    return out


def write_kv(k_pool: torch.Tensor, v_pool: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """Store ``k`` and ``v`` ``[T, Hkv, D]`` in ``slots[T]`` (int64) of one layer; a negative slot is skipped."""
    stored = slots >= 0
    k_pool[slots[stored]] = k[stored]
    v_pool[slots[stored]] = v[stored]


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


def _padded_slots(addresses: Addresses, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of the first ``width`` tokens ``[B, width]``, and which of them exist.

    Padding repeats the sequence's first slot: a probability of 0 times whatever lies in a foreign slot may be NaN.
    """
    tables, rows, lengths, block_size = addresses
    positions = torch.arange(width, device=tables.device)
    stored = positions < lengths[:, None]
    positions = torch.where(stored, positions, 0)
    table = tables[rows].long()
    if block_size == 0:
        slots = table[:, :1] + positions
    else:
        slots = table.gather(1, positions // block_size) * block_size + positions % block_size
    return torch.where(lengths[:, None] > 0, slots, 0), stored


def _tokens(pool: torch.Tensor, table: torch.Tensor, block_size: int, length: int) -> torch.Tensor:
    """The ``[length, Hkv, D]`` tokens of one sequence: a view where they lie in a row, gathered by blocks otherwise."""
    if block_size == 0:
        start = int(table[0])
        return pool[start : start + length]
    blocks = table[: -(-length // block_size)].long()
    whole_blocks = pool[: len(pool) // block_size * block_size].view(-1, block_size, *pool.shape[1:])
    return whole_blocks[blocks].flatten(0, 1)[:length]


def _attend_causally(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of ``q`` ``[Hq, Tq, D]``, the last positions of ``k`` and ``v`` ``[Hkv, T, D]``."""
    queries, tokens = q.shape[1], k.shape[1]
    mask = None
    if 1 < queries < tokens:
        mask = torch.ones(queries, tokens, dtype=torch.bool, device=q.device).tril(tokens - queries)
    return scaled_dot_product_attention(
        q[None],
        k[None],
        v[None],
        attn_mask=mask,
        is_causal=1 < queries == tokens,
        scale=scale,
        enable_gqa=q.shape[0] != k.shape[0],
    )[0]


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
