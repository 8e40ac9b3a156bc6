"""The decode kernel against float64: natively where CUDA is present, else under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

triton = pytest.importorskip("triton")

from kvlab_kernels import reference, triton_decode  # noqa: E402
from kvlab_kernels.addresses import Addresses  # noqa: E402
from kvlab_kernels.gpu_check import interpreter_problem  # noqa: E402
from kvlab_kernels.reference import TOLERANCE, random_addresses, relative_error  # noqa: E402
from kvlab_kernels.triton_widths import HEAD_DIMS, LATENTS  # noqa: E402
from kvlab_kernels.variant import PLAIN, AttentionVariant  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PROBLEM = interpreter_problem(DEVICE) or ""
pytestmark = pytest.mark.skipif("numpy" in PROBLEM, reason=PROBLEM)


def test_nobody_imported_triton_too_early() -> None:
    assert not PROBLEM


def check(
    lengths: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    block_size: int,
    variant: AttentionVariant = PLAIN,
    **options: object,
) -> None:
    """Decodes on a poisoned pool into a poisoned output; every lane must be within the dtype's tolerance.

    What no query sees is poisoned too.
    """
    if interpreter_problem(DEVICE, dtype):
        pytest.skip(interpreter_problem(DEVICE, dtype))
    torch.manual_seed(len(lengths) + head_dim + block_size)
    place, slots = random_addresses(lengths, block_size, DEVICE)
    k_pool, v_pool = torch.full((2, slots, kv_heads, head_dim), float("nan"), dtype=dtype, device=DEVICE)
    for index in range(len(lengths)):
        own = reference.slots_of(place, index)[variant.first_of(lengths[index] - 1) if lengths[index] else 0 :]
        k_pool[own], v_pool[own] = torch.randn(2, len(own), kv_heads, head_dim, device=DEVICE).to(dtype)
    q = torch.randn(len(lengths), heads, head_dim, device=DEVICE).to(dtype)
    out = torch.full_like(q, float("nan"))
    scale = head_dim**-0.5
    want = reference.decode_attention(q, k_pool, v_pool, place, scale, variant=variant)
    result = triton_decode.decode_attention(q, k_pool, v_pool, place, scale, out=out, variant=variant, **options)
    assert result is out
    for got, expected in zip(out, want, strict=True):
        assert relative_error(got, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [0, 1, 16, 64, 256])
def test_placements(block_size: int, dtype: torch.dtype) -> None:
    check([0, 1, 300], 4, 1, 64, dtype, block_size, splits=2)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (18, 1)])
def test_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    check([33, 129], heads, kv_heads, head_dim, torch.float16, 16, splits=1)


def unlike(place: Addresses, slots: int, key: int, value: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pools of one KV head, NaN where no sequence lies; values are a part of the keys, or narrower than they."""
    latent = (value, key - value) in LATENTS
    k_pool = torch.full((slots, 1, key), float("nan"), dtype=dtype, device=DEVICE)
    v_pool = k_pool[:, :, :value] if latent else torch.full_like(k_pool[:, :, :value], float("nan"))
    for index in range(len(place.rows)):
        own = reference.slots_of(place, index)
        k_pool[own] = torch.randn(len(own), 1, key, device=DEVICE).to(dtype)
        if not latent:
            v_pool[own] = torch.randn(len(own), 1, value, device=DEVICE).to(dtype)
    return k_pool, v_pool


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("block_size", [0, 16])
@pytest.mark.parametrize(
    ("key", "value", "heads", "dtype"),
    [(80, 64, 4, torch.float32), (288, 256, 18, torch.float16), (576, 512, 3, torch.float32),
     (192, 128, 4, torch.float16)],
)  # fmt: skip
def test_latents_and_keys_wider_than_values(
    key: int, value: int, heads: int, dtype: torch.dtype, block_size: int, splits: int
) -> None:
    torch.manual_seed(key + block_size)
    lengths = [0, 1, 150]
    place, slots = random_addresses(lengths, block_size, DEVICE)
    k_pool, v_pool = unlike(place, slots, key, value, dtype)
    q = torch.randn(3, heads, key, device=DEVICE).to(dtype)
    out = torch.full((3, heads, value), float("nan"), dtype=dtype, device=DEVICE)
    want = reference.decode_attention(q, k_pool, v_pool, place, 0.1)
    triton_decode.decode_attention(q, k_pool, v_pool, place, 0.1, out=out, splits=splits)
    for got, expected in zip(out, want, strict=True):
        assert relative_error(got, expected) < TOLERANCE[dtype]


SINKS = torch.tensor([0.3, -2.0, 5.0, 0.0], device=DEVICE)


@pytest.mark.parametrize("splits", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("block_size", [0, 16, 256])
@pytest.mark.parametrize(
    "variant",
    [AttentionVariant(window=1), AttentionVariant(window=40), AttentionVariant(window=300),
     AttentionVariant(chunk=64), AttentionVariant(softcap=0.5), AttentionVariant(sinks=SINKS),
     AttentionVariant(window=33, softcap=2.0, sinks=SINKS)],
    ids=["1", "40", "300", "chunk", "cap", "sinks", "all"],
)  # fmt: skip
def test_windows_chunks_caps_and_sinks(variant: AttentionVariant, block_size: int, splits: int) -> None:
    check([0, 1, 64, 170], 4, 2, 64, torch.float32, block_size, variant, splits=splits)


@pytest.mark.parametrize("length", [15, 16, 17, 63, 64, 65, 127, 128, 129])
def test_lengths_at_the_edges_of_tiles_and_blocks(length: int) -> None:
    check([length], 2, 1, 128, torch.float16, 16)


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_the_number_of_splits_does_not_change_the_answer(splits: int) -> None:
    check([700, 5, 0], 2, 1, 64, torch.float32, 64, splits=splits)


def test_reduction_instead_of_tensor_cores() -> None:
    config = triton_decode.DecodeConfig(block_n=32, use_dot=False, num_warps=4, num_stages=2)
    check([70, 3], 2, 2, 80, torch.float16, 16, config=config, splits=2)


def test_strided_queries_and_a_wrong_bound_are_served() -> None:
    torch.manual_seed(1)
    place, slots = random_addresses([200, 9], 16, DEVICE)
    k_pool, v_pool = torch.randn(2, slots, 2, 64, device=DEVICE)
    q = torch.randn(4, 2, 64, device=DEVICE).transpose(0, 1)
    out = triton_decode.decode_attention(q, k_pool, v_pool, place, 0.1, max_length=1)
    assert relative_error(out, reference.decode_attention(q, k_pool, v_pool, place, 0.1)) < TOLERANCE[torch.float32]


def test_workspace_is_used_and_its_size_checked() -> None:
    place, slots = random_addresses([300], 0, DEVICE)
    pool = torch.randn(slots, 1, 64, device=DEVICE)
    q = torch.randn(1, 2, 64, device=DEVICE)
    size = triton_decode.workspace_size(1, 2, 64, 2)
    workspace = torch.full((size,), float("nan"), device=DEVICE)
    out = triton_decode.decode_attention(q, pool, pool, place, 0.1, workspace=workspace, splits=2)
    assert relative_error(out, reference.decode_attention(q, pool, pool, place, 0.1)) < TOLERANCE[torch.float32]
    assert not workspace.isnan().any()
    with pytest.raises(ValueError, match="workspace"):
        triton_decode.decode_attention(q, pool, pool, place, 0.1, workspace=workspace[:-1], splits=2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"q": torch.zeros(1, 3, 64)}, "cannot attend"),
        ({"q": torch.zeros(1, 2, 72), "k_pool": torch.zeros(8, 2, 72), "v_pool": torch.zeros(8, 2, 72)}, "head_dim"),
        ({"k_pool": torch.zeros(8, 2, 128)[..., ::2]}, "contiguous"),
        ({"q": torch.zeros(1, 2, 64, dtype=torch.float16)}, "dtypes"),
        ({"block_size": 12}, "power of two"),
        ({"out": torch.zeros(2, 2, 64)}, "out must"),
        ({"v_pool": torch.zeros(8, 2, 32)}, "latents of 64"),
    ],
)
def test_what_is_not_served_is_named(change: dict[str, object], match: str) -> None:
    pool = torch.zeros(8, 2, 64)
    table = torch.zeros(1, 1, dtype=torch.int32)
    place = Addresses(table, table[0], table[0], change.pop("block_size", 0))
    call = {"q": torch.zeros(1, 2, 64), "k_pool": pool, "v_pool": pool} | change
    with pytest.raises(ValueError, match=match):
        triton_decode.decode_attention(addresses=place, scale=1.0, **call)


def test_splits_fill_the_device_and_stay_bounded() -> None:
    splits = triton_decode.choose_splits
    assert splits(2048, 4096, 64, 132) == 1  # the batch fills the device alone
    assert splits(8, 32, 64, 132) == 1  # nothing to cut
    assert splits(8, 4096, 64, 132) == 32  # as many as MIN_TILES allows
    assert splits(2048, 131072, 64, 132) >= 16  # no processor is left alone with a long context
    for programs in (1, 8, 40, 64, 320, 512):
        for length in (1, 64, 1000, 4096, 131072):
            count = splits(programs, length, 64, 132)
            assert 1 <= count <= triton_decode.MAX_SPLITS
            assert count == 1 or (count - 1) * triton_decode.MIN_TILES * 64 < length
    filled = splits(320, 4096, 64, 132) * 320 / (132 * triton_decode.RESIDENT)
    assert filled / -(-filled // 1) > 0.8


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_captured_graph_serves_other_lengths_and_tables() -> None:
    place, slots = random_addresses([1000, 700, 3], 16, DEVICE)
    k_pool, v_pool = torch.randn(2, slots, 2, 128, device=DEVICE, dtype=torch.float16)
    q = torch.randn(3, 8, 128, device=DEVICE, dtype=torch.float16)
    out = torch.empty_like(q)

    def run() -> None:
        triton_decode.decode_attention(q, k_pool, v_pool, place, 0.1, out=out, max_length=1000)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    place.lengths.copy_(torch.tensor([3, 699, 0]))
    place.rows.copy_(place.rows.flip(0).clone())
    place.lengths.copy_(place.lengths.flip(0).clone())
    out.fill_(float("nan"))
    graph.replay()
    want = reference.decode_attention(q, k_pool, v_pool, place, 0.1)
    assert relative_error(out, want) < TOLERANCE[torch.float16]


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU's memory")
def test_offsets_beyond_two_to_the_thirty_first() -> None:
    slots = (1 << 31) // 1024 + 4096
    k_pool = torch.zeros(slots, 8, 128, device=DEVICE, dtype=torch.float16)
    k_pool[-512:].normal_()
    q = torch.randn(1, 8, 128, device=DEVICE, dtype=torch.float16)
    for block_size in (0, 16, 256):
        unit = block_size or 1
        first = (slots - 512) // unit
        table = torch.arange(first, first + (512 // unit if block_size else 1), device=DEVICE, dtype=torch.int32)[None]
        zero = torch.zeros(1, device=DEVICE, dtype=torch.int32)
        place = Addresses(table, zero, zero + 512, block_size)
        out = triton_decode.decode_attention(q, k_pool, k_pool, place, 0.1)
        want = reference.decode_attention(q, k_pool, k_pool, place, 0.1)
        assert relative_error(out, want) < TOLERANCE[torch.float16]
