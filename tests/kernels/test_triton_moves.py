"""Writes and moves against the reference, bit for bit: natively on CUDA, else under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

triton = pytest.importorskip("triton")

from kvlab_kernels import reference, triton_moves  # noqa: E402
from kvlab_kernels.gpu_check import interpreter_problem  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(bool(interpreter_problem(DEVICE)), reason=interpreter_problem(DEVICE) or "")
SHAPES = [(3, 64, torch.float32), (2, 80, torch.float16), (40, 128, torch.bfloat16), (1, 16, torch.float16)]
shapes = pytest.mark.parametrize(("heads", "head_dim", "dtype"), SHAPES, ids=str)


def pool(slots: int, heads: int, head_dim: int, dtype: torch.dtype, device: str = DEVICE) -> torch.Tensor:
    return torch.randn(2, 2, slots, heads, head_dim, device=device).to(dtype)


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@shapes
def test_write(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    got = pool(50, heads, head_dim, dtype)
    want = got.clone()
    k = torch.randn(heads, 17, head_dim, device=DEVICE).to(dtype).transpose(0, 1)  # as a model hands it over
    v = torch.randn(17, heads, head_dim, device=DEVICE).to(dtype)
    slots = torch.randperm(50, device=DEVICE)[:17]
    slots[3] = -1
    triton_moves.write_kv(got[1, 0], got[1, 1], k, v, slots)
    reference.write_kv(want[1, 0], want[1, 1], k, v, slots)
    assert same(got, want)


@pytest.mark.parametrize("value", [None, 128])
def test_write_of_latents_and_of_values_that_are_narrower(value: int | None) -> None:
    torch.manual_seed(0)
    key = 80 if value is None else 192
    got = [torch.randn(50, 2, width, device=DEVICE) for width in (key, value or 64)]
    want = [plane.clone() for plane in got]
    k = torch.randn(17, 2, key, device=DEVICE)
    v = None if value is None else torch.randn(17, 2, value, device=DEVICE)
    slots = torch.randperm(50, device=DEVICE)[:17]
    slots[5] = -1
    triton_moves.write_kv(*got, k, v, slots)
    reference.write_kv(*want, k, v, slots)
    assert all(map(same, got, want))


def test_copy_of_latents() -> None:
    got = torch.randn(2, 1, 40, 1, 80, device=DEVICE)
    want, order = got.clone(), torch.randperm(40, device=DEVICE)
    triton_moves.copy_slots(got, order[:13], order[13:26])
    reference.copy_slots(want, order[:13], order[13:26])
    assert same(got, want)


@shapes
def test_copy(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    got = pool(40, heads, head_dim, dtype)
    want = got.clone()
    order = torch.randperm(40, device=DEVICE)
    triton_moves.copy_slots(got, order[:13], order[13:26])
    reference.copy_slots(want, order[:13], order[13:26])
    assert same(got, want)


@pytest.mark.parametrize("shift", [-7, -1, 1, 7])
@pytest.mark.parametrize("staging", [1, 1 << 28])
def test_move_of_overlapping_runs(shift: int, staging: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_moves, "STAGING_BYTES", staging)
    got = pool(40, 2, 64, torch.float16)
    want = got.clone()
    sources = torch.arange(10, 30, device=DEVICE)
    triton_moves.move_slots(got, sources, sources + shift)
    reference.move_slots(want, sources, sources + shift)
    assert same(got, want)


@pytest.mark.parametrize("side", [False, pytest.param(True, marks=pytest.mark.skipif(DEVICE == "cpu", reason="GPU"))])
@shapes
def test_swap_out_and_in(heads: int, head_dim: int, dtype: torch.dtype, side: bool) -> None:
    torch.manual_seed(2)
    stream = torch.cuda.Stream() if side else None
    kv, host = pool(40, heads, head_dim, dtype), pool(20, heads, head_dim, dtype, "cpu")
    host = host.pin_memory() if DEVICE == "cuda" else host
    want_host, slots, host_slots = host.clone(), *(torch.randperm(n, device=DEVICE)[:11] for n in (40, 20))
    triton_moves.swap_out(kv, host, slots, host_slots, stream)
    reference.swap_out(kv, want_host, slots, host_slots)
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    assert same(host, want_host)
    want = kv.clone()
    triton_moves.swap_in(kv, host, slots.flip(0), host_slots, stream)
    reference.swap_in(want, want_host, slots.flip(0), host_slots)
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    assert same(kv, want)


def test_empty_lists_do_nothing() -> None:
    kv = pool(4, 1, 64, torch.float16)
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    for move in (triton_moves.copy_slots, triton_moves.move_slots):
        move(kv, none, none)


def test_what_is_not_served_is_named() -> None:
    kv = pool(4, 1, 64, torch.float16)
    one = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="equally long"):
        triton_moves.copy_slots(kv, one, one.repeat(2))
    with pytest.raises(ValueError, match="int64"):
        triton_moves.copy_slots(kv, one.int(), one.int())
    with pytest.raises(ValueError, match="contiguous"):
        triton_moves.copy_slots(kv.transpose(0, 1), one, one)
    with pytest.raises(ValueError, match="differ"):
        triton_moves.swap_out(kv, pool(4, 2, 64, torch.float16), one, one)
    with pytest.raises(ValueError, match="cannot write"):
        triton_moves.write_kv(kv[0, 0], kv[0, 1], kv[0, 0], kv[0, 1], one)
