"""Writes and moves of KV in Triton: one launch per call, whatever the number of tokens, slots and layers.

Every copy is `copy_kernel`: slots of one pool to slots of the same or another pool, seen as 32-bit words so that one
build serves all dtypes. The host pool is pinned memory that the GPU addresses directly, hence a swap is the same
kernel with one pointer across the bus: no staging, no copy call per block.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

COPY_WORDS = 2048  # 32-bit words per program and tile: 16 bytes for each of 128 threads, four times
WRITE_ELEMENTS = 4096
STAGING_BYTES = 256 << 20  # bound of the temporary of `move_slots`


@triton.jit(do_not_specialize=["tokens", "heads"])
def write_kernel(
    k_pool, v_pool, k, v, slots, tokens, heads, k_stride_token, k_stride_head, v_stride_token, v_stride_head,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, ROWS: tl.constexpr, BOTH: tl.constexpr,
):  # fmt: skip
    """Program: ROWS pairs of (token, head), K and (BOTH) V. A negative slot is skipped."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token = row // heads
    head = row % heads
    slot = tl.load(slots + token, mask=token < tokens, other=-1)
    dim = tl.arange(0, HEAD_PAD)[None, :]
    mask = (slot >= 0)[:, None] & (dim < HEAD_DIM)
    target = (slot * heads + head)[:, None] * HEAD_DIM + dim
    keys = tl.load(k + (token * k_stride_token + head * k_stride_head)[:, None] + dim, mask=mask)
    if BOTH:
        values = tl.load(v + (token * v_stride_token + head * v_stride_head)[:, None] + dim, mask=mask)
    tl.store(k_pool + target, keys, mask=mask)
    if BOTH:
        tl.store(v_pool + target, values, mask=mask)


@triton.jit(do_not_specialize=["count", "words", "source_plane", "target_plane"])
def copy_kernel(
    source, target, source_slots, target_slots, count, words, source_plane, target_plane,
    SLOTS: tl.constexpr, WORDS: tl.constexpr, SOURCE_LISTED: tl.constexpr, TARGET_LISTED: tl.constexpr,
):  # fmt: skip
    """Program (SLOTS entries of the list, plane): row `source_slots[i]` of a plane to row `target_slots[i]`.

    A plane is K or V of one layer, `*_plane` slots of `words × 8` 32-bit words each. A side that is not LISTED is
    dense: its entry i is slot i.
    """
    item = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    plane = tl.program_id(1).to(tl.int64)
    listed = item < count
    start = item.to(tl.int64)
    end = item.to(tl.int64)
    if SOURCE_LISTED:
        start = tl.load(source_slots + item, mask=listed, other=0)
    if TARGET_LISTED:
        end = tl.load(target_slots + item, mask=listed, other=0)
    width = words * 8  # rows are 32 bytes at least, which tells the compiler that 16-byte accesses are aligned
    start = (plane * source_plane + start) * width
    end = (plane * target_plane + end) * width
    for first in tl.range(0, width, WORDS):
        word = first + tl.arange(0, WORDS)
        mask = listed[:, None] & (word < width)[None, :]
        row = tl.load(source + start[:, None] + word[None, :], mask=mask)
        tl.store(target + end[:, None] + word[None, :], row, mask=mask)


def write_kv(
    k_pool: torch.Tensor, v_pool: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, slots: torch.Tensor
) -> None:
    """Stores the K and V of a step's tokens, one launch for all; two where they are not equally wide.

    Args:
        k_pool, v_pool: ``[S, Hkv, D]`` and ``[S, Hkv, Dv]`` contiguous.
        k, v: ``[T, Hkv, D]`` and ``[T, Hkv, Dv]``; the last dimension dense, the others with any stride. No v: the
            values are a part of the keys.
        slots: ``[T]`` int64, distinct; a negative one is skipped (a padded lane of a CUDA graph).

    Raises:
        ValueError: shapes, strides or dtypes that do not fit.
    """
    if v is not None and k_pool.shape == v_pool.shape:
        return _write([(k_pool, k), (v_pool, v)], slots)
    _write([(k_pool, k)], slots)
    if v is not None:
        _write([(v_pool, v)], slots)


def _write(planes: list[tuple[torch.Tensor, torch.Tensor]], slots: torch.Tensor) -> None:
    """Stores rows of one shape into one pool, or into two alike."""
    (pool, rows), (other_pool, others) = planes[0], planes[-1]
    tokens, heads, head_dim = rows.shape
    if rows.shape != others.shape or pool.shape != other_pool.shape or pool.shape[1:] != rows.shape[1:] \
            or len(slots) != tokens:  # fmt: skip
        shapes = f"{tuple(rows.shape)}, {tuple(others.shape)} to {len(slots)} of {tuple(pool.shape)}"
        raise ValueError(f"cannot write {shapes}")
    if not (pool.is_contiguous() and other_pool.is_contiguous() and slots.is_contiguous()):
        raise ValueError("pools and slots must be contiguous")
    if rows.stride(-1) != 1 or others.stride(-1) != 1 or not rows.dtype == others.dtype == pool.dtype:
        raise ValueError("k and v must be dense in the last dimension and of the pool's dtype")
    if tokens == 0:
        return
    padded = triton.next_power_of_2(head_dim)
    count = max(1, WRITE_ELEMENTS // padded // rows.element_size())
    write_kernel[(triton.cdiv(tokens * heads, count),)](
        pool, other_pool, rows, others, slots, tokens, heads, rows.stride(0), rows.stride(1), others.stride(0),
        others.stride(1), HEAD_DIM=head_dim, HEAD_PAD=padded, ROWS=count, BOTH=len(planes) == 2, num_warps=4,
    )  # fmt: skip


def copy_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copies slots ``sources[i]`` to ``targets[i]`` in all layers (copy-on-write, a moved extent).

    Args:
        kv: ``[L, 2, S, Hkv, D]`` contiguous.
        sources, targets: ``[N]`` int64; no slot is in both (else `move_slots`).

    Raises:
        ValueError: kv not contiguous, or lists of different lengths.
    """
    words = _words(kv)
    _copy(words, words, sources, targets)


def move_slots(kv: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """As `copy_slots`, but the lists may overlap: the result is as if all sources were read before any write.

    Planes (K or V of a layer) do not depend on one another, so they are staged a few at a time and the temporary
    stays below STAGING_BYTES (or one plane of the list, if that is more).
    """
    words = _words(kv)
    count, width = len(sources), words.shape[2]
    if count == 0:
        return
    planes = max(1, min(len(words), STAGING_BYTES // (count * width * 4)))
    staging = torch.empty((planes, count, width), dtype=torch.int32, device=kv.device)
    for first in range(0, len(words), planes):
        part = words[first : first + planes]
        _copy(part, staging[: len(part)], sources, None)
        _copy(staging[: len(part)], part, None, targets)


def swap_out(
    kv: torch.Tensor,
    host: torch.Tensor,
    slots: torch.Tensor,
    host_slots: torch.Tensor,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Copies slots of the device pool to slots of the pinned host pool, all layers in one launch.

    Args:
        kv: ``[L, 2, S, Hkv, D]`` contiguous.
        host: ``[L, 2, Sh, Hkv, D]`` contiguous, pinned when kv is on a GPU.
        slots, host_slots: ``[N]`` int64, on the device of kv.
        stream: runs there, after what the current stream holds so far; the caller waits for it before it reuses
            either side. None: the current stream.

    Raises:
        ValueError: pools that do not match, or a host pool that the GPU cannot address.
    """
    _swap(_words(kv), _words(host), slots, host_slots, stream)


def swap_in(
    kv: torch.Tensor,
    host: torch.Tensor,
    slots: torch.Tensor,
    host_slots: torch.Tensor,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Copies ``host_slots[i]`` of the host pool to ``slots[i]`` of the device pool; the reverse of `swap_out`."""
    _swap(_words(host), _words(kv), host_slots, slots, stream)


def _words(kv: torch.Tensor) -> torch.Tensor:
    """The pool ``[L, 2 (of latents 1), S, Hkv, D]`` as planes of 32-bit words ``[2L, S, row]``."""
    if kv.dim() != 5 or not kv.is_contiguous():
        raise ValueError(f"a pool is [L, 2, S, Hkv, D] contiguous, not {tuple(kv.shape)} with strides {kv.stride()}")
    if kv.shape[3] * kv.shape[4] * kv.element_size() % 32:
        raise ValueError(f"a slot's row must be a multiple of 32 bytes: {tuple(kv.shape)} of {kv.dtype}")
    return kv.view(kv.shape[0] * kv.shape[1], kv.shape[2], -1).view(torch.int32)


def _swap(
    source: torch.Tensor,
    target: torch.Tensor,
    source_slots: torch.Tensor,
    target_slots: torch.Tensor,
    stream: torch.cuda.Stream | None,
) -> None:
    """One launch between a device and a host pool, on `stream` when given."""
    for pool, other in ((source, target), (target, source)):
        if other.is_cuda and not (pool.is_cuda or pool.is_pinned()):
            raise ValueError("the host pool must be pinned (torch.empty(..., pin_memory=True))")
    if stream is None:
        return _copy(source, target, source_slots, target_slots)
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        _copy(source, target, source_slots, target_slots)
    for slots in (source_slots, target_slots):
        slots.record_stream(stream)  # the caller may drop its lists before the copy has run


def _copy(
    source: torch.Tensor,
    target: torch.Tensor,
    source_slots: torch.Tensor | None,
    target_slots: torch.Tensor | None,
) -> None:
    """Planes ``[P, S, row]`` to planes ``[P, S', row]`` of int32; a list of None means slots 0 … N of a dense side."""
    lists = [slots for slots in (source_slots, target_slots) if slots is not None]
    if source.shape[0] != target.shape[0] or source.shape[2] != target.shape[2]:
        raise ValueError(f"pools differ in layers or rows: {tuple(source.shape)}, {tuple(target.shape)}")
    if len({len(slots) for slots in lists}) != 1 or any(slots.dtype != torch.int64 for slots in lists):
        raise ValueError(f"slot lists must be int64 and equally long: {[(len(x), x.dtype) for x in lists]}")
    count, row = len(lists[0]), source.shape[2]
    if count == 0:
        return
    words = min(COPY_WORDS, triton.next_power_of_2(row))
    slots = COPY_WORDS // words
    copy_kernel[(triton.cdiv(count, slots), len(source))](
        source, target, lists[0], lists[-1], count, row // 8, source.shape[1], target.shape[1],
        SLOTS=slots, WORDS=words, SOURCE_LISTED=source_slots is not None, TARGET_LISTED=target_slots is not None,
        num_warps=4,
    )  # fmt: skip
