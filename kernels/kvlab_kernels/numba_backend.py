"""The kernels on the CPU: float32, compiled by numba; other dtypes go to `kvlab_kernels.torch_backend`.

Decoding reads every stored key and value once and does little else, so its limit is the memory. Four things keep it
there. Tokens are the outer loop and heads the inner one, because a token's heads lie next to each other: the reads are
one long run even when blocks are scattered. Four tokens are taken at a time, so the accumulators are loaded and stored
once for four of them. Memory is asked for one chunk of tokens ahead. The work is cut by tokens, not by sequences:
every thread gets the same number of tokens.

Kernels are compiled on first use, one per head size, and cached on disk; no other shape compiles anything. They run on
as many threads as `numba.set_num_threads` says.
"""

# Compiled functions carry no annotations: numba reads their types from the arguments, and names say what each is.
# mypy: allow-untyped-defs, disable-error-code="call-arg"

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from kvlab_kernels import torch_backend
from kvlab_kernels.addresses import Addresses
from kvlab_kernels.cached import cached_njit
from kvlab_kernels.torch_backend import prefill_attention, swap_in, swap_out, values_in_keys
from kvlab_kernels.variant import PLAIN, AttentionVariant

__all__ = ["copy_slots", "decode_attention", "move_slots", "prefill_attention", "swap_in", "swap_out", "write_kv"]

# PyTorch's own threads are GNU OpenMP's. Sharing them beats a second pool that fights the first for the same cores.
numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]  # type: ignore[attr-defined]

_CHUNK = 16  # tokens whose scores are kept at a time, and how far ahead memory is asked for
_LOWEST = np.float32(-3e38)  # a score below all others; infinity would turn differences into NaN
_NO_SINKS = np.empty(0, np.float32)


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
    """Attend with one query per sequence; see `kvlab_kernels.torch_backend.decode_attention` for the arguments.

    Raises:
        TypeError: the pools or ``out`` are not contiguous (but for values that are a part of the keys), or the
            addresses are not int32.
    """
    if q.dtype != torch.float32 or k_pool.dtype != torch.float32:
        return torch_backend.decode_attention(q, k_pool, v_pool, addresses, scale, out, max_length, variant)
    tables, rows, lengths, block_size = addresses
    queries, keys = q.contiguous().numpy(), k_pool.numpy()
    values = keys if values_in_keys(k_pool, v_pool) else v_pool.numpy()
    width = v_pool.shape[2]
    out = torch.empty(*q.shape[:2], width) if out is None else out
    threads = numba.get_num_threads()
    kernel = _decode_kernel(queries.shape[2], width, threads > 1, variant.softcap > 0)
    sinks = _NO_SINKS if variant.sinks is None else variant.sinks.detach().numpy()
    kernel(
        queries,
        keys,
        values,
        tables.numpy(),
        rows.numpy(),
        lengths.numpy(),
        block_size,
        scale,
        out.numpy(),
        threads,
        variant.window,
        variant.chunk,
        variant.softcap,
        sinks,
    )
    return out


def write_kv(
    k_pool: torch.Tensor, v_pool: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, slots: torch.Tensor
) -> None:
    """Store ``k`` and ``v``; see `kvlab_kernels.torch_backend.write_kv`."""
    if k_pool.dtype != torch.float32 or k.dtype != torch.float32:
        return torch_backend.write_kv(k_pool, v_pool, k, v, slots)
    where = slots.numpy()
    if v is None:
        return _write_keys(k_pool.numpy(), k.contiguous().numpy(), where)
    _write(k_pool.numpy(), v_pool.numpy(), k.contiguous().numpy(), v.contiguous().numpy(), where)


def copy_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy slots ``sources[N]`` to ``targets[N]`` (int64, disjoint) in every layer of ``kv`` ``[L, 2, S, Hkv, D]``."""
    move_slots(kv, sources, targets)


def move_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy as `copy_slots` does, but sources and targets may overlap: as if all sources were read first."""
    if kv.dtype != torch.float32:
        return torch_backend.move_slots(kv, sources, targets)
    planes = kv.view(kv.shape[0] * kv.shape[1], kv.shape[2], -1).numpy()
    _move(planes, sources.numpy(), targets.numpy())


@cache
def _decode_kernel(head_dim: int, value_dim: int, parallel: bool, capped: bool) -> Callable[..., None]:
    """The kernel for one size of keys and values, serial or cut into ``pieces`` for threads, with scores capped or not.

    Windows, chunks and sinks need no kernel of their own: they only say where a sequence begins, and what its sum is.
    """

    def decode(
        queries, keys, values, tables, rows, lengths, block_size, scale, out, pieces, window, chunk, softcap, sinks
    ):
        # An extent is a block longer than any sequence, whose table entry counts slots.
        shift, unit = (31, 1) if block_size == 0 else (_log2(block_size), block_size)
        # Beside saving work, this makes `parallel` a part of the compiled code: the disk cache asks for no more, and
        # would otherwise hand out one of the twins for the other.
        pieces = pieces if parallel else 1
        batch, heads, _ = queries.shape
        group = heads // keys.shape[1]
        tokens = 0  # that are seen
        for i in range(batch):
            tokens += lengths[i] - _first_seen(lengths[i], window, chunk)
        # Of each piece: 0 for a sequence begun in an earlier piece, 1 for one begun here (and perhaps ended later).
        weighted = np.empty((pieces, 2, heads, value_dim), np.float32)
        highest = np.empty((pieces, 2, heads), np.float32)
        total = np.empty((pieces, 2, heads), np.float32)
        for piece in prange(pieces):
            first, last = tokens * piece // pieces, tokens * (piece + 1) // pieces
            start = 0  # of sequence i, in the row of all tokens that are seen
            for i in range(batch):
                unseen = _first_seen(lengths[i], window, chunk)
                count = lengths[i] - unseen
                begin, end = max(first - start, 0), min(last - start, count)
                if begin < end:
                    side = 0 if begin > 0 else 1
                    _attend(
                        queries[i], keys, values, tables[rows[i]], shift, unit, unseen + begin, unseen + end, scale,
                        weighted[piece, side], highest[piece, side], total[piece, side], head_dim, value_dim, group,
                        capped, softcap,
                    )  # fmt: skip
                    if end - begin == count:
                        _normalize(
                            weighted[piece, side], highest[piece, side], total[piece, side], sinks, out[i], value_dim
                        )
                start += count
        _merge(lengths, window, chunk, tokens, pieces, weighted, highest, total, sinks, out, value_dim)

    vector, matrix, cube = numba.int32[::1], numba.int32[:, ::1], numba.float32[:, :, ::1]
    signature = numba.void(
        cube, cube, cube, matrix, vector, vector, numba.int64, numba.float32, cube, numba.int64, numba.int64,
        numba.int64, numba.float32, numba.float32[::1],
    )  # fmt: skip
    return cached_njit(signature, parallel=parallel, fastmath=True, error_model="numpy", nogil=True)(decode)


@njit(forceinline=True, error_model="numpy")
def _first_seen(length, window, chunk):
    """The first position that the last of ``length`` tokens sees; a window or chunk of 0 is none."""
    first = np.int64(0)
    if window > 0:
        first = max(first, length - window)
    if chunk > 0 and length > 0:
        first = max(first, (length - 1) // chunk * chunk)
    return first


@njit(forceinline=True, fastmath=True, error_model="numpy")
def _attend(query, keys, values, table, shift, unit, begin, end, scale, weighted, highest, total, head_dim, value_dim,
            group, capped, softcap):  # fmt: skip
    """Attend to tokens ``begin`` to ``end`` of one sequence: ``weighted`` is left unnormalised."""
    heads = query.shape[0]
    slots = np.empty(2 * _CHUNK, np.int64)  # of the tokens in hand and of the next ones, to be fetched ahead
    scores = np.zeros((heads, _CHUNK), np.float32)
    exponents = np.empty(_CHUNK, np.int32)
    weighted[:] = 0
    highest[:] = _LOWEST
    total[:] = 0
    _look_up(table, shift, unit, begin, end, slots[_CHUNK:])
    for start in range(begin, end, _CHUNK):
        slots[:_CHUNK] = slots[_CHUNK:]
        _look_up(table, shift, unit, start + _CHUNK, end, slots[_CHUNK:])
        count = min(_CHUNK, end - start)
        padded = (count + 3) // 4 * 4
        for c in range(0, padded, 4):
            _score_four(query, keys, values, slots[c : c + 4], scale, scores[:, c : c + 4], head_dim, value_dim, group)
        for head in range(heads):
            if capped:
                for c in range(padded):
                    scores[head, c] = softcap * math.tanh(scores[head, c] / softcap)
            top = highest[head]
            for c in range(padded):
                top = max(top, scores[head, c])
            if top > highest[head]:
                factor = math.exp(max(highest[head] - top, np.float32(-87)))
                highest[head] = top
                total[head] *= factor
                for d in range(value_dim):
                    weighted[head, d] *= factor
            total[head] += _exponentiate(scores[head], top, count, exponents)
        for c in range(0, padded, 4):
            _add_four(values, keys, slots[c:], scores[:, c : c + 4], weighted, head_dim, value_dim, group)


@njit(forceinline=True, error_model="numpy")
def _log2(block_size):
    shift = 0
    while 1 << shift < block_size:
        shift += 1
    return shift


@njit(forceinline=True, error_model="numpy")
def _look_up(table, shift, unit, begin, end, slots):
    """Slots of the tokens from ``begin``; past ``end`` the last one is repeated (it will have weight 0)."""
    for c in range(_CHUNK):
        token = min(begin + c, end - 1)
        slots[c] = np.int64(table[token >> shift]) * unit + (token & ((1 << shift) - 1))


@intrinsic
def _prefetch(typing_context, row, index):
    """Ask for the cache line of ``row[index]``: the hardware foresees runs, but neither blocks nor the next extent."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), cgutils.voidptr_t)
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, integer, integer, integer])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, integer(0), integer(2), integer(1)])  # to read, into the L2 cache, data
        return context.get_dummy_value()

    return types.void(row, types.intp), generate


@njit(forceinline=True, fastmath=True, error_model="numpy")
def _score_four(query, keys, values, slots, scale, scores, head_dim, value_dim, group):
    """Scores ``[Hq, 4]`` of four tokens, whose values are fetched meanwhile."""
    token_0, token_1, token_2, token_3 = keys[slots[0]], keys[slots[1]], keys[slots[2]], keys[slots[3]]
    for kv_head in range(keys.shape[1]):
        key_0, key_1, key_2, key_3 = token_0[kv_head], token_1[kv_head], token_2[kv_head], token_3[kv_head]
        for token in range(4):
            for d in range(0, value_dim, 16):
                _prefetch(values[slots[token], kv_head], d)
        for head in range(kv_head * group, (kv_head + 1) * group):
            vector = query[head]
            score_0 = score_1 = score_2 = score_3 = np.float32(0)
            for d in range(head_dim):
                score_0 += vector[d] * key_0[d]
                score_1 += vector[d] * key_1[d]
                score_2 += vector[d] * key_2[d]
                score_3 += vector[d] * key_3[d]
            row = scores[head]
            row[0], row[1], row[2], row[3] = score_0 * scale, score_1 * scale, score_2 * scale, score_3 * scale


@njit(forceinline=True, fastmath=True, error_model="numpy")
def _add_four(values, keys, slots, weights, weighted, head_dim, value_dim, group):
    """Add the values of four tokens, times ``weights`` ``[Hq, 4]``; meanwhile fetch keys of the next chunk."""
    token_0, token_1, token_2, token_3 = values[slots[0]], values[slots[1]], values[slots[2]], values[slots[3]]
    for kv_head in range(values.shape[1]):
        value_0, value_1, value_2, value_3 = token_0[kv_head], token_1[kv_head], token_2[kv_head], token_3[kv_head]
        for token in range(4):
            for d in range(0, head_dim, 16):
                _prefetch(keys[slots[_CHUNK + token], kv_head], d)
        for head in range(kv_head * group, (kv_head + 1) * group):
            row = weights[head]
            weight_0, weight_1, weight_2, weight_3 = row[0], row[1], row[2], row[3]
            target = weighted[head]
            for d in range(value_dim):
                target[d] += (
                    weight_0 * value_0[d] + weight_1 * value_1[d] + weight_2 * value_2[d] + weight_3 * value_3[d]
                )


@njit(forceinline=True, fastmath=True, error_model="numpy")
def _exponentiate(scores, top, count, exponents):
    """Replace the first ``count`` scores by exp(score - top), the others by 0, and return the sum.

    Written out because the library's exp is a call per number, which no compiler can vectorise: exp(x) is
    2^n * exp(r), where 2^n is made from its bits and exp(r), |r| <= ln(2) / 2, from its Taylor series.
    """
    for c in range(_CHUNK):
        x = max(scores[c] - top, np.float32(-87))  # below it, 2^n is no normal number
        n = np.int32(x * np.float32(1 / math.log(2)) - np.float32(0.5))  # rounds, since x is never positive
        r = x - np.float32(n) * np.float32(math.log(2))
        series = np.float32(1 / 5040)
        series = series * r + np.float32(1 / 720)
        series = series * r + np.float32(1 / 120)
        series = series * r + np.float32(1 / 24)
        series = series * r + np.float32(1 / 6)
        series = series * r + np.float32(1 / 2)
        series = series * r + np.float32(1)
        scores[c] = series * r + np.float32(1)
        exponents[c] = (n + np.int32(127)) << np.int32(23)
    powers = exponents.view(np.float32)
    for c in range(count, _CHUNK):
        scores[c] = 0
    total = np.float32(0)
    for c in range(_CHUNK):
        weight = scores[c] * powers[c]
        scores[c] = weight
        total += weight
    return total


@njit(forceinline=True, fastmath=True, error_model="numpy")
def _normalize(weighted, highest, total, sinks, out, value_dim):
    """Divide by the sum of all weights, a sink's among them."""
    for head in range(weighted.shape[0]):
        factor = np.float32(1) / total[head]
        if len(sinks) > 0:
            top = max(highest[head], sinks[head])
            mine = math.exp(max(highest[head] - top, np.float32(-87)))
            factor = mine / (total[head] * mine + math.exp(max(sinks[head] - top, np.float32(-87))))
        for d in range(value_dim):
            out[head, d] = weighted[head, d] * factor


@njit(fastmath=True, error_model="numpy")
def _merge(lengths, window, chunk, tokens, pieces, weighted, highest, total, sinks, out, value_dim):
    """Finish the sequences that were cut by a border between pieces, and those without tokens."""
    start = owner = 0
    for i in range(lengths.shape[0]):
        end = start + lengths[i] - _first_seen(lengths[i], window, chunk)
        if start == end:
            out[i] = 0
            continue
        while tokens * (owner + 1) // pieces <= start:
            owner += 1
        piece = owner + 1
        while piece < pieces and tokens * piece // pieces < end:
            if tokens * (piece + 1) // pieces > tokens * piece // pieces:
                _add_part(weighted, highest, total, owner, piece, value_dim)
            piece += 1
        if piece > owner + 1:
            _normalize(weighted[owner, 1], highest[owner, 1], total[owner, 1], sinks, out[i], value_dim)
        start = end


@njit(fastmath=True, error_model="numpy")
def _add_part(weighted, highest, total, owner, piece, value_dim):
    """Add the part of a sequence that ``piece`` computed to the one of ``owner``, where the sequence begins."""
    for head in range(weighted.shape[2]):
        top = max(highest[owner, 1, head], highest[piece, 0, head])
        mine = math.exp(max(highest[owner, 1, head] - top, np.float32(-87)))
        other = math.exp(max(highest[piece, 0, head] - top, np.float32(-87)))
        highest[owner, 1, head] = top
        total[owner, 1, head] = total[owner, 1, head] * mine + total[piece, 0, head] * other
        for d in range(value_dim):
            weighted[owner, 1, head, d] = weighted[owner, 1, head, d] * mine + weighted[piece, 0, head, d] * other


@cached_njit(nogil=True)
def _write(k_pool, v_pool, k, v, slots):
    for i in range(len(slots)):
        slot = slots[i]
        if slot >= 0:
            for head in range(k.shape[1]):
                for d in range(k.shape[2]):
                    k_pool[slot, head, d] = k[i, head, d]
            for head in range(v.shape[1]):
                for d in range(v.shape[2]):
                    v_pool[slot, head, d] = v[i, head, d]


@cached_njit(nogil=True)
def _write_keys(k_pool, k, slots):
    for i in range(len(slots)):
        if slots[i] >= 0:
            k_pool[slots[i]] = k[i]


@cached_njit(nogil=True)  # in one thread: on a busy machine, waking others took a thousand times the copy
def _move(planes, sources, targets):
    """Move rows of every plane (one layer's keys or values), directly where no target is a source still to be read."""
    count = len(sources)
    in_order = True  # ascending and downwards, as compaction asks: each source is read before anything lands on it
    for i in range(count):
        in_order &= targets[i] <= sources[i] and (i == 0 or sources[i - 1] < sources[i])
    for plane in planes:
        if in_order:
            for i in range(count):
                plane[targets[i]] = plane[sources[i]]
        else:
            held = np.empty((count, planes.shape[2]), np.float32)
            for i in range(count):
                held[i] = plane[sources[i]]
            for i in range(count):
                plane[targets[i]] = held[i]
