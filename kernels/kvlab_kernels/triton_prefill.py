"""Prefill attention in Triton: packed sequences of any length, causal, K and V read from the pool (paged or extent).

The queries of a sequence are the last of its tokens, so a prompt, a chunk of a prompt and a prompt behind a cached
prefix are one case. Addressing is the decode kernel's: `tile_entries` and `tile_slots`.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kvlab_kernels.addresses import Addresses
from kvlab_kernels.triton_decode import cap_scores, first_seen, scale_and_cap, tile_entries, tile_slots
from kvlab_kernels.triton_widths import Widths, check_pools, output_for
from kvlab_kernels.variant import PLAIN, AttentionVariant


class PrefillConfig(NamedTuple):
    """How a prefill kernel is built: queries and tokens per tile, warps, pipeline stages."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def prefill_config(widths: Widths, dtype: torch.dtype, altered: bool = False) -> PrefillConfig:
    """The configuration for widths and a dtype: the accumulator [block_m, Dv] decides what fits in registers.

    Args:
        altered: scores are capped, or limited by a window or a chunk, which takes registers of its own (and in a
            window fewer queries see more of the same tokens).
    """
    padded = triton.next_power_of_2(widths.head)
    if padded == 512:
        return PrefillConfig(16, 16, 16, 2) if dtype == torch.float32 else PrefillConfig(32, 32, 8, 2)
    if altered and dtype == torch.float32:
        return PrefillConfig(16, 16 if padded == 128 else 32, num_warps=8 if padded > 64 else 4, num_stages=2)
    if altered:
        block_m, num_warps = (32, 4) if padded == 256 else (64, 8)
        return PrefillConfig(block_m, 32, num_warps, num_stages=2)
    if dtype == torch.float32:  # multiply-add tiles: anything larger spills on sm_90
        block_m, num_warps = {64: (32, 4), 128: (32, 8), 256: (16, 8 if widths.rest else 4)}[padded]
        return PrefillConfig(block_m=block_m, block_n=max(16, 2048 // padded), num_warps=num_warps, num_stages=2)
    if padded == 256:
        return PrefillConfig(block_m=64, block_n=32, num_warps=8, num_stages=2)
    if widths.rest:
        return PrefillConfig(block_m=64, block_n=64, num_warps=8, num_stages=2)
    return PrefillConfig(block_m=128, block_n=64, num_warps=8, num_stages=3)


@triton.jit
def tile_mask(inside, position, first, stop, MASKED: tl.constexpr, LIMITED: tl.constexpr):
    """Which numbers `inside` a row are read, of which positions of a tile: none behind `stop`, which no query sees."""
    mask = inside[None, :]
    if MASKED:
        mask = mask & (position < stop)[:, None]
    if LIMITED:
        mask = mask & (position >= first)[:, None]
    return mask


@triton.jit
def attend_tiles(
    result, top, total, query, query_rest, query_position, k_head, v_head, table, start, stop, kv_heads,
    scale, cap, first, window, chunk,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, REST: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr, LATENT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PAGED: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr, LIMITED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Online softmax over the tiles of `start … stop`; MASKED where a tile crosses the diagonal or the end.

    LIMITED (and MASKED then): no query sees what lies before `first`, which is not read.
    """
    dim = tl.arange(0, HEAD_PAD)
    value_dim = tl.arange(0, VALUE_PAD)
    stride = kv_heads * (HEAD_DIM + REST)
    value_stride = kv_heads * VALUE_DIM
    entries = tile_entries(table, start, stop, BLOCK_N, BLOCK_SIZE, PAGED)
    for tile in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        base, offsets = tile_slots(entries, tile, BLOCK_N, BLOCK_SIZE, PAGED)
        if PAGED:
            entries = tile_entries(table, tile + BLOCK_N, stop, BLOCK_N, BLOCK_SIZE, PAGED)
        position = tile + tl.arange(0, BLOCK_N)
        place = base * stride + (offsets[:, None] * stride + dim[None, :])
        mask = tile_mask(dim < HEAD_DIM, position, first, stop, MASKED, LIMITED)
        keys = tl.load(k_head + place, mask=mask, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if REST:
            rest = tl.arange(0, REST)
            place = base * stride + (offsets[:, None] * stride + (HEAD_DIM + rest)[None, :])
            mask = tile_mask(rest < REST, position, first, stop, MASKED, LIMITED)
            more = tl.load(k_head + place, mask=mask, other=0.0)
            scores = tl.dot(query_rest, tl.trans(more), scores, input_precision="ieee")
        scores = cap_scores(scores, scale, cap, CAPPED)
        if MASKED:
            scores = tl.where(position[None, :] <= query_position[:, None], scores, float("-inf"))
        if LIMITED:
            seen = position[None, :] >= first_seen(query_position, window, chunk)[:, None]
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        if LIMITED:  # of a tile that a query does not see at all
            new_top = tl.maximum(new_top, -1e30)
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, axis=1)
        if LATENT:
            values = keys
        else:
            place = base * value_stride + (offsets[:, None] * value_stride + value_dim[None, :])
            mask = tile_mask(value_dim < VALUE_DIM, position, first, stop, MASKED, LIMITED)
            values = tl.load(v_head + place, mask=mask, other=0.0)
        result = tl.dot(weights.to(values.dtype), values, result * shrink[:, None], input_precision="ieee")
        top = new_top
    return result, top, total


@triton.jit(do_not_specialize=["table_stride", "kv_heads", "window", "chunk"])
def prefill_kernel(
    q, k_pool, v_pool, out, tables, rows, lengths, query_starts, sinks,
    scale, cap, window, chunk, q_stride_token, q_stride_head, table_stride, kv_heads,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, REST: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr, LATENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr, STAGES: tl.constexpr, LIMITED: tl.constexpr, CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    """Program (query head, tile of queries, sequence). Heads of one group run side by side and share K in L2."""
    head = tl.program_id(0)
    heads = tl.num_programs(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the last queries see most tokens: start with them
    sequence = tl.program_id(2)
    first = tl.load(query_starts + sequence)
    queries = tl.load(query_starts + sequence + 1) - first
    if tile * BLOCK_M >= queries:
        return
    length = tl.load(lengths + sequence)
    context = length - queries  # tokens before the first query
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dim = tl.arange(0, HEAD_PAD)
    there = (row < queries)[:, None]
    token = (first + row).to(tl.int64)
    own = q + token[:, None] * q_stride_token + head * q_stride_head
    query = tl.load(own + dim[None, :], mask=there & (dim < HEAD_DIM)[None, :], other=0.0)
    query_rest = query
    if REST:
        query_rest = tl.load(own + HEAD_DIM + tl.arange(0, REST)[None, :], mask=there, other=0.0)

    table = tables + tl.load(rows + sequence).to(tl.int64) * table_stride
    kv_head = head // (heads // kv_heads)
    k_head = k_pool + kv_head * (HEAD_DIM + REST)
    v_head = v_pool + kv_head * VALUE_DIM

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, VALUE_PAD], tl.float32)
    seen_by_all = (context + tile * BLOCK_M + 1) // BLOCK_N * BLOCK_N  # whole tiles that even the first query sees
    stop = tl.minimum(length, context + (tile + 1) * BLOCK_M)
    first = 0
    if LIMITED:
        first = first_seen(context + tile * BLOCK_M, window, chunk)
        seen_by_all = first // BLOCK_N * BLOCK_N
    else:
        result, top, total = attend_tiles(
            result, top, total, query, query_rest, context + row, k_head, v_head, table, 0, seen_by_all, kv_heads,
            scale, cap, first, window, chunk,
            HEAD_DIM, HEAD_PAD, REST, VALUE_DIM, VALUE_PAD, LATENT, BLOCK_N, BLOCK_SIZE, PAGED, False, STAGES, False,
            CAPPED,
        )  # fmt: skip
    result, top, total = attend_tiles(
        result, top, total, query, query_rest, context + row, k_head, v_head, table, seen_by_all, stop, kv_heads,
        scale, cap, first, window, chunk,
        HEAD_DIM, HEAD_PAD, REST, VALUE_DIM, VALUE_PAD, LATENT, BLOCK_N, BLOCK_SIZE, PAGED, True, STAGES, LIMITED,
        CAPPED,
    )  # fmt: skip
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        new_top = tl.maximum(top, sink)
        result = result * tl.exp2(top - new_top)[:, None]
        total = total * tl.exp2(top - new_top) + tl.exp2(sink - new_top)
    result = result / total[:, None]  # never zero: every query sees itself
    value_dim = tl.arange(0, VALUE_PAD)
    place = (token[:, None] * heads + head) * VALUE_DIM + value_dim[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=there & (value_dim < VALUE_DIM)[None, :])


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
    *,
    config: PrefillConfig | None = None,
) -> torch.Tensor:
    """Causal attention of packed queries; K and V of all tokens, these queries' own included, are in the pool already.

    Args:
        q: ``[T, Hq, D]``; the last dimension dense, the others with any stride.
        k_pool, v_pool: ``[S, Hkv, D]`` and ``[S, Hkv, Dv]``; as `triton_decode.decode_attention` takes them.
        addresses: where the tokens lie; entries beyond a length are never read.
        query_starts: ``[B + 1]`` int32; sequence i owns queries ``query_starts[i] … query_starts[i + 1]`` (none is
            allowed), the last of its ``lengths[i]`` tokens.
        scale: multiplies the scores.
        out: ``[T, Hq, Dv]`` contiguous, written and returned; allocated when None.
        max_query: host-known bound of the queries of one sequence (T when None). A bound below the truth leaves
            queries unanswered.
        max_length: not needed here; the same signature as the other backends.
        variant: what a query sees, and what is done to its scores. Of a window only its own tiles are read.
        config: overrides `prefill_config` (tests, tuning).

    Raises:
        ValueError: shapes, strides or dtypes that the kernel does not serve.
    """
    widths = check_pools(q, k_pool, v_pool, addresses)
    tokens, heads, _ = q.shape
    out = output_for(q, widths.value, out)
    if tokens == 0:
        return out
    config = config or prefill_config(widths, q.dtype, variant.reach > 0 or variant.softcap > 0)
    tiles = triton.cdiv(tokens if max_query is None else max_query, config.block_m)
    factor, cap = scale_and_cap(scale, variant)
    sinks = out if variant.sinks is None else variant.sinks  # never read where there are none
    prefill_kernel[(heads, tiles, len(addresses.rows))](
        q, k_pool, v_pool, out, addresses.tables, addresses.rows, addresses.lengths, query_starts, sinks,
        factor, cap, variant.window, variant.chunk, q.stride(0), q.stride(1), addresses.tables.stride(0),
        k_pool.shape[1],
        **widths.constants, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_SIZE=addresses.block_size, PAGED=addresses.block_size > 0, STAGES=config.num_stages,
        LIMITED=variant.reach > 0, CAPPED=variant.softcap > 0, SINKS=variant.sinks is not None,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return out
