"""The prefill kernel against float64: natively where CUDA is present, else under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

triton = pytest.importorskip("triton")

from kvlab_kernels import reference, triton_prefill  # noqa: E402
from kvlab_kernels.gpu_check import interpreter_problem  # noqa: E402
from kvlab_kernels.reference import TOLERANCE, random_addresses, relative_error  # noqa: E402
from kvlab_kernels.variant import PLAIN, AttentionVariant  # noqa: E402

from tests.kernels.test_triton_decode import unlike  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(bool(interpreter_problem(DEVICE)), reason=interpreter_problem(DEVICE) or "")
SMALL = triton_prefill.PrefillConfig(block_m=32, block_n=16, num_warps=4, num_stages=2)


def check(
    lengths: list[int],
    queries: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    block_size: int,
    variant: AttentionVariant = PLAIN,
    **options: object,
) -> None:
    """Prefills from a poisoned pool into a poisoned output; every sequence must be within the dtype's tolerance.

    What no query sees is poisoned too.
    """
    if interpreter_problem(DEVICE, dtype):
        pytest.skip(interpreter_problem(DEVICE, dtype))
    torch.manual_seed(len(lengths) + head_dim + block_size)
    place, slots = random_addresses(lengths, block_size, DEVICE)
    k_pool, v_pool = torch.full((2, slots, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE)
    for index in range(len(lengths)):
        own = reference.slots_of(place, index)[variant.first_of(lengths[index] - queries[index]) :]
        k_pool[own], v_pool[own] = torch.randn(2, len(own), kv_heads, head_dim, device=DEVICE).to(dtype)
    starts = torch.tensor([0, *queries], device=DEVICE).cumsum(0).int()
    q = torch.randn(sum(queries), heads, head_dim, device=DEVICE).to(dtype)
    out = torch.full_like(q, float("nan"))
    scale = head_dim**-0.5
    want = reference.prefill_attention(q, k_pool, v_pool, place, starts, scale, variant=variant)
    triton_prefill.prefill_attention(
        q, k_pool, v_pool, place, starts, scale, out=out, max_query=max(queries), variant=variant, **options
    )
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        assert relative_error(out[first:last], want[first:last]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [0, 1, 16, 64, 256])
def test_placements(block_size: int, dtype: torch.dtype) -> None:
    check([5, 1, 200, 77], [5, 1, 150, 0], 2, 1, 64, dtype, block_size)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2)])
def test_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    check([70, 9], [70, 3], heads, kv_heads, head_dim, torch.float16, 16)


@pytest.mark.parametrize("block_size", [0, 16])
@pytest.mark.parametrize(
    ("key", "value", "heads", "dtype"),
    [(80, 64, 2, torch.float32), (576, 512, 1, torch.float16), (192, 128, 2, torch.float16)],
)
def test_latents_and_keys_wider_than_values(
    key: int, value: int, heads: int, dtype: torch.dtype, block_size: int
) -> None:
    torch.manual_seed(key + block_size)
    lengths, queries = [5, 60, 77], [5, 40, 1]
    place, slots = random_addresses(lengths, block_size, DEVICE)
    k_pool, v_pool = unlike(place, slots, key, value, dtype)
    starts = torch.tensor([0, *queries], device=DEVICE).cumsum(0).int()
    q = torch.randn(sum(queries), heads, key, device=DEVICE).to(dtype)
    out = torch.full((sum(queries), heads, value), float("nan"), dtype=dtype, device=DEVICE)
    want = reference.prefill_attention(q, k_pool, v_pool, place, starts, 0.1)
    triton_prefill.prefill_attention(q, k_pool, v_pool, place, starts, 0.1, out=out, max_query=max(queries))
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        assert relative_error(out[first:last], want[first:last]) < TOLERANCE[dtype]


SINKS = torch.tensor([0.3, -2.0, 5.0, 0.0], device=DEVICE)


@pytest.mark.parametrize("block_size", [pytest.param(0, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize(
    "variant",
    [AttentionVariant(window=1), AttentionVariant(window=20), AttentionVariant(window=300),
     AttentionVariant(chunk=24), AttentionVariant(softcap=0.5), AttentionVariant(sinks=SINKS),
     AttentionVariant(window=33, softcap=2.0, sinks=SINKS)],
    ids=["1", "20", "300", "chunk", "cap", "sinks", "all"],
)  # fmt: skip
def test_windows_chunks_caps_and_sinks(variant: AttentionVariant, block_size: int) -> None:
    check([5, 120, 77], [5, 70, 1], 4, 2, 64, torch.float32, block_size, variant, config=SMALL)


@pytest.mark.parametrize(
    "context", [0, 16, 31, 63, *(pytest.param(context, marks=pytest.mark.slow) for context in (1, 15, 17, 32))]
)
@pytest.mark.parametrize("queries", [1, 31, 33])
def test_diagonal_at_the_edges_of_tiles(context: int, queries: int) -> None:
    check([context + queries], [queries], 1, 1, 64, torch.float32, 16, config=SMALL)


def test_no_queries_and_a_wrong_shape() -> None:
    place, slots = random_addresses([4], 0, DEVICE)
    pool = torch.zeros(slots, 1, 64, device=DEVICE)
    starts = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    q = torch.zeros(0, 1, 64, device=DEVICE)
    assert triton_prefill.prefill_attention(q, pool, pool, place, starts, 1.0).shape == (0, 1, 64)
    with pytest.raises(ValueError, match="out must"):
        triton_prefill.prefill_attention(q, pool, pool, place, starts, 1.0, out=pool)
