"""The float64 reference against PyTorch's own attention and against cases small enough to see through."""

from __future__ import annotations

import pytest
import torch
from kvlab_kernels import reference
from kvlab_kernels.addresses import Addresses


def test_decode_and_prefill_equal_torch_on_contiguous_kv() -> None:
    torch.manual_seed(0)
    heads, kv_heads, dim, tokens = 4, 2, 16, 9
    k, v = torch.randn(2, tokens, kv_heads, dim, dtype=torch.float64)
    q = torch.randn(tokens, heads, dim, dtype=torch.float64)
    place = Addresses(torch.tensor([[0]]), torch.tensor([0]), torch.tensor([tokens]), 0)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, scale=0.3, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(
        reference.prefill_attention(q, k, v, place, torch.tensor([0, tokens]), 0.3), want, rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(reference.decode_attention(q[-1:], k, v, place, 0.3), want[-1:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("block_size", "table"), [(0, [[5, -1]]), (2, [[3, 0, 2, -1]]), (4, [[1, 4, -1]])])
def test_slots_follow_the_table(block_size: int, table: list[list[int]]) -> None:
    place = Addresses(torch.tensor(table), torch.tensor([0]), torch.tensor([5]), block_size)
    want = {0: [5, 6, 7, 8, 9], 2: [6, 7, 0, 1, 4], 4: [4, 5, 6, 7, 16]}[block_size]
    assert reference.slots_of(place, 0).tolist() == want


def test_one_token_is_its_own_answer_and_none_is_zero() -> None:
    v = torch.arange(6.0).view(3, 1, 2)
    place = Addresses(torch.tensor([[2], [-1]]), torch.tensor([0, 1]), torch.tensor([1, 0]), 1)
    out = reference.decode_attention(torch.randn(2, 1, 2), torch.randn(3, 1, 2), v, place, 1.0)
    assert out.tolist() == [[[4.0, 5.0]], [[0.0, 0.0]]]


def test_move_reads_all_sources_before_it_writes() -> None:
    kv = torch.arange(5.0).view(1, 1, 5, 1, 1).expand(1, 2, 5, 1, 1).clone()
    reference.move_slots(kv, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]))
    assert kv[0, 1].flatten().tolist() == [0, 0, 1, 2, 4]


def test_write_skips_negative_slots() -> None:
    k_pool, v_pool = torch.zeros(2, 3, 1, 1)
    reference.write_kv(k_pool, v_pool, torch.ones(2, 1, 1), 2 * torch.ones(2, 1, 1), torch.tensor([-1, 1]))
    assert (k_pool.flatten().tolist(), v_pool.flatten().tolist()) == ([0, 1, 0], [0, 2, 0])
