"""Tokens and logits are those of `generate`, whatever is drawn of what may change where and when tokens are stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.radix import Radix
from allocators.virtual import Virtual
from schedulers.continuous import Continuous
from schedulers.reservation import RESERVATIONS
from tests.runner.serving import difference, expected, serve

LONGEST = 64


@st.composite
def allocators(draw: st.DrawFn, slots: int) -> Allocator:
    """Any placement, each with its own ways to share, swap or move."""
    kind = draw(st.sampled_from(["paged", "paged", "radix", "virtual", "extents"]))
    if kind == "paged":
        size, host = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([0, 40, 400]))
        return Paged(slots, LONGEST, size, enable_prefix_caching=draw(st.booleans()), host_slots=host)
    if kind == "radix":
        return Radix(slots, LONGEST, page_size=draw(st.sampled_from([1, 4])))
    if kind == "virtual":
        return Virtual(slots, LONGEST, page_tokens=draw(st.sampled_from([1, 6, 8])))
    fit, moves = draw(st.sampled_from(["first_fit", "best_fit"])), draw(st.sampled_from(["never", "on_refusal"]))
    return Contiguous(slots, LONGEST, fit=fit, compaction=moves, growth=draw(st.sampled_from([0, 4])))


@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_nothing_changes_what_the_model_says(examples: int) -> None:
    settings(max_examples=examples, deadline=None, derandomize=True)(given(st.data())(serve_something))()


def serve_something(data: st.DataObject) -> None:
    allocator = data.draw(allocators(data.draw(st.sampled_from([72, 120, 400]), "slots")), "allocator")
    budget = data.draw(st.sampled_from([3, 11, 64, 256]), "max_num_batched_tokens")
    limits: dict[str, Any] = {
        "max_num_batched_tokens": budget,
        "chunked_prefill": budget < LONGEST or data.draw(st.booleans(), "chunked_prefill"),
        "prefill_first": data.draw(st.booleans(), "prefill_first"),
        "preemption": "swap" if allocator.host_capacity else "recompute",
        "policy": data.draw(st.sampled_from(["fcfs", "shortest_first", "longest_prefix"]), "policy"),
    }
    name = data.draw(st.sampled_from(["opt", "gpt2", "llama", "minicpm3"]), "model")
    reservation = RESERVATIONS["on_demand" if allocator.grows else "exact"]

    def make(checked: Allocator) -> Continuous:
        return Continuous(checked, reservation, max_model_len=LONGEST, watermark=0.0, **limits)

    assert difference(serve(name, allocator, make), expected(name)) < 1e-4
