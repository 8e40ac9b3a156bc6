"""Decode attention on the CPU against what the memory gives: bytes per second of the kernel and of a plain read.

The kernel cannot be faster than reading its keys and values once. Every case measures that read, the kernel on extents
and the kernel on scattered blocks in turn, so that a noisy machine disturbs all three alike; the ratios of their
medians are in ``extra_info``. Nothing is asserted about time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import numba
import numpy as np
import pytest
import torch
from kvlab_kernels import numba_backend
from kvlab_kernels.addresses import Addresses
from kvlab_kernels.variant import PLAIN, AttentionVariant
from numba import njit, prange
from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 15
SEQUENCES, LENGTH, BLOCK_SIZE = 16, 1024, 16


@njit(parallel=True, fastmath=True)
def total(values: np.ndarray) -> float:
    """Read everything once, on all threads."""
    result = np.float32(0)
    for i in prange(len(values)):
        result += values[i]
    return result


def seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def placed(kind: str, sequences: int, length: int) -> Addresses:
    """Sequences of one length that fill a pool: as extents in order, or as scattered blocks."""
    if kind == "extent":
        tables, block_size = torch.arange(0, sequences * length, length, dtype=torch.int32)[:, None], 0
    else:
        blocks = torch.randperm(sequences * length // BLOCK_SIZE, generator=torch.Generator().manual_seed(0))
        tables, block_size = blocks.int().view(sequences, -1), BLOCK_SIZE
    rows = torch.arange(sequences, dtype=torch.int32)
    return Addresses(tables, rows, torch.full_like(rows, length), block_size)


@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim"),
    [(12, 1, 64), (8, 3, 64), (8, 4, 64)],
    ids=["multi-head", "three-to-one", "four-to-one"],
)
def test_decode_bandwidth(benchmark: BenchmarkFixture, kv_heads: int, group: int, head_dim: int) -> None:
    kv = torch.randn(1, 2, SEQUENCES * LENGTH, kv_heads, head_dim)
    q = torch.randn(SEQUENCES, kv_heads * group, head_dim)
    out = torch.empty_like(q)
    flat = kv.view(-1).numpy()

    def decode(addresses: Addresses) -> None:
        numba_backend.decode_attention(q, kv[0, 0], kv[0, 1], addresses, head_dim**-0.5, out=out)

    extent, paged = (placed(kind, SEQUENCES, LENGTH) for kind in ("extent", "paged"))
    calls = {"read": lambda: total(flat), "extent": lambda: decode(extent), "paged": lambda: decode(paged)}
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(call))
    typical = {name: median(values) for name, values in times.items()}

    benchmark.extra_info.update(
        threads=numba.get_num_threads(),
        gigabytes=kv.nbytes / 1e9,
        read_gigabytes_per_second=kv.nbytes / typical["read"] / 1e9,
        extent_to_read_bandwidth=typical["read"] / typical["extent"],
        paged_to_read_bandwidth=typical["read"] / typical["paged"],
        paged_to_extent_time=typical["paged"] / typical["extent"],
        spread={name: max(values) / min(values) for name, values in times.items()},
    )
    benchmark.pedantic(calls["paged"], rounds=5)


@pytest.mark.slow
@pytest.mark.parametrize("window", [128, 512])
def test_windowed_decode_takes_what_it_reads(benchmark: BenchmarkFixture, window: int) -> None:
    """A window against everything, on scattered blocks, in turns: the share of time beside that of bytes."""
    length = 2048
    kv = torch.randn(2, SEQUENCES * length, 8, 64)
    q = torch.randn(SEQUENCES, 16, 64)
    out, addresses = torch.empty_like(q), placed("paged", SEQUENCES, length)
    calls = {
        name: partial(numba_backend.decode_attention, q, kv[0], kv[1], addresses, 0.125, out=out, variant=variant)
        for name, variant in {"full": PLAIN, "window": AttentionVariant(window=window)}.items()
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 + ROUNDS):
        for name, call in calls.items():
            spent = seconds(call)
            if turn:  # the first one compiles
                times[name].append(spent)
    typical = {name: median(values) for name, values in times.items()}
    found = {"threads": numba.get_num_threads(), "tokens": length, "window": window,
             "bytes_share": window / length, "time_share": typical["window"] / typical["full"],
             "full_ms": 1e3 * typical["full"], "window_ms": 1e3 * typical["window"],
             "window_gigabytes_per_second": kv.nbytes * window / length / typical["window"] / 1e9,
             "full_gigabytes_per_second": kv.nbytes / typical["full"] / 1e9}  # fmt: skip
    print(found)
    benchmark.extra_info.update(found)
    benchmark.pedantic(calls["window"], rounds=5)


@pytest.mark.parametrize("sequences", [7, 64])
def test_decode_of_a_small_model(benchmark: BenchmarkFixture, sequences: int) -> None:
    """One layer of 4 heads of 64 at 400 tokens of context: here the call itself has to be cheap."""
    kv = torch.randn(1, 2, sequences * 400, 4, 64)
    q = torch.randn(sequences, 4, 64)
    addresses = placed("paged", sequences, 400)
    empty = addresses._replace(lengths=torch.zeros_like(addresses.lengths))
    k_pool, v_pool, out = kv[0, 0], kv[0, 1], torch.empty_like(q)

    def decode(addresses: Addresses) -> None:
        numba_backend.decode_attention(q, k_pool, v_pool, addresses, 0.125, out=out)

    decode(empty)
    benchmark.extra_info["microseconds_without_tokens"] = (
        median(seconds(lambda: decode(empty)) for _ in range(200)) * 1e6
    )
    benchmark.pedantic(decode, args=(addresses,), rounds=200, warmup_rounds=5)


@pytest.mark.parametrize("tokens", [7, 64])
def test_write_of_new_tokens(benchmark: BenchmarkFixture, tokens: int) -> None:
    kv = torch.zeros(2, 4096, 4, 64)
    k, v = torch.randn(2, tokens, 4, 64)
    slots = torch.randperm(4096)[:tokens]
    benchmark.pedantic(numba_backend.write_kv, args=(kv[0], kv[1], k, v, slots), rounds=200, warmup_rounds=5)
