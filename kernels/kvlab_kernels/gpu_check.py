"""Are the Triton kernels right, and how fast are they? `python -m kvlab_kernels.gpu_check --out DIR [--quick]`.

Writes three tables: kernels_correctness.csv (error against float64), kernels_bandwidth.csv (decode, as a share of what
a device copy reaches in the same run) and kernels_moves.csv (prefill, writes, copies, swaps, host time per call). On a
CPU everything runs tiny under Triton's interpreter: a dry run of this script, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

import triton
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvlab_kernels import reference, triton_decode, triton_moves, triton_prefill
from kvlab_kernels.addresses import Addresses
from kvlab_kernels.reference import TOLERANCE, random_addresses, relative_error
from kvlab_kernels.triton_widths import LATENTS, Widths
from kvlab_kernels.variant import PLAIN, AttentionVariant

CACHE_BYTES = 128 << 20  # twice the L2 of an H200: inputs smaller than this are rotated
WINDOW = 1024  # tokens that the windowed decode sees
REPEATS = 15
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
Row = dict[str, Any]


class Heads(NamedTuple):
    """The attention shape of a model; `rank`: of its keys, latents of that width and a rotated part; 0 = no latents."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    rank: int = 0

    @property
    def token_bytes(self) -> int:
        """What a token takes in the pool of a layer."""
        return (1 if self.rank else 2) * self.kv_heads * self.head_dim * self.dtype.itemsize


LLAMA_8B = Heads("llama-8b", 32, 8, 128, torch.bfloat16)
OPT_13B = Heads("opt-13b", 40, 40, 128, torch.float16)
DEEPSEEK_V2_LITE = Heads("deepseek-v2-lite", 16, 1, 576, torch.bfloat16, 512)
TINY = Heads("tiny", 4, 2, 64, torch.float16)
TINY_LATENT = Heads("tiny-latent", 4, 1, 80, torch.float16, 64)


def interpreter_problem(device: str, dtype: torch.dtype | None = None) -> str | None:
    """Why Triton's interpreter cannot stand in for a GPU here, or None."""
    if device != "cpu":
        return None
    if type(triton.language.sum).__name__ != "InterpretedFunction":
        return "triton was imported before TRITON_INTERPRET=1 was set"
    version, numpy = (tuple(map(int, importlib.metadata.version(x).split(".")[:2])) for x in ("triton", "numpy"))
    if version < (3, 7) and numpy >= (2, 4):
        return "the interpreter of triton < 3.7 cannot loop to a tensor's value with numpy >= 2.4"
    if dtype == torch.bfloat16:
        return "the interpreter stores bfloat16 as integers, so its dot products are wrong"
    return None


def correctness(device: str, quick: bool) -> Iterator[Row]:
    """Every kernel against float64: fresh random inputs, random tables, poisoned pools and outputs."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    if quick:
        cases = [(4, 2, 64, fp16, 16), (2, 2, 80, fp32, 0)]
        latents = [(4, 1, 80, fp16, 16, 64)]
        lengths, queries = [0, 1, 70], [0, 1, 40]
    else:
        cases = [(32, 8, 128, bf16, size) for size in (0, 1, 16, 64, 256)]
        cases += [(40, 40, 128, fp16, size) for size in (0, 16)] + [(32, 8, 128, fp32, size) for size in (0, 16)]
        cases += [(16, 2, head_dim, fp16, 16) for head_dim in (64, 80, 96, 256)] + [(4, 4, 128, fp32, 16)]
        latents = [(16, 1, 576, bf16, size, 512) for size in (0, 16)] + [(128, 1, 576, fp16, 16, 512)]
        latents += [(40, 1, 288, bf16, 16, 256), (4, 1, 80, fp32, 16, 64), (8, 2, 192, bf16, 16, 128)]
        lengths, queries = [0, 1, 17, 500, 2049, 4096, 9999], [0, 1, 17, 300, 1, 513, 128]
    sinks = torch.randn(64, device=device)
    further = [AttentionVariant(window=40), AttentionVariant(chunk=48), AttentionVariant(window=300, softcap=30.0)]
    for (heads, kv_heads, head_dim, dtype, block_size, value_dim), variant in [
        *(((*case, case[2]), PLAIN) for case in cases), *(((*cases[-1], cases[-1][2]), each) for each in further),
        *(((*case, case[2]), AttentionVariant(window=33, sinks=sinks[: case[0]])) for case in cases[:1]),
        *((case, PLAIN) for case in latents),
    ]:  # fmt: skip
        if interpreter_problem(device, dtype):
            continue
        place, slots = random_addresses(lengths, block_size, device)
        k_pool, v_pool = torch.full((2, slots, kv_heads, head_dim), float("nan"), dtype=dtype, device=device)
        latent = (value_dim, head_dim - value_dim) in LATENTS  # the values are the first columns of the keys
        if value_dim != head_dim:
            v_pool = k_pool[:, :, :value_dim] if latent else v_pool[:, :, :value_dim].contiguous()
        for index in range(len(lengths)):
            own = reference.slots_of(place, index)
            k, v = torch.randn(2, len(own), kv_heads, head_dim, device=device).to(dtype)
            triton_moves.write_kv(k_pool, v_pool, k, None if latent else v[:, :, :value_dim], own)
        starts = torch.tensor([0, *queries], device=device).cumsum(0).int()
        scale = head_dim**-0.5
        for kernel, count in (("decode", len(lengths)), ("prefill", sum(queries))):
            q = torch.randn(count, heads, head_dim, device=device).to(dtype)
            out = torch.full((count, heads, value_dim), float("nan"), dtype=dtype, device=device)
            if kernel == "decode":
                triton_decode.decode_attention(q, k_pool, v_pool, place, scale, out, max(lengths), variant)
                want = reference.decode_attention(q, k_pool, v_pool, place, scale, variant=variant)
                parts = list(range(count + 1))
            else:
                triton_prefill.prefill_attention(
                    q, k_pool, v_pool, place, starts, scale, out, max(queries), variant=variant
                )
                want = reference.prefill_attention(q, k_pool, v_pool, place, starts, scale, variant=variant)
                parts = starts.tolist()
            errors = [relative_error(out[a:b], want[a:b]) for a, b in pairwise(parts)]
            error = max(errors, key=lambda x: (math.isnan(x), x))  # the worst sequence speaks for the case
            shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
                     "value_dim": value_dim, "latent": latent, "window": variant.window, "chunk": variant.chunk,
                     "softcap": variant.softcap, "sinks": variant.sinks is not None}  # fmt: skip
            yield {"kernel": kernel, **shape, "dtype": str(dtype), "block_size": block_size, "error": error,
                   "tolerance": TOLERANCE[dtype], "ok": error < TOLERANCE[dtype]}  # fmt: skip
    yield from moves_correctness(device)


def moves_correctness(device: str) -> Iterator[Row]:
    """Moves against the reference, bit for bit."""
    kv = torch.randn(2, 2, 96, 2, 64, device=device).half()
    host = torch.randn(2, 2, 40, 2, 64).half()
    host = host.pin_memory() if device != "cpu" else host
    order, host_slots = torch.randperm(96, device=device), torch.randperm(40, device=device)[:32]
    run = torch.arange(10, 50, device=device)
    for name, lists in (
        ("copy_slots", (order[:32], order[32:64])),
        ("move_slots", (run, run + 7)),
        ("swap_out", (host, order[:32], host_slots)),
        ("swap_in", (host, order[32:64], host_slots)),
    ):
        pools = [[kv.clone(), *(x.clone() if x is host else x for x in lists)] for _ in range(2)]
        if device != "cpu" and name.startswith("swap"):
            pools = [[pool[0], pool[1].pin_memory(), *pool[2:]] for pool in pools]
        getattr(triton_moves, name)(*pools[0])
        getattr(reference, name)(*pools[1])
        _wait(device)
        error = max(relative_error(got, want) for got, want in zip(*(pool[:2] for pool in pools), strict=True))
        yield {"kernel": name, "dtype": "torch.float16", "error": error, "tolerance": 0.0, "ok": error == 0.0}


def measure(
    variants: dict[str, list[Callable[[], Any]]], device: str, graphs: bool = True
) -> tuple[dict[str, float], dict[str, str]]:
    """Microseconds per call of each variant (median of interleaved repeats), and why a variant has none.

    A variant is a list of equal calls on different inputs, so that the next call does not find its inputs in L2. On a
    GPU they are captured into one CUDA graph: what is timed is the device, not Python.
    """
    runs: dict[str, Callable[[], Any]] = {}
    notes: dict[str, str] = {}
    for name, calls in variants.items():
        try:
            calls[0]()
            _wait(device)
            runs[name] = _captured(calls) if graphs and device != "cpu" else partial(_call_all, calls)
            runs[name]()
            _wait(device)
        except Exception as problem:
            notes[name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            runs.pop(name, None)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS if device != "cpu" else 1):
        for name, run in runs.items():
            times[name].append(_timed(run, device) / len(variants[name]))
    return {name: statistics.median(values) for name, values in times.items()}, notes


def bandwidth(device: str, quick: bool) -> Iterator[Row]:
    """Decode at many shapes: paged and extent in the same kernel, beside SDPA on the same (contiguous) KV."""
    shapes = [(LLAMA_8B, batch, context) for batch in (1, 8, 64, 256) for context in (512, 4096, 32768)]
    shapes += [(OPT_13B, batch, context) for batch in (8, 32) for context in (64, 128, 256)]
    shapes += [(DEEPSEEK_V2_LITE, batch, context) for batch in (8, 64) for context in (4096, 32768)]
    for shape, batch, context in [(TINY, 2, 64), (TINY_LATENT, 2, 64)] if quick else shapes:
        kv_bytes = batch * context * shape.token_bytes
        row = {"model": shape.name, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
               "dtype": str(shape.dtype), "batch": batch, "context": context}  # fmt: skip
        if device != "cpu":
            torch.cuda.empty_cache()  # what the last shape has freed counts as free
        if device != "cpu" and kv_bytes + (2 << 30) > torch.cuda.mem_get_info()[0]:
            yield row | {"note": "not enough memory"}
            continue
        variants = decode_variants(shape, batch, context, 2 if quick else max(1, -(-CACHE_BYTES // kv_bytes)), device)
        if not quick and context == 4096 and batch in (8, 64) and not shape.rank:
            variants |= flex_variant(shape, batch, context, device)
        source, target = torch.empty(2, (64 << 20) if not quick else 4096, dtype=torch.int32, device=device)
        variants["device_copy"] = [partial(target.copy_, source)]
        times, notes = measure(variants, device)
        copy_rate = 2 * source.nbytes / times["device_copy"] / 1e3
        for name in variants:
            read = kv_bytes * WINDOW // context if name == "paged_16_window" else kv_bytes
            moved = read + 2 * batch * shape.heads * shape.head_dim * shape.dtype.itemsize
            rate = moved / times[name] / 1e3 if name in times else None
            rate = copy_rate if name == "device_copy" else rate
            yield row | {"variant": name, "microseconds": times.get(name), "gb_per_s": rate,
                         "share_of_copy": rate and rate / copy_rate, "note": notes.get(name)}  # fmt: skip
        del variants, source, target


def decode_variants(
    shape: Heads, batch: int, context: int, copies: int, device: str
) -> dict[str, list[Callable[[], Any]]]:
    """Calls on `copies` sets of inputs. One pool serves all: extents lie as SDPA wants them, blocks are shuffled."""
    total = batch * context
    planes = 1 if shape.rank else 2
    pool = torch.empty(
        planes, copies * total, shape.kv_heads, shape.head_dim, dtype=shape.dtype, device=device
    ).normal_()
    keys, values = pool[0], pool[0, :, :, : shape.rank] if shape.rank else pool[1]
    q = torch.randn(batch, shape.heads, shape.head_dim, device=device).to(shape.dtype)
    out = q.new_empty(batch, shape.heads, values.shape[2])
    scale = shape.head_dim**-0.5
    number: dict[str, Any] = {"dtype": torch.int32, "device": device}
    rows, lengths = torch.arange(batch, **number), torch.full((batch,), context, **number)
    starts = torch.arange(0, copies * total, context, **number).view(copies, batch, 1)
    blocks = torch.randperm(copies * total // 16, device=device).int().view(copies, batch, context // 16)
    plain = triton_decode.DecodeConfig(64, False, 4, 3)

    def ours(tables: torch.Tensor, block_size: int, **options: Any) -> Callable[[], Any]:
        place = Addresses(tables, rows, lengths, block_size)
        return lambda: triton_decode.decode_attention(q, keys, values, place, scale, out, context, **options)

    def torch_sdpa(copy: int) -> Callable[[], Any]:
        k, v = pool[:, copy * total : (copy + 1) * total].unflatten(1, (batch, context)).transpose(2, 3)
        return lambda: _sdpa(q[:, :, None], k, v, False, device)

    variants = {
        "paged_16": [ours(table, 16) for table in blocks],
        "extent": [ours(table, 0) for table in starts],
    }
    if shape.rank:  # no kernel of torch reads latents
        return variants
    variants["sdpa"] = [torch_sdpa(copy) for copy in range(copies)]
    if context > WINDOW:  # reads its own tiles only
        variants["paged_16_window"] = [ours(table, 16, variant=AttentionVariant(window=WINDOW)) for table in blocks]
    alike = Widths(shape.head_dim, 0, shape.head_dim, False)
    if device != "cpu" and batch <= 8:  # does `choose_splits` cut finely enough?
        bound = {"max_length": context, "block_n": triton_decode.decode_config(1, alike, shape.dtype).block_n}
        count = triton_decode.choose_splits(
            batch * shape.kv_heads, **bound, processors=triton_decode.processors(q.device)
        )
        variants["paged_16_twice_the_splits"] = [ours(table, 16, splits=2 * count) for table in blocks]
    if shape.heads == shape.kv_heads:  # is the padded tile of the tensor cores right for a group of 1?
        variants["extent_reduction"] = [ours(table, 0, config=plain) for table in starts]
    return variants


def flex_variant(shape: Heads, batch: int, context: int, device: str) -> dict[str, list[Callable[[], Any]]]:
    """flex_attention on a paged pool: its sparse blocks (of 128) are the pages, so the block mask is the table."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    page, total = 128, batch * context
    pages = context // page
    k, v = torch.empty(2, 1, shape.kv_heads, total, shape.head_dim, dtype=shape.dtype, device=device).normal_()
    q = torch.randn(batch, shape.heads, 1, shape.head_dim, device=device).to(shape.dtype)
    table = torch.randperm(total // page, device=device).int().view(batch, 1, 1, pages)
    indices = torch.nn.functional.pad(table, (0, total // page - pages))
    count = torch.full((batch, 1, 1), pages, dtype=torch.int32, device=device)
    compiled = torch.compile(flex_attention, dynamic=False)

    @cache
    def mask() -> BlockMask:  # built by the first call, where a version of torch that cannot is noted, not fatal
        none = torch.zeros_like(count)
        size, lengths = (page, page), (1, total)
        return BlockMask.from_kv_blocks(
            none, torch.zeros_like(indices), count, indices, BLOCK_SIZE=size, seq_lengths=lengths
        )

    def call() -> torch.Tensor:
        return compiled(q, k, v, block_mask=mask(), enable_gqa=True)

    return {"flex_paged_128": [call]}


def moves(device: str, quick: bool) -> Iterator[Row]:
    """Prefill beside SDPA's causal kernel; writes, copies and swaps beside plain copies of as many bytes."""
    shape = TINY if quick else LLAMA_8B
    for batch, length in [(1, 48)] if quick else [(4, 2048), (1, 8192), (32, 256)]:
        variants = prefill_variants(shape, batch, length, device)
        times, notes = measure(variants, device)
        flops = 2 * batch * shape.heads * shape.head_dim * length * (length + 1)  # two products over half a square
        for name in variants:
            rate = flops / times[name] / 1e6 if name in times else None
            yield {"operation": "prefill", "variant": name, "size": f"{batch}x{length}",
                   "microseconds": times.get(name), "tflop_per_s": rate, "note": notes.get(name)}  # fmt: skip
    yield from copies(device, quick)
    yield from launches(device, quick)


def prefill_variants(shape: Heads, batch: int, length: int, device: str) -> dict[str, list[Callable[[], Any]]]:
    """One call of each variant on whole prompts; an extent lies as SDPA wants it, blocks are shuffled."""
    tokens, scale = batch * length, shape.head_dim**-0.5
    number: dict[str, Any] = {"dtype": torch.int32, "device": device}
    pool = torch.randn(2, tokens, shape.kv_heads, shape.head_dim, device=device).to(shape.dtype)
    q = torch.randn(tokens, shape.heads, shape.head_dim, device=device).to(shape.dtype)
    starts, rows = torch.arange(0, tokens + 1, length, **number), torch.arange(batch, **number)
    lengths = torch.full((batch,), length, **number)
    blocks = torch.randperm(tokens // 16, device=device).int().view(batch, length // 16)
    dense_q, dense_k, dense_v = (x.unflatten(0, (batch, length)).transpose(1, 2) for x in (q, *pool))

    def ours(table: torch.Tensor, block_size: int) -> Callable[[], Any]:
        place = Addresses(table, rows, lengths, block_size)
        return lambda: triton_prefill.prefill_attention(q, pool[0], pool[1], place, starts, scale, None, length)

    return {
        "paged_16": [ours(blocks, 16)],
        "extent": [ours(starts[:-1, None], 0)],
        "sdpa": [lambda: _sdpa(dense_q, dense_k, dense_v, True, device)],
    }


def copies(device: str, quick: bool) -> Iterator[Row]:
    """Bytes per second of writes, copies, moves and swaps (read + written on the device; one way over the bus)."""
    shape, layers, slots, count = (TINY, 1, 128, 16) if quick else (LLAMA_8B, 16, 32768, 4096)
    kv = torch.zeros(layers, 2, slots, shape.kv_heads, shape.head_dim, dtype=shape.dtype, device=device)
    host = torch.zeros(layers, 2, count, *kv.shape[3:], dtype=shape.dtype, pin_memory=device != "cpu")
    flat = kv.view(-1)[: host.numel()]
    order = torch.randperm(slots, device=device)
    sources, targets = order[:count].clone(), order[count : 2 * count].clone()
    run, host_slots = torch.arange(count, device=device), torch.randperm(count, device=device)
    k, v = torch.randn(2, count, *kv.shape[3:], device=device).to(shape.dtype)
    k_pool, v_pool, row = kv[0, 0], kv[0, 1], kv[0, 0, 0].nbytes
    few = sources[: min(256, count // 2)]
    operations: dict[str, tuple[int, Callable[[], Any]]] = {
        f"write_kv {count} tokens": (4 * count * row, lambda: triton_moves.write_kv(k_pool, v_pool, k, v, sources)),
        f"write_kv {len(few)} tokens": (
            4 * len(few) * row, lambda: triton_moves.write_kv(k_pool, v_pool, k[: len(few)], v[: len(few)], few)
        ),
        "copy_slots scattered": (4 * layers * count * row, lambda: triton_moves.copy_slots(kv, sources, targets)),
        "move_slots overlapping": (4 * layers * count * row, lambda: triton_moves.move_slots(kv, run + 16, run)),
        "swap_out scattered": (2 * layers * count * row, lambda: triton_moves.swap_out(kv, host, sources, host_slots)),
        "swap_in scattered": (2 * layers * count * row, lambda: triton_moves.swap_in(kv, host, sources, host_slots)),
        "memcpy to host": (2 * layers * count * row, lambda: host.view(-1).copy_(flat, non_blocking=True)),
        "memcpy from host": (2 * layers * count * row, lambda: flat.copy_(host.view(-1), non_blocking=True)),
    }  # fmt: skip
    bus = {name: [call] for name, (_, call) in operations.items() if name.startswith(("swap", "memcpy"))}
    local = {name: [call] for name, (_, call) in operations.items() if name not in bus}
    (times, notes), (more, others) = measure(local, device), measure(bus, device, graphs=False)
    times, notes = times | more, notes | others
    for name, (size, _) in operations.items():
        rate = size / times[name] / 1e3 if name in times else None
        yield {"operation": name, "variant": f"{layers} layers, {count} slots", "size": size,
               "microseconds": times.get(name), "gb_per_s": rate, "note": notes.get(name)}  # fmt: skip


def launches(device: str, quick: bool) -> Iterator[Row]:
    """Host time per call, nothing waited for: what a step without a CUDA graph pays for every layer."""
    shape, calls = (TINY, 1) if quick else (LLAMA_8B, 200)
    variants = {name: found[0] for name, found in decode_variants(shape, 2, 64, 1, device).items()}
    variants |= {f"prefill {name}": found[0] for name, found in prefill_variants(shape, 1, 48, device).items()}
    for name, call in variants.items():
        call()
        _wait(device)
        begun = time.perf_counter_ns()
        for _ in range(calls):
            call()
        spent = (time.perf_counter_ns() - begun) / calls / 1e3
        _wait(device)
        yield {"operation": "host time per call", "variant": name, "microseconds": spent}


def run_kernel_check(out_dir: Path, quick: bool, device: str) -> dict[str, Any]:
    """Runs all three tables and writes each as soon as it is measured.

    Args:
        out_dir: created if missing.
        quick: tiny shapes, for a dry run on a CPU.
        device: ``cuda`` or ``cpu`` (Triton's interpreter; quick shapes whatever `quick` says).

    Returns:
        ``ok`` (every kernel within its tolerance), ``failed`` (the rows that are not), seconds and rows of each table,
        or ``skipped`` with the reason where the interpreter cannot run.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    if problem := interpreter_problem(device):
        return {"ok": True, "failed": [], "skipped": problem}
    torch.manual_seed(time.time_ns() % 2**31)  # fresh inputs each time: an error must not hide behind a seed
    summary: dict[str, Any] = {"device": torch.cuda.get_device_name() if device != "cpu" else "cpu (interpreter)"}
    for name, table in (("correctness", correctness), ("bandwidth", bandwidth), ("moves", moves)):
        begun = time.perf_counter()
        rows = list(table(device, quick or device == "cpu"))
        _write(out_dir / f"kernels_{name}.csv", rows)
        summary[name] = {"seconds": round(time.perf_counter() - begun, 1), "rows": len(rows)}
        if name == "correctness":
            summary["failed"] = [row for row in rows if not row["ok"]]
            summary["ok"] = not summary["failed"]
    return summary


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, device: str) -> torch.Tensor:
    """SDPA with its fused kernels only (the plain one would copy K and V for every query head)."""
    if device == "cpu":
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    with sdpa_kernel(FUSED):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def _captured(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """One CUDA graph of all calls."""
    stream = torch.cuda.Stream()  # a warm-up on a side stream, as capture asks for
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _call_all(calls)
    return graph.replay


def _call_all(calls: list[Callable[[], Any]]) -> None:
    for call in calls:
        call()


def _timed(run: Callable[[], Any], device: str) -> float:
    """Microseconds of one run."""
    if device == "cpu":
        begun = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - begun) / 1e3
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) * 1e3


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _write(path: Path, rows: list[Row]) -> None:
    """One CSV; the columns are all that any row has, and what a row lacks stays empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m kvlab_kernels.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    found = run_kernel_check(options.out, options.quick, options.device)
    print(found)
    raise SystemExit(0 if found["ok"] else 1)
