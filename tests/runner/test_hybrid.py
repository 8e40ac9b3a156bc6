"""Models whose layers keep different things say what they say alone, and nobody looks behind windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator
from allocators.dual_pool import DualPool
from allocators.jenga import Jenga
from allocators.paged import Paged
from allocators.vllm_hybrid import VllmHybrid
from harness.runner.packing import slots_of
from schedulers.continuous import Continuous
from schedulers.reservation import RESERVATIONS
from schedulers.static import Static
from tests.runner.serving import probed_of, relative, serve
from tests.runner.test_any_combination import LONGEST, allocators

WINDOWED = ("mistral", "gemma3", "gpt_oss", "llama4")
RECURRENT = ("lfm2", "falcon_h1")
MORE = ("gemma2", "gemma3n", "olmo3", "cohere2", "deepseek_v3", "qwen3_next", "jamba", "zamba2", "mamba")


@pytest.mark.parametrize("examples", [3, pytest.param(120, marks=pytest.mark.slow)])
def test_nothing_changes_what_the_model_says(examples: int) -> None:
    names = WINDOWED + RECURRENT + (MORE if examples > 50 else ())
    given_names = given(st.data(), st.sampled_from(names))
    settings(max_examples=examples, deadline=None, derandomize=True)(given_names(serve_something))()


@st.composite
def by_layers(draw: st.DrawFn, name: str, slots: int) -> Allocator:
    """An allocator that knows the layout of a model, and gives back what lies behind windows."""
    layout = probed_of(name).layout(4).within(LONGEST)
    capacity = slots * layout.token_bytes // layout.unit_bytes + 16 * layout.state_bytes
    size = draw(st.sampled_from([1, 4, 16]))
    kind = draw(st.sampled_from(["hybrid", "hybrid", "dual", "jenga"]))
    caching = not layout.state_bytes and draw(st.booleans())
    if kind == "hybrid":
        return VllmHybrid(capacity, LONGEST, layout, size, enable_prefix_caching=caching)
    if kind == "dual":
        return DualPool(capacity, LONGEST, layout, size, enable_prefix_caching=caching)
    return Jenga(capacity, LONGEST, layout, size, enable_prefix_caching=caching)


def serve_something(data: st.DataObject, name: str) -> None:
    slots = data.draw(st.sampled_from([72, 120, 400]), "slots")
    apart = data.draw(st.booleans())
    allocator = data.draw(by_layers(name, 4 * slots) if apart else allocators(slots), "allocator")
    if probed_of(name).calls.mixers and allocator.shares:
        return  # refused, see `Device.runner`
    budget, static = data.draw(st.sampled_from([3, 11, 64, 256]), "max_num_batched_tokens"), data.draw(st.booleans())
    limits: dict[str, Any] = {
        "max_num_batched_tokens": max(budget, 64) if static else budget,
        "chunked_prefill": not static and (budget < LONGEST or data.draw(st.booleans(), "chunked_prefill")),
    }
    if not static:
        limits["preemption"] = "swap" if allocator.host_capacity else "recompute"
    reservation = RESERVATIONS["on_demand" if allocator.grows else "exact"]

    def make(checked: Any) -> Any:
        return (Static if static else Continuous)(checked, reservation, max_model_len=LONGEST, watermark=0.0, **limits)

    tamper = None if apart or allocator.shares else poison  # who gives blocks back overwrites them
    assert relative(name, serve(name, allocator, make, tamper=tamper)) < 1e-3


def poison(runner: Any, batch: Any) -> None:
    """Whatever lies behind the windows and chunks of everybody becomes NaN before a step."""
    allocator = runner.allocator
    counts = dict(zip(batch.seqs, batch.counts, strict=True))
    for call in runner.calls.all:
        if not call.variant.reach or batch.moves:
            continue
        seen, behind = set[int](), set[int]()
        for seq in allocator.holders:
            first = call.variant.first_of(seq.stored - counts.get(seq, 1))
            where = [seq.row] * seq.stored, range(seq.stored)
            slots = slots_of(allocator.tables, allocator.block_size, *map(_array, where)).tolist()
            seen |= set(slots[first:])
            behind |= set(slots[:first])
        for pool in runner.pool.layers[call.layer]:
            pool[sorted(behind - seen)] = float("nan")


def _array(numbers: Any) -> Any:
    return np.array(numbers, np.int64)


def test_a_window_that_is_too_short_by_one_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the poison never met, the test above would say nothing."""
    probed = probed_of("mistral")
    calls = list(probed.calls.all)
    monkeypatch.setattr(probed.calls, "all", [c._replace(variant=c.variant._replace(window=8)) for c in calls])

    def early(runner: Any, batch: Any) -> None:
        runner.calls.all[:] = calls
        poison(runner, batch)
        runner.calls.all[:] = [c._replace(variant=c.variant._replace(window=8)) for c in calls]

    def make(checked: Any) -> Any:
        return Continuous(checked, RESERVATIONS["on_demand"], max_model_len=LONGEST, watermark=0.0)

    assert not relative("mistral", serve("mistral", Paged(400, LONGEST, 4), make, tamper=early)) < 1e-3
