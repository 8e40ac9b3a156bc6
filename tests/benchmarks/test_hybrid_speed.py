"""How long a step of 256 decodes takes with one and with two groups of layers. The bound is three times."""

from __future__ import annotations

import statistics
import time

import pytest

from allocators.layout import KVLayout, LayerGroup
from allocators.vllm_hybrid import VllmHybrid
from schedulers.request import Request
from schedulers.reservation import on_demand
from schedulers.vllm_v1 import VllmV1

FULL = LayerGroup("full", tuple(range(12)), 8, 64, 64)
WINDOW = LayerGroup("window", tuple(range(12, 24)), 8, 64, 64, reach=128)


def steps(layout: KVLayout, lanes: int = 256) -> VllmV1:
    """A scheduler that decodes so many sequences of about a thousand tokens."""
    capacity = 40_000 * lanes * (1 if layout.uniform else 2**13) // 16
    allocator = VllmHybrid(capacity, 4096, layout)
    scheduler = VllmV1(allocator, on_demand, max_model_len=4096, max_num_seqs=lanes, max_num_batched_tokens=8192)
    for number in range(lanes):
        scheduler.add(Request(number, 0, 900 + number % 200, 2000))
    while scheduler.waiting:
        scheduler.complete(scheduler.schedule(0), None)
    return scheduler


def seconds(scheduler: VllmV1, count: int = 32) -> float:
    start = time.perf_counter()
    for _ in range(count):
        scheduler.complete(scheduler.schedule(0), None)
        scheduler.allocator.memory()
    return (time.perf_counter() - start) / count


@pytest.mark.slow
def test_two_groups_take_at_most_three_times_one() -> None:
    one, two = steps(KVLayout((FULL,))), steps(KVLayout((WINDOW, FULL)))
    ratios = [seconds(two) / seconds(one) for _ in range(9)]  # interleaved
    assert statistics.median(ratios) <= 3
