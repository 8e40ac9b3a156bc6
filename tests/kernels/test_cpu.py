"""The kernels that run on a CPU against the float64 reference: placements, ragged lengths, overlapping moves."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvlab_kernels import numba_backend, reference, torch_backend
from kvlab_kernels.addresses import Addresses
from kvlab_kernels.dispatch import backend_for
from kvlab_kernels.variant import PLAIN, AttentionVariant

BACKENDS = [torch_backend, numba_backend]
BLOCK_SIZES = [0, 1, 16, 256]
SHAPES = [  # query heads per KV head, head size; each is compiled anew
    pytest.param(group, size, marks=() if size == 64 or (group, size) == (1, 80) else pytest.mark.slow)
    for group, size in product([1, 2, 3], [64, 80, 128])
]
LENGTHS = [0, 1, 300, 17, 16, 0, 33, 2, 256]
KV_HEADS = 2

backends = pytest.mark.parametrize("backend", BACKENDS, ids=["torch", "numba"])
block_sizes = pytest.mark.parametrize("block_size", BLOCK_SIZES)


def scattered(lengths: list[int], block_size: int, seed: int = 0) -> tuple[Addresses, int, torch.Tensor]:
    """Sequences at random places: their addresses, the slots of the pool ``S``, and the slots in use.

    Rows are permuted, extents keep a gap between them, and table entries beyond a sequence's length are -1.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(lengths), generator=generator)
    rows = (shuffled + 1).int()  # row 0 belongs to nobody
    width = 1 if block_size == 0 else max(lengths) // block_size + 2
    tables = torch.full((len(lengths) + 1, width), -1, dtype=torch.int32)
    if block_size == 0:
        start = 3
        for i in shuffled.tolist():
            tables[rows[i], 0] = start
            start += lengths[i] + 5
        slots = start
    else:
        blocks = torch.randperm(len(lengths) * width, generator=generator).int()
        slots = len(blocks) * block_size + 3  # a remainder that no block covers
        for i, length in enumerate(lengths):
            needed = -(-length // block_size)
            tables[rows[i], :needed], blocks = blocks[:needed], blocks[needed:]
    addresses = Addresses(tables, rows, torch.tensor(lengths, dtype=torch.int32), block_size)
    return addresses, slots, torch.cat([reference.slots_of(addresses, i) for i in range(len(lengths))])


def filled_pools(slots: int, used: torch.Tensor, kv_heads: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[S, Hkv, D]``: random in the slots in use, NaN in all others."""
    kv = torch.full((1, 2, slots, kv_heads, head_dim), torch.nan)
    kv[:, :, used] = torch.randn(1, 2, len(used), kv_heads, head_dim, generator=torch.Generator().manual_seed(1))
    return kv[0, 0], kv[0, 1]


def assert_near(result: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


@backends
@block_sizes
@pytest.mark.parametrize(("group", "head_dim"), SHAPES)
def test_decode_agrees_with_the_reference(backend: ModuleType, block_size: int, group: int, head_dim: int) -> None:
    addresses, slots, used = scattered(LENGTHS, block_size)
    k_pool, v_pool = filled_pools(slots, used, KV_HEADS, head_dim)
    q = torch.randn(len(LENGTHS), KV_HEADS * group, head_dim)
    out = torch.full_like(q, torch.nan)
    result = backend.decode_attention(q, k_pool, v_pool, addresses, head_dim**-0.5, out=out, max_length=300)
    assert result is out
    assert_near(out, reference.decode_attention(q, k_pool, v_pool, addresses, head_dim**-0.5))
    assert torch.equal(backend.decode_attention(q, k_pool, v_pool, addresses, head_dim**-0.5), out)


@block_sizes
@pytest.mark.parametrize("lengths", [[700], [5, 400, 1], [1, 1], [1], [0], [0, 64, 0], [1] * 65, [31, 33, 32, 96]])
def test_threads_cut_sequences_anywhere(block_size: int, lengths: list[int]) -> None:
    addresses, slots, used = scattered(lengths, block_size)
    k_pool, v_pool = filled_pools(slots, used, KV_HEADS, 64)
    q = torch.randn(len(lengths), KV_HEADS, 64)
    expected = reference.decode_attention(q, k_pool, v_pool, addresses, 0.125)
    threads = numba.get_num_threads()
    try:
        for count in range(1, numba.config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(count)
            out = torch.full_like(q, torch.nan)
            assert_near(numba_backend.decode_attention(q, k_pool, v_pool, addresses, 0.125, out=out), expected)
    finally:
        numba.set_num_threads(threads)


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("lengths", [[700], [5, 400, 1], [1, 1], [0, 0], [0, 64, 0], [1] * 65, [31, 33, 32, 96]])
@pytest.mark.parametrize("window", [0, 40])
def test_pieces_are_put_together_again(pieces: int, lengths: list[int], window: int) -> None:
    """More pieces than this machine has cores."""
    addresses, slots, used = scattered(lengths, 16)
    k_pool, v_pool = filled_pools(slots, used, KV_HEADS, 64)
    q = torch.randn(len(lengths), KV_HEADS, 64)
    out = torch.full_like(q, torch.nan)
    tables, rows, counts = (tensor.numpy() for tensor in addresses[:3])
    kernel = numba_backend._decode_kernel(64, 64, parallel=True, capped=False)
    limits = (window, 0, 0.0, np.zeros(0, np.float32))
    kernel(q.numpy(), k_pool.numpy(), v_pool.numpy(), tables, rows, counts, 16, 0.125, out.numpy(), pieces, *limits)
    expected = reference.decode_attention(q, k_pool, v_pool, addresses, 0.125, variant=AttentionVariant(window=window))
    assert_near(out, expected)


@backends
def test_scores_far_apart_neither_overflow_nor_vanish(backend: ModuleType) -> None:
    addresses, slots, used = scattered([200, 40], 16)
    k_pool, v_pool = filled_pools(slots, used, KV_HEADS, 64)
    q = torch.randn(2, KV_HEADS, 64) * 1000
    expected = reference.decode_attention(q, k_pool, v_pool, addresses, 1.0)
    assert_near(backend.decode_attention(q, k_pool, v_pool, addresses, 1.0), expected, tolerance=1e-2)


@backends
@block_sizes
@pytest.mark.parametrize(("group", "head_dim"), SHAPES)
def test_prefill_agrees_with_the_reference(backend: ModuleType, block_size: int, group: int, head_dim: int) -> None:
    lengths = [0, 1, 40, 17, 16, 0, 33, 2, 260]
    queries = [0, 1, 40, 3, 1, 0, 20, 2, 7]  # none, a single one, whole prompts and chunks with history
    query_starts = torch.tensor([0, *torch.tensor(queries).cumsum(0)], dtype=torch.int32)
    addresses, slots, used = scattered(lengths, block_size)
    k_pool, v_pool = filled_pools(slots, used, KV_HEADS, head_dim)
    q = torch.randn(sum(queries), KV_HEADS * group, head_dim)
    out = torch.full_like(q, torch.nan)
    backend.prefill_attention(q, k_pool, v_pool, addresses, query_starts, head_dim**-0.5, out, 40, 260)
    assert_near(out, reference.prefill_attention(q, k_pool, v_pool, addresses, query_starts, head_dim**-0.5))


SINKS = torch.tensor([0.5, -1.0, 3.0, 0.0, 9.0, -9.0])
VIEWS = {
    "window_1": AttentionVariant(window=1),
    "window_17": AttentionVariant(window=17),
    "window_300": AttentionVariant(window=300),
    "chunk_16": AttentionVariant(chunk=16),
    "chunk_7": AttentionVariant(chunk=7),
    "softcap": AttentionVariant(softcap=1.5),
    "sinks": AttentionVariant(sinks=SINKS),
    "all": AttentionVariant(window=33, softcap=1.5, sinks=SINKS),
}
views = pytest.mark.parametrize("variant", VIEWS.values(), ids=VIEWS)


def poison_unseen(k_pool: torch.Tensor, v_pool: torch.Tensor, addresses: Addresses, queries: list[int],
                  variant: AttentionVariant) -> None:  # fmt: skip
    """NaN wherever no query of the last `queries` tokens of a sequence looks."""
    for i, (length, count) in enumerate(zip(addresses.lengths.tolist(), queries, strict=True)):
        slots = reference.slots_of(addresses, i)
        unseen = variant.first_of(length - count) if count else length
        k_pool[slots[:unseen]] = v_pool[slots[:unseen]] = torch.nan


@backends
@block_sizes
@views
def test_decode_sees_what_a_layer_lets_it_see(backend: ModuleType, block_size: int, variant: AttentionVariant) -> None:
    addresses, slots, used = scattered(LENGTHS, block_size)
    k_pool, v_pool = filled_pools(slots, used, KV_HEADS, 64)
    poison_unseen(k_pool, v_pool, addresses, [int(length > 0) for length in LENGTHS], variant)
    q = torch.randn(len(LENGTHS), 6, 64)
    out = torch.full_like(q, torch.nan)
    backend.decode_attention(q, k_pool, v_pool, addresses, 0.3, out=out, max_length=300, variant=variant)
    assert_near(out, reference.decode_attention(q, k_pool, v_pool, addresses, 0.3, variant=variant), 5e-6)
    plain = reference.decode_attention(q, k_pool.nan_to_num(), v_pool.nan_to_num(), addresses, 0.3)
    assert (out - plain).abs().max() > 1e-2 or variant.window == 300


@backends
@block_sizes
@views
def test_prefill_sees_what_a_layer_lets_it_see(backend: ModuleType, block_size: int, variant: AttentionVariant) -> None:
    lengths, queries = [0, 1, 40, 17, 16, 33, 260, 300], [0, 1, 40, 3, 1, 20, 7, 300]
    query_starts = torch.tensor([0, *torch.tensor(queries).cumsum(0)], dtype=torch.int32)
    addresses, slots, used = scattered(lengths, block_size)
    k_pool, v_pool = filled_pools(slots, used, KV_HEADS, 64)
    poison_unseen(k_pool, v_pool, addresses, queries, variant)
    q = torch.randn(sum(queries), 6, 64)
    out = torch.full_like(q, torch.nan)
    backend.prefill_attention(q, k_pool, v_pool, addresses, query_starts, 0.3, out, 300, 300, variant)
    expected = reference.prefill_attention(q, k_pool, v_pool, addresses, query_starts, 0.3, variant=variant)
    assert_near(out, expected, 5e-6)


@backends
@pytest.mark.parametrize("block_size", [0, 16])
@pytest.mark.parametrize("variant", [PLAIN, VIEWS["all"]], ids=["plain", "all"])
@pytest.mark.parametrize("shared", [False, True])
def test_values_may_be_narrower_than_keys(
    backend: ModuleType, block_size: int, variant: AttentionVariant, shared: bool
) -> None:
    """Keys of 24 numbers and values of 16, which may be the first of the keys (a latent): one head serves all six."""
    addresses, slots, used = scattered(LENGTHS, block_size)
    k_pool, other = filled_pools(slots, used, 1 if shared else KV_HEADS, 24)
    v_pool = k_pool[..., :16] if shared else other[..., :16].contiguous()
    q = torch.randn(len(LENGTHS), 6, 24)
    out = torch.full((len(LENGTHS), 6, 16), torch.nan)
    backend.decode_attention(q, k_pool, v_pool, addresses, 0.3, out=out, max_length=300, variant=variant)
    assert_near(out, reference.decode_attention(q, k_pool, v_pool, addresses, 0.3, variant=variant), 5e-6)
    queries = [min(length, 9) for length in LENGTHS]
    query_starts = torch.tensor([0, *torch.tensor(queries).cumsum(0)], dtype=torch.int32)
    q = torch.randn(sum(queries), 6, 24)
    out = torch.full((len(q), 6, 16), torch.nan)
    backend.prefill_attention(q, k_pool, v_pool, addresses, query_starts, 0.3, out, 9, 300, variant)
    expected = reference.prefill_attention(q, k_pool, v_pool, addresses, query_starts, 0.3, variant=variant)
    assert_near(out, expected, 5e-6)


@backends
def test_keys_that_hold_the_values_are_stored_alone(backend: ModuleType) -> None:
    pool, k = torch.zeros(9, 1, 24), torch.randn(3, 1, 24)
    backend.write_kv(pool, pool[..., :16], k, None, torch.tensor([7, -1, 0]))
    assert torch.equal(pool[[7, 0]], k[[0, 2]])
    assert pool.count_nonzero() == 48


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_write_stores_tokens_and_skips_negative_slots(backend: ModuleType, dtype: torch.dtype) -> None:
    kv = torch.zeros(2, 2, 20, 2, 8, dtype=dtype)
    k, v = torch.randn(2, 3, 2, 8, dtype=dtype)
    backend.write_kv(kv[1, 0], kv[1, 1], k, v, torch.tensor([19, -1, 4]))
    expected = torch.zeros_like(kv)
    expected[1, 0, [19, 4]], expected[1, 1, [19, 4]] = k[[0, 2]], v[[0, 2]]
    assert torch.equal(kv, expected)


@backends
@settings(deadline=None)
@given(st.data())
def test_moves_read_every_source_first(backend: ModuleType, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 24))
    targets = data.draw(st.lists(st.integers(0, slots - 1), unique=True))
    sources = data.draw(st.lists(st.integers(0, slots - 1), min_size=len(targets), max_size=len(targets)))
    kv = torch.arange(2 * 2 * slots * 3.0).reshape(2, 2, slots, 1, 3)
    expected = kv.clone()
    expected[:, :, targets] = kv[:, :, sources]
    backend.move_slots(kv, torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64))
    assert torch.equal(kv, expected)


@backends
def test_compaction_slides_a_run_over_itself(backend: ModuleType) -> None:
    kv = torch.randn(3, 2, 100, 2, 8)
    expected = kv.clone()
    expected[:, :, 10:60] = kv[:, :, 17:67]
    backend.move_slots(kv, torch.arange(17, 67), torch.arange(10, 60))
    assert torch.equal(kv, expected)


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_copies_and_swaps_reach_every_layer(backend: ModuleType, dtype: torch.dtype) -> None:
    kv, host = torch.randn(3, 2, 12, 2, 8).to(dtype), torch.randn(3, 2, 5, 2, 8).to(dtype)
    before = kv.clone()
    sources, targets = torch.tensor([7, 2, 9]), torch.tensor([0, 11, 3])
    backend.copy_slots(kv, sources, targets)
    assert torch.equal(kv[:, :, targets], before[:, :, sources])
    backend.swap_out(kv, host, sources, torch.tensor([4, 0, 2]))
    assert torch.equal(host[:, :, [4, 0, 2]], before[:, :, sources])
    kv.zero_()
    backend.swap_in(kv, host, torch.tensor([1, 2, 3]), torch.tensor([4, 0, 2]))
    assert torch.equal(kv[:, :, [1, 2, 3]], before[:, :, sources])
    assert kv.count_nonzero() == before[:, :, sources].count_nonzero()


def test_half_precision_decodes_through_torch() -> None:
    addresses, slots, used = scattered(LENGTHS, 16)
    k_pool, v_pool = (pool.bfloat16() for pool in filled_pools(slots, used, KV_HEADS, 64))
    q = torch.randn(len(LENGTHS), KV_HEADS, 64).bfloat16()
    expected = reference.decode_attention(q, k_pool, v_pool, addresses, 0.125)
    assert_near(numba_backend.decode_attention(q, k_pool, v_pool, addresses, 0.125), expected, tolerance=0.02)


def test_dispatch_chooses_by_device_and_dtype() -> None:
    assert backend_for("cpu", torch.float32).decode_attention is numba_backend.decode_attention
    assert backend_for(torch.device("cpu"), torch.bfloat16).name == "torch"
    assert "torch.bfloat16" in backend_for("cpu", torch.bfloat16).reason
    assert backend_for("cpu", torch.float32, "torch").move_slots is torch_backend.move_slots


def test_dispatch_without_triton_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab_kernels.dispatch.find_spec", lambda name: None)
    backend = backend_for("cuda:1", torch.float16)
    assert (backend.name, backend.reason) == ("torch", "triton is not installed")


def test_dispatch_suggests_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="auto, torch, numba, triton; did you mean 'numba'"):
        backend_for("cpu", torch.float32, "nunba")
