"""Decode attention in Triton: one query per sequence, split over the context (flash-decoding), paged or extent.

One source serves both placements: `PAGED` only chooses how `tile_slots` turns positions into slots, so the difference
between two measurements is the cost of addressing and nothing else. The launch grid depends on host-known values only
(batch, heads, `max_length`, processor count), hence a CUDA graph can replay it with other tables and lengths.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kvlab_kernels.addresses import Addresses
from kvlab_kernels.triton_widths import Widths, check_pools, output_for
from kvlab_kernels.variant import PLAIN, AttentionVariant

LOG2_E = 1.4426950408889634
GROUP_ROWS = 16  # rows of the tensor-core tile that the query heads of one KV head fill
MIN_TILES = 2  # a split shorter than this costs more in the second stage than it gains
MAX_SPLITS = 64  # what the second stage holds in registers at once
LONGEST_SPLIT = 8192  # tokens; keeps one long context in a ragged batch from running on a single processor
RESIDENT = 2  # programs that a processor holds at once (bounded by shared memory, see compile_gate)


class DecodeConfig(NamedTuple):
    """How a decode kernel is built: tokens per tile, tensor cores or plain reduction, warps, pipeline stages."""

    block_n: int
    use_dot: bool
    num_warps: int
    num_stages: int


def decode_config(group: int, widths: Widths, dtype: torch.dtype) -> DecodeConfig:
    """The configuration for `group` query heads per KV head; a pure function, so nothing is tuned at run time.

    A tile of K is 16 KiB: large enough for 16-byte loads by every thread, small enough that K, V and their copies in
    flight leave room for two or three programs per processor and that nothing spills. 16-bit heads always use tensor
    cores, even where 1 of 16 rows is in use: the reduction (a group of 1 may ask for it) takes 168-217 registers and
    358 shuffles at head_dim 128, where the padded tile takes 114 and 12.
    """
    padded = triton.next_power_of_2(widths.head)
    if dtype == torch.float32:  # no tensor cores in full precision: a multiply-add tile must stay small
        num_warps = 8 if widths.rest and padded == 256 else 4  # a second tile of keys spills on sm_80 with 4
        return DecodeConfig(block_n=max(16, 2048 // padded), use_dot=group > 1, num_warps=num_warps, num_stages=3)
    return DecodeConfig(block_n=8192 // padded, use_dot=True, num_warps=4, num_stages=3)


def choose_splits(programs: int, max_length: int, block_n: int, processors: int) -> int:
    """Into how many parts to cut each context, from host-known values only.

    The smallest number whose waves of programs are nearly (85 %) as full as the best number would make them.

    Args:
        programs: programs that one split launches (batch × tiles of query heads).
        max_length: upper bound of the context lengths.
        block_n: tokens per tile.
        processors: streaming multiprocessors of the device.
    """
    tiles = max(1, triton.cdiv(max_length, block_n))
    most = min(MAX_SPLITS, triton.cdiv(tiles, MIN_TILES))
    least = min(most, triton.cdiv(max(1, max_length), LONGEST_SPLIT))
    # a split is a whole number of tiles: of the numbers in this range, those that would leave no split empty
    candidates = sorted({triton.cdiv(tiles, triton.cdiv(tiles, splits)) for splits in range(least, most + 1)})

    def fullness(splits: int) -> float:
        waves = programs * splits / (processors * RESIDENT)
        return waves / max(1, -(-programs * splits // (processors * RESIDENT)))

    enough = 0.85 * max(map(fullness, candidates))
    return next(splits for splits in candidates if fullness(splits) >= enough)


def workspace_size(batch: int, heads: int, head_dim: int, splits: int) -> int:
    """float32 elements that the partial results of `decode_attention` take (0 when the context is not split)."""
    return batch * heads * splits * (head_dim + 1) if splits > 1 else 0


@triton.jit
def tile_entries(table, start, end, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr):
    """Table entries of positions `start … start + BLOCK_N`: one scalar, or [BLOCK_N] where blocks are smaller.

    No entry at or beyond `end` is read: it may be garbage, or lie behind the table.
    """
    if not PAGED:
        return tl.load(table)
    elif BLOCK_SIZE >= BLOCK_N:
        return tl.load(table + start // BLOCK_SIZE, mask=start < end, other=0)
    else:
        positions = start + tl.arange(0, BLOCK_N)
        return tl.load(table + positions // BLOCK_SIZE, mask=positions < end, other=0)


@triton.jit
def tile_slots(entries, start, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr):
    """Slots of positions `start … start + BLOCK_N` as (scalar base int64, offsets [BLOCK_N]).

    Where a tile lies inside one block, or in an extent, its slots are consecutive and one scalar says where.
    """
    offsets = tl.arange(0, BLOCK_N)
    if not PAGED:
        base = entries.to(tl.int64) + start
    elif BLOCK_SIZE >= BLOCK_N:
        base = entries.to(tl.int64) * BLOCK_SIZE + start % BLOCK_SIZE
    else:
        base = tl.full((), 0, tl.int64)
        offsets = entries.to(tl.int64) * BLOCK_SIZE + (start + offsets) % BLOCK_SIZE
    return base, offsets


@triton.jit
def first_seen(position, window, chunk):
    """The first position that queries at `position` see: of the last `window`, of their `chunk` (0 = no limit)."""
    first = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    return tl.maximum(first, tl.where(chunk > 0, position // tl.maximum(chunk, 1) * chunk, 0))


@triton.jit
def cap_scores(scores, scale, cap, CAPPED: tl.constexpr):
    """Scores in units of log 2. Capped, `scale` leads to the argument of tanh: 1 - 2 / (e^2x + 1)."""
    scores = scores * scale
    if CAPPED:
        scores = cap * (1.0 - 2.0 / (tl.exp2(scores * 2.885390081777927) + 1.0))
    return scores


@triton.jit
def split_tokens(length, splits, BLOCK_N: tl.constexpr, MIN_TILES: tl.constexpr):
    """Tokens per split of one sequence: its own length shared out, in whole tiles (both stages must agree)."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, BLOCK_N), splits), MIN_TILES) * BLOCK_N


@triton.jit(do_not_specialize=["table_stride", "kv_heads", "splits", "window", "chunk"])
def decode_kernel(
    q, k_pool, v_pool, out, partial, log_sums, tables, rows, lengths, sinks,
    scale, cap, window, chunk, q_stride_batch, q_stride_head, table_stride, kv_heads, splits,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, REST: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PAD: tl.constexpr, LATENT: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PAGED: tl.constexpr, USE_DOT: tl.constexpr, SPLIT: tl.constexpr,
    MIN_TILES: tl.constexpr, STAGES: tl.constexpr, LIMITED: tl.constexpr, CAPPED: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Program (tile of query heads, split, sequence): up to ROWS query heads of one KV head against one split."""
    TILES: tl.constexpr = (GROUP + ROWS - 1) // ROWS
    head_tile = tl.program_id(0)  # fastest, so that heads whose K lie side by side in memory run side by side
    split = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    kv_head = head_tile // TILES
    length = tl.load(lengths + sequence)
    first = 0
    start = 0
    end = length
    if LIMITED:  # whole tiles from the one with the first token that is seen
        first = first_seen(length - 1, window, chunk)
        start = first // BLOCK_N * BLOCK_N
    if SPLIT:
        share = split_tokens(length - start, splits, BLOCK_N, MIN_TILES)
        start += split * share
        if start >= length:  # the second stage does not read what an empty split leaves unwritten
            return
        end = tl.minimum(start + share, length)

    member = (head_tile % TILES) * ROWS + tl.arange(0, ROWS)
    head = kv_head * GROUP + member
    dim = tl.arange(0, HEAD_PAD)
    in_head = dim < HEAD_DIM
    own = q + sequence * q_stride_batch + head[:, None] * q_stride_head
    query = tl.load(own + dim[None, :], mask=(member < GROUP)[:, None] & in_head[None, :], other=0.0)
    if REST:
        rest = tl.arange(0, REST)
        query_rest = tl.load(own + HEAD_DIM + rest[None, :], mask=(member < GROUP)[:, None], other=0.0)
    if not USE_DOT:
        query = query.to(tl.float32)

    table = tables + tl.load(rows + sequence).to(tl.int64) * table_stride
    value_dim = tl.arange(0, VALUE_PAD)
    in_value = value_dim < VALUE_DIM
    stride = kv_heads * (HEAD_DIM + REST)
    value_stride = kv_heads * VALUE_DIM
    k_head = k_pool + kv_head * (HEAD_DIM + REST)
    v_head = v_pool + kv_head * VALUE_DIM

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, VALUE_PAD], tl.float32)
    entries = tile_entries(table, start, end, BLOCK_N, BLOCK_SIZE, PAGED)
    for tile in tl.range(start, end, BLOCK_N, num_stages=STAGES):
        base, offsets = tile_slots(entries, tile, BLOCK_N, BLOCK_SIZE, PAGED)
        if PAGED:  # a tile ahead: were it read here, K and V would wait for it and lose a stage of their pipeline
            entries = tile_entries(table, tile + BLOCK_N, end, BLOCK_N, BLOCK_SIZE, PAGED)
        valid = tile + tl.arange(0, BLOCK_N) < end
        if LIMITED:
            valid = valid & (tile + tl.arange(0, BLOCK_N) >= first)
        place = base * stride + (offsets[:, None] * stride + dim[None, :])
        keys = tl.load(k_head + place, mask=valid[:, None] & in_head[None, :], other=0.0)
        if USE_DOT:
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        else:
            scores = tl.sum(query * keys.to(tl.float32), axis=1)[None, :]
        if REST:
            place = base * stride + (offsets[:, None] * stride + (HEAD_DIM + rest)[None, :])
            more = tl.load(k_head + place, mask=valid[:, None], other=0.0)
            scores = tl.dot(query_rest, tl.trans(more), scores, input_precision="ieee")
        scores = tl.where(valid[None, :], cap_scores(scores, scale, cap, CAPPED), float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, axis=1)
        if LATENT:
            values = keys
        else:
            place = base * value_stride + (offsets[:, None] * value_stride + value_dim[None, :])
            values = tl.load(v_head + place, mask=valid[:, None] & in_value[None, :], other=0.0)
        if USE_DOT:
            result = tl.dot(weights.to(values.dtype), values, result * shrink[:, None], input_precision="ieee")
        else:
            gain = tl.sum(tl.trans(weights) * values.to(tl.float32), axis=0)
            result = result * shrink[:, None] + gain[None, :]
        top = new_top

    if SINKS and not SPLIT:  # a split leaves them to the second stage
        sink = tl.load(sinks + head, mask=member < GROUP, other=0.0).to(tl.float32) * 1.4426950408889634
        new_top = tl.maximum(top, sink)
        result = result * tl.exp2(top - new_top)[:, None]
        total = total * tl.exp2(top - new_top) + tl.exp2(sink - new_top)
    result = result / tl.where(total > 0, total, 1.0)[:, None]  # no token at all: zeros
    lane = sequence * (kv_heads * GROUP) + head
    in_rows = (member < GROUP)[:, None] & in_value[None, :]
    if SPLIT:
        lane = lane * splits + split
        tl.store(log_sums + lane, top + tl.log2(total), mask=member < GROUP)
        tl.store(partial + lane[:, None] * VALUE_DIM + value_dim[None, :], result, mask=in_rows)
    else:
        tl.store(out + lane[:, None] * VALUE_DIM + value_dim[None, :], result.to(out.dtype.element_ty), mask=in_rows)


@triton.jit(do_not_specialize=["splits", "window", "chunk"])
def reduce_kernel(
    partial, log_sums, out, lengths, sinks, splits, window, chunk,
    VALUE_DIM: tl.constexpr, VALUE_PAD: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS_PAD: tl.constexpr,
    MIN_TILES: tl.constexpr, LIMITED: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Program (query head, sequence): joins the splits, each weighted by its share of the softmax's denominator."""
    sequence = tl.program_id(1).to(tl.int64)
    lane = sequence * tl.num_programs(0) + tl.program_id(0)
    length = tl.load(lengths + sequence)
    if LIMITED:
        length -= first_seen(length - 1, window, chunk) // BLOCK_N * BLOCK_N
    used = tl.cdiv(length, split_tokens(length, splits, BLOCK_N, MIN_TILES))
    split = tl.arange(0, SPLITS_PAD)
    dim = tl.arange(0, VALUE_PAD)
    log_sum = tl.load(log_sums + lane * splits + split, mask=split < used, other=float("-inf"))
    top = tl.where(used > 0, tl.max(log_sum, axis=0), 0.0)
    if SINKS:
        sink = tl.load(sinks + tl.program_id(0)).to(tl.float32) * 1.4426950408889634
        top = tl.maximum(top, sink)
    weights = tl.exp2(log_sum - top)
    total = tl.sum(weights, axis=0)
    if SINKS:
        total += tl.exp2(sink - top)
    mask = (split < used)[:, None] & (dim < VALUE_DIM)[None, :]
    parts = tl.load(partial + (lane * splits + split)[:, None] * VALUE_DIM + dim[None, :], mask=mask, other=0.0)
    result = tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    tl.store(out + lane * VALUE_DIM + dim, result.to(out.dtype.element_ty), mask=dim < VALUE_DIM)


@lru_cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of `device` (1 where Triton's interpreter runs on the CPU)."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def longest(addresses: Addresses, k_pool: torch.Tensor) -> int:
    """The host-known bound of a context length when the caller names none: what a table row can address."""
    return addresses.tables.shape[1] * addresses.block_size if addresses.block_size else k_pool.shape[0]


def scale_and_cap(scale: float, variant: AttentionVariant) -> tuple[float, float]:
    """What `cap_scores` takes: plain scores in units of log 2, or the argument of tanh and what it is multiplied by."""
    if not variant.softcap:
        return scale * LOG2_E, 0.0
    return scale / variant.softcap, variant.softcap * LOG2_E


def decode_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    addresses: Addresses,
    scale: float,
    out: torch.Tensor | None = None,
    max_length: int | None = None,
    variant: AttentionVariant = PLAIN,
    *,
    workspace: torch.Tensor | None = None,
    splits: int | None = None,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """One query per sequence attends to the `lengths[i]` tokens stored for it.

    Args:
        q: ``[B, Hq, D]``; the last dimension dense, the others with any stride.
        k_pool, v_pool: ``[S, Hkv, D]`` and ``[S, Hkv, Dv]`` contiguous, of widths that `triton_widths` names, Hq a
            multiple of Hkv; of a latent the values are a view of the first columns of the keys.
        addresses: where the tokens lie; a length of 0 gives zeros, entries beyond a length are never read.
        scale: multiplies the scores.
        out: ``[B, Hq, Dv]`` contiguous, written and returned; allocated when None.
        max_length: host-known bound of `lengths`. It decides the grid, never the result: a wrong bound is only slow.
        variant: what a query sees, and what is done to its scores. Of a window only its own tiles are read.
        workspace: float32, at least `workspace_size` elements; allocated when None.
        splits, config: override `choose_splits` and `decode_config` (tests, tuning).

    Raises:
        ValueError: shapes, strides or dtypes that the kernel does not serve, or a workspace too small.
    """
    widths = check_pools(q, k_pool, v_pool, addresses)
    batch, heads, _ = q.shape
    kv_heads = k_pool.shape[1]
    group = heads // kv_heads
    out = output_for(q, widths.value, out)
    if batch == 0:
        return out
    config = config or decode_config(group, widths, q.dtype)
    rows = GROUP_ROWS if config.use_dot else 1
    head_tiles = kv_heads * triton.cdiv(group, rows)
    if splits is None:
        bound = longest(addresses, k_pool) if max_length is None else max_length
        if variant.reach:
            bound = min(bound, variant.reach + config.block_n)
        splits = choose_splits(batch * head_tiles, bound, config.block_n, processors(q.device))
    partial, log_sums = _workspace(workspace, batch * heads * splits, widths.value, splits, q.device)
    factor, cap = scale_and_cap(scale, variant)
    sinks = out if variant.sinks is None else variant.sinks  # never read where there are none
    flags = {"LIMITED": variant.reach > 0, "SINKS": variant.sinks is not None}
    decode_kernel[(head_tiles, splits, batch)](
        q, k_pool, v_pool, out, partial, log_sums, addresses.tables, addresses.rows, addresses.lengths, sinks,
        factor, cap, variant.window, variant.chunk, q.stride(0), q.stride(1), addresses.tables.stride(0), kv_heads,
        splits, GROUP=group, ROWS=rows, **widths.constants, BLOCK_N=config.block_n, BLOCK_SIZE=addresses.block_size,
        PAGED=addresses.block_size > 0, USE_DOT=config.use_dot, SPLIT=splits > 1, MIN_TILES=MIN_TILES,
        STAGES=config.num_stages, **flags,
        CAPPED=variant.softcap > 0,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits > 1:
        reduce_kernel[(heads, batch)](
            partial, log_sums, out, addresses.lengths, sinks, splits, variant.window, variant.chunk, **flags,
            VALUE_DIM=widths.value, VALUE_PAD=triton.next_power_of_2(widths.value), BLOCK_N=config.block_n,
            SPLITS_PAD=triton.next_power_of_2(splits), MIN_TILES=MIN_TILES, num_warps=4,
        )  # fmt: skip
    return out


def _workspace(
    workspace: torch.Tensor | None, lanes: int, head_dim: int, splits: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial results ``[lanes, D]`` and their log sums ``[lanes]``; both float32, both in one allocation."""
    size = lanes * (head_dim + 1) if splits > 1 else 1
    if workspace is None:
        workspace = torch.empty(size, dtype=torch.float32, device=device)
    if workspace.numel() < size or workspace.dtype != torch.float32:
        raise ValueError(f"workspace needs {size} float32 elements, has {workspace.numel()} of {workspace.dtype}")
    return workspace, workspace[lanes * head_dim :] if splits > 1 else workspace
