"""Tokens found in the radix tree are the tokens that the model would have computed; a fault in the tree shows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import AllocatorError
from allocators.checker import ContractError
from allocators.radix import Radix
from schedulers.request import Batch, Request
from schedulers.vllm_v1 import VllmV1
from tests.allocators.radix_rules import check_tree
from tests.conformance.effort import cases
from tests.runner.serving import answers, difference
from tests.runner.test_prefix_caching import LONGEST, SCHEDULERS, families, served, tokens

RADIX = partial(Radix, 160, LONGEST)


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_sharing_says_what_generate_says(schedule: str) -> None:
    name = ("opt", "llama")[list(SCHEDULERS).index(schedule) % 2]
    said, scheduler = served(name, families(), SCHEDULERS[schedule], pool=RADIX())
    assert difference(said, answers(name, families())) < 1e-4
    assert scheduler.prefix.hits > 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_small_pool_preempts_evicts_and_hits_and_says_the_same(page_size: int) -> None:
    pool = Radix(96, LONGEST, page_size)
    said, scheduler = served("llama", families(), SCHEDULERS["vllm_v1_ungated"], pool=pool)
    check_tree(pool)
    assert difference(said, answers("llama", families())) < 1e-4
    assert sum(answer.preemptions for answer in said.values()) >= 3
    assert scheduler.prefix.preempted_hits > 0


def test_the_longest_prefix_goes_first_and_all_say_the_same() -> None:
    one_at_a_time = partial(VllmV1, max_num_seqs=1, policy="longest_prefix")
    order: list[int] = []

    def note(runner: Any, batch: Batch) -> None:
        order.extend(seq.request.id % 3 for seq in batch.admitted)

    said, _ = served("llama", families(), one_at_a_time, pool=RADIX(), tamper=note)
    assert order == sorted(order)  # family by family, though they arrive in turn
    assert difference(said, answers("llama", families())) < 1e-4


def test_equal_prompts_in_one_step_share_what_the_step_computes() -> None:
    """16 tokens: the second of two equal prompts computes its last one, in the same step."""
    pair = [Request(i, 0, 16, 12, token_ids=tokens(7, 16)) for i in range(2)]
    steps: list[list[int]] = []
    said, _ = served("llama", pair, SCHEDULERS["vllm_v1"], pool=RADIX(), tamper=lambda _, b: steps.append([*b.counts]))
    assert steps[0] == [16, 1]
    assert difference(said, answers("llama", pair)) < 1e-4


def test_a_fully_cached_prompt_computes_one_token() -> None:
    pair = [Request(i, 0, 16, 12, token_ids=tokens(7, 16)) for i in range(2)]
    said, scheduler = served("llama", pair, partial(VllmV1, max_num_seqs=1), pool=RADIX())
    assert scheduler.prefix.hits == 15
    assert difference(said, answers("llama", pair)) < 1e-4


def test_an_answer_that_becomes_a_prompt_is_hit_to_its_last_stored_token() -> None:
    first = Request(0, 0, 10, 14, token_ids=tokens(8, 10))
    answer = answers("llama", [first])[0].tokens
    second = Request(1, 0, 26, 8, token_ids=first.token_ids + answer + [5, 6])
    said, scheduler = served("llama", [first, second], partial(VllmV1, max_num_seqs=1), pool=RADIX())
    assert scheduler.prefix.hits == 23  # 24 tokens less the last of the answer, which was never stored
    assert difference(said, answers("llama", [first, second])) < 1e-4


@settings(max_examples=cases(12), deadline=None, derandomize=True)
@given(st.data())
def test_any_workload_under_any_limits_says_the_same(data: st.DataObject) -> None:
    """Prompts out of a small alphabet of pieces, so that prefixes of every length are shared."""
    requests = []
    for i in range(data.draw(st.integers(3, 9))):
        pieces = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        prompt = [token for piece in pieces for token in tokens(piece, 5)]
        requests.append(Request(i, 0, len(prompt), data.draw(st.integers(1, 25)), token_ids=prompt))
    pool = Radix(data.draw(st.integers(48, 128)), LONGEST, data.draw(st.sampled_from([1, 1, 2])))
    schedule = data.draw(st.sampled_from(sorted(SCHEDULERS)))
    said, _ = served("llama", requests, SCHEDULERS[schedule], pool=pool)
    assert difference(said, answers("llama", requests)) < 1e-4


# ---- mutations: each of these faults must show ---------------------------------------------------------------------


def crowd() -> list[Request]:
    """Four prompts that come three times in a row, twice; 160 slots keep them all, 80 do not."""
    return [Request(i, 0, 20, 12, token_ids=tokens(50 + i // 3 % 4, 20)) for i in range(24)]


def shows(tamper: Any, slots: int = 80) -> bool:
    """Whether the checker or the answers tell of what `tamper` does."""
    try:
        two = partial(VllmV1, max_num_seqs=2)
        said, _ = served("llama", crowd(), two, pool=Radix(slots, LONGEST), tamper=tamper)
    except (ContractError, AllocatorError, IndexError, ValueError):
        return True
    return not difference(said, answers("llama", crowd())) < 1e-2


@pytest.mark.parametrize("slots", [80, 160])
def test_nothing_shows_where_nothing_is_wrong(slots: int) -> None:
    assert not shows(None, slots)


def test_a_stale_node_shows() -> None:
    """A leaf that is found again after its slots were handed out for something else."""
    ever: dict[bytes, Any] = {}

    def tamper(runner: Any, batch: Batch) -> None:
        children = runner.allocator.allocator.tree.root.children
        for first, node in children.items():
            ever.setdefault(first, node)
        for first, node in ever.items():
            if len(node.pages):
                children.setdefault(first, node)

    assert shows(tamper)


def test_a_slot_that_lies_twice_in_a_node_shows() -> None:
    """(Another order of a hit's slots would not: attention sums over all of them.)"""

    def tamper(runner: Any, batch: Batch) -> None:
        for node in runner.allocator.allocator.tree.nodes():
            if not node.refs and len(node.pages) > 8:
                node.pages[0] = node.pages[7]

    assert shows(tamper, slots=160)


def test_a_slot_of_another_node_shows() -> None:
    def tamper(runner: Any, batch: Batch) -> None:
        idle = [node for node in runner.allocator.allocator.tree.nodes() if not node.refs]
        if len(idle) > 1:
            idle[0].pages = idle[0].pages.copy()
            idle[0].pages[0] = idle[1].pages[0]

    assert shows(tamper)


def test_contents_that_are_taken_for_the_same_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the lowest bit of each token counts: other prompts' tokens are hit."""
    from schedulers.request import Sequence

    told = Sequence.token_keys
    monkeypatch.setattr(Sequence, "token_keys", lambda seq, count: np.bitwise_and(told(seq, count), [-1, 0]))
    assert shows(None)
