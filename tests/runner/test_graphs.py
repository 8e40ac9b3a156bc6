"""Decode steps over static buffers: what a CUDA graph replays, here with a capture that only remembers the call."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from allocators.contiguous import Contiguous
from allocators.paged import Paged
from harness.runner.graphs import padded_sizes
from schedulers.continuous import Continuous
from schedulers.reservation import exact, on_demand
from schedulers.static import Static
from tests.runner.serving import difference, expected, serve


def remembered(compute):
    """A stand-in for a captured graph: computes again into the same place."""
    result = torch.inference_mode()(compute)()

    def replay():
        with torch.inference_mode():
            result.copy_(compute())

    return replay, result


@pytest.mark.parametrize(
    ("make_allocator", "make_scheduler"),
    [
        (lambda: Paged(160, 64, block_size=4), lambda a: Continuous(a, on_demand, max_model_len=64, watermark=0.0)),
        (lambda: Contiguous(160, 64, fit="first_fit"), lambda a: Static(a, exact, max_model_len=64)),
    ],
)
def test_padded_decode_steps_say_what_generate_says(make_allocator, make_scheduler):
    taken = []

    def capture_first(runner, batch):
        if runner.graphs is None:
            runner.capture(3, 64, remembered)  # batches of more than 4 lanes run without
            run = runner.graphs.run
            runner.graphs.run = lambda packed: taken.append(packed.lanes) or run(packed)

    served = serve("llama", make_allocator(), make_scheduler, kernels="torch", tamper=capture_first)
    assert difference(served, expected("llama")) < 1e-4
    assert {3, 4} <= set(taken)  # a padded and a full one


def test_sizes_grow_with_the_batch_and_end_at_it():
    assert padded_sizes(1) == [1]
    assert padded_sizes(20) == [1, 2, 4, 8, 16, 24]
    sizes = padded_sizes(1024)
    assert sizes[-1] == 1024
    assert all(b - a <= max(8, a // 2) for a, b in pairwise(sizes))
