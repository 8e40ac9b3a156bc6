"""Plain float64 reference of every kernel: loops and gathers, no concern for speed. Tests compare backends with it.

Beside it what such a comparison needs: random places to ask about, and how far an answer may be off.
"""

from __future__ import annotations

import torch

from kvlab_kernels.addresses import Addresses
from kvlab_kernels.variant import PLAIN, AttentionVariant

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # ‖out − reference‖ / ‖reference‖


def slots_of(addresses: Addresses, index: int) -> torch.Tensor:
    """Slots ``[lengths[index]]`` int64 of one sequence, in the order of its tokens."""
    tables, rows, lengths, block_size = addresses
    row = tables[int(rows[index])].long()
    token = torch.arange(int(lengths[index]), device=tables.device)
    if block_size == 0:
        return row[0] + token
    return row[token // block_size] * block_size + token % block_size


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, variant: AttentionVariant = PLAIN
) -> torch.Tensor:
    """Causal attention of the last n positions of one sequence, in float64.

    Args:
        q: ``[n, Hq, D]``.
        k: ``[t, Hkv, D]``, t ≥ n; query j stands at position ``t - n + j``.
        v: ``[t, Hkv, Dv]``.
        variant: what each query sees, and what is done to its scores.

    Returns:
        ``[n, Hq, Dv]`` float64.
    """
    queries, heads, _ = q.shape
    tokens, kv_heads, _ = k.shape
    k, v = (x.double().repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    weights = torch.einsum("qhd,thd->hqt", q.double(), k) * scale
    if variant.softcap:
        weights = torch.tanh(weights / variant.softcap) * variant.softcap
    position = torch.arange(tokens, device=q.device)
    own = (tokens - queries + torch.arange(queries, device=q.device))[:, None]
    hidden = (position > own) | (position < variant.first_seen(own))
    weights = weights.masked_fill(hidden, float("-inf"))
    if variant.sinks is not None:
        sinks = variant.sinks.double()[:, None, None].expand(-1, queries, 1)
        weights = torch.cat([weights, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = weights.softmax(-1)
    unseen = hidden.all(0)[:, None, None]  # what lies behind every window may be garbage
    return torch.einsum("hqt,thd->qhd", weights, v.masked_fill(unseen, 0))


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
    """Packed causal attention: q ``[T, Hq, D]``, pools ``[S, Hkv, D or Dv]`` -> ``[T, Hq, Dv]``, float64 or `out`.

    The queries of sequence i are the last ``query_starts[i + 1] - query_starts[i]`` of its ``lengths[i]`` tokens.
    """
    result = q.new_zeros(*q.shape[:2], v_pool.shape[2], dtype=torch.float64)
    for index in range(len(addresses.rows)):
        first, last = int(query_starts[index]), int(query_starts[index + 1])
        if last > first:
            slots = slots_of(addresses, index)
            result[first:last] = attend(q[first:last], k_pool[slots], v_pool[slots], scale, variant)
    return result if out is None else out.copy_(result)


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
    """One query per sequence: q ``[B, Hq, D]`` -> ``[B, Hq, Dv]``, float64 or `out`; length 0 gives zeros."""
    result = q.new_zeros(*q.shape[:2], v_pool.shape[2], dtype=torch.float64)
    for index, length in enumerate(addresses.lengths.tolist()):
        if length:
            slots = slots_of(addresses, index)
            result[index] = attend(q[index : index + 1], k_pool[slots], v_pool[slots], scale, variant)[0]
    return result if out is None else out.copy_(result)


def write_kv(
    k_pool: torch.Tensor, v_pool: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, slots: torch.Tensor
) -> None:
    """Stores k, v ``[T, Hkv, D]`` into ``slots`` ``[T]`` of the pools ``[S, Hkv, D]``; a negative slot is skipped."""
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_pool[slot] = k[token]
            if v is not None:
                v_pool[slot] = v[token]


def copy_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copies slots ``sources[i]`` to ``targets[i]`` in every layer of ``[L, 2, S, Hkv, D]``; the lists are disjoint."""
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        kv[:, :, target] = kv[:, :, source]


def move_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """As `copy_slots`, but the lists may overlap: all sources are read before any target is written."""
    kv[:, :, targets] = kv[:, :, sources].clone()


def swap_out(kv: torch.Tensor, host: torch.Tensor, slots: torch.Tensor, host_slots: torch.Tensor) -> None:
    """Copies ``slots[i]`` of ``kv`` ``[L, 2, S, Hkv, D]`` to ``host_slots[i]`` of ``host`` ``[L, 2, Sh, Hkv, D]``."""
    host[:, :, host_slots.to(host.device)] = kv[:, :, slots].to(host.device)


def swap_in(kv: torch.Tensor, host: torch.Tensor, slots: torch.Tensor, host_slots: torch.Tensor) -> None:
    """Copies ``host_slots[i]`` of ``host`` ``[L, 2, Sh, Hkv, D]`` to ``slots[i]`` of ``kv`` ``[L, 2, S, Hkv, D]``."""
    kv[:, :, slots] = host[:, :, host_slots.to(host.device)].to(kv.device)


def random_addresses(lengths: list[int], block_size: int, device: str) -> tuple[Addresses, int]:
    """Sequences strewn over a pool, rows and blocks shuffled, garbage wherever no token lies.

    Returns:
        The addresses, and how many slots the pool has.
    """
    batch = len(lengths)
    rows = torch.randperm(batch + 2)[:batch]
    if block_size:
        counts = [-(-length // block_size) for length in lengths]
        order = torch.randperm(sum(counts) + 3)
        tables = torch.tensor([-1, 2**31 - 1]).repeat(batch + 2, max(counts) // 2 + 2)
        for row, count, last in zip(rows.tolist(), counts, torch.tensor(counts).cumsum(0).tolist(), strict=True):
            tables[row, :count] = order[last - count : last]
        slots = len(order) * block_size
    else:
        tables = torch.full((batch + 2, 2), -1)
        slots = 5
        for index in torch.randperm(batch).tolist():
            tables[rows[index], 0] = slots
            slots += lengths[index] + 3
    tables, rows, stored = (x.to(device, torch.int32) for x in (tables, rows, torch.tensor(lengths)))
    return Addresses(tables, rows, stored, block_size), slots


def relative_error(out: torch.Tensor, want: torch.Tensor) -> float:
    """‖out − want‖ / ‖want‖; ‖out‖ where want is zero or empty; NaN where out holds one."""
    norm = want.double().norm()
    return float((out.double() - want.double()).norm() / (norm if norm > 0 else 1.0))
