"""Sharing a prefix changes no token and no logit: whatever is hit, evicted, preempted or computed in the same step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.checker import ContractError
from allocators.paged import Paged
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request
from schedulers.reservation import on_demand
from schedulers.static import Static
from schedulers.vllm_v1 import VllmV1
from tests.conformance.effort import cases
from tests.runner.serving import VOCABULARY, answers, difference, serve

LONGEST = 64
SCHEDULERS = {
    "continuous": partial(Continuous, watermark=0.0),
    "chunked": partial(Continuous, chunked_prefill=True, max_num_batched_tokens=9),
    "prefill_first": partial(Continuous, prefill_first=True),
    "static": partial(Static, max_num_seqs=4),
    "static_chunked": partial(Static, max_num_seqs=4, chunked_prefill=True, max_num_batched_tokens=9),
    "vllm_v1": partial(VllmV1),
    "vllm_v1_chunked": partial(VllmV1, max_num_batched_tokens=9, long_prefill_token_threshold=5),
    "vllm_v1_ungated": partial(VllmV1, max_num_batched_tokens=12, scheduler_reserve_full_isl=False),
}


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def families() -> list[Request]:
    """Prompts of three families that share 20 tokens each, some of them equal, some cut at a block's end."""
    drawn = []
    for i in range(12):
        shared, own = tokens(i % 3, 20), tokens(100 + i // 6, [0, 3, 12, 4][i % 4])
        prompt = shared + own
        drawn.append(Request(i, 0, len(prompt), 14 + i, token_ids=prompt))
    return drawn


def served(name: str, requests: list[Request], scheduler: Any, slots: int = 160, block_size: int = 4,
           tamper: Any = None, pool: Any = None) -> tuple[dict[int, Any], Any]:  # fmt: skip
    """The answers with prefix caching (or from `pool`), and the scheduler that formed the batches."""
    made: list[Any] = []

    def make(allocator: Any) -> Any:
        made.append(scheduler(allocator, on_demand, max_model_len=LONGEST))
        return made[0]

    pool = pool or Paged(slots, LONGEST, block_size, enable_prefix_caching=True)
    said = serve(name, pool, make, requests, tamper=tamper)
    assert pool.memory().used == 0
    return said, made[0]


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("name", ["opt", "llama"])
def test_sharing_says_what_generate_says(name: str, schedule: str) -> None:
    said, scheduler = served(name, families(), SCHEDULERS[schedule])
    assert difference(said, answers(name, families())) < 1e-4
    assert scheduler.prefix.hits > 0


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_small_pool_preempts_evicts_and_hits_and_says_the_same(block_size: int) -> None:
    said, scheduler = served("llama", families(), SCHEDULERS["vllm_v1_ungated"], slots=96, block_size=block_size)
    assert difference(said, answers("llama", families())) < 1e-4
    assert sum(answer.preemptions for answer in said.values()) >= 3
    assert scheduler.prefix.hits > 0
    assert scheduler.prefix.preempted_hits > 0 or block_size == 16


def test_equal_prompts_in_one_step_share_what_the_step_computes() -> None:
    """16 tokens in blocks of 4: the second of two equal prompts computes 4 of them, in the same step."""
    pair = [Request(i, 0, 16, 12, token_ids=tokens(7, 16)) for i in range(2)]
    steps: list[list[int]] = []
    said, _ = served("llama", pair, SCHEDULERS["vllm_v1"], tamper=lambda _, batch: steps.append(list(batch.counts)))
    assert steps[0] == [16, 4]
    assert difference(said, answers("llama", pair)) < 1e-4


def test_a_prompt_of_whole_blocks_that_are_all_cached_computes_one_block() -> None:
    """One after the other: 12 of 16 tokens are hit, so that the last one has logits."""
    pair = [Request(i, 0, 16, 12, token_ids=tokens(7, 16)) for i in range(2)]
    one_at_a_time = partial(VllmV1, max_num_seqs=1)
    said, scheduler = served("llama", pair, one_at_a_time)
    assert scheduler.prefix.hits == 12
    assert difference(said, answers("llama", pair)) < 1e-4


def test_an_answer_that_becomes_a_prompt_is_hit_where_its_tokens_are_known() -> None:
    """The second turn of a conversation: its prompt is the first prompt, the answer to it, and two tokens more."""
    first = Request(0, 0, 10, 15, token_ids=tokens(8, 10))
    answer = answers("llama", [first])[0].tokens
    second = Request(1, 0, 27, 8, token_ids=first.token_ids + answer + [5, 6])
    said, scheduler = served("llama", [first, second], partial(VllmV1, max_num_seqs=1))
    assert scheduler.prefix.hits == 24  # 25 tokens less the last of the answer, which was never stored
    assert difference(said, answers("llama", [first, second])) < 1e-4


@pytest.mark.parametrize("kept", [0, 1])
def test_contents_that_are_taken_for_the_same_show(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many low bits of each token as are `kept` count: other prompts' blocks are hit."""
    monkeypatch.setattr("schedulers.content._bytes", lambda ids: (np.asarray(ids, np.int64) & kept).tobytes())
    said, _ = served("llama", families(), SCHEDULERS["vllm_v1"])
    assert difference(said, answers("llama", families())) > 1e-2


def test_a_stale_block_shows() -> None:
    """Contents that are still found after their blocks were handed out for something else."""
    ever: dict[Any, int] = {}

    def tamper(runner: Any, batch: Batch) -> None:
        first = runner.allocator.allocator.pool.first
        ever.update(first)
        first.update(ever)

    requests = [Request(i, 0, 20, 12, token_ids=tokens(50 + i % 7, 20)) for i in range(21)]
    with pytest.raises(ContractError, match="counted one by one"):
        served("llama", requests, partial(VllmV1, max_num_seqs=2), slots=80, tamper=tamper)


@settings(max_examples=cases(12), deadline=None, derandomize=True)
@given(st.data())
def test_any_workload_under_any_limits_says_the_same(data: st.DataObject) -> None:
    """Prompts out of a small alphabet of pieces, so that prefixes of every length are shared."""
    requests = []
    for i in range(data.draw(st.integers(3, 9))):
        pieces = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        prompt = [token for piece in pieces for token in tokens(piece, 5)]
        requests.append(Request(i, 0, len(prompt), data.draw(st.integers(1, 25)), token_ids=prompt))
    block_size = data.draw(st.sampled_from([1, 2, 4, 8]))
    schedule = data.draw(st.sampled_from(sorted(SCHEDULERS)))
    said, _ = served("llama", requests, SCHEDULERS[schedule], data.draw(st.integers(6, 16)) * 8, block_size)
    assert difference(said, answers("llama", requests)) < 1e-4
