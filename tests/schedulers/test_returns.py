"""Sequences that lost their place come back: groups that compute their prompt anew, and swapped sequences."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.base import Ask
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.radix import Radix
from schedulers.continuous import Continuous
from schedulers.max_utilization import MaxUtilization
from schedulers.rebuild import Rebuild
from schedulers.request import Batch, Request, Sequence
from schedulers.reservation import max_model_len, on_demand, pow2
from schedulers.static import Static
from tests.conformance.scheduler import check_step, finish, serve


def to_the_end(scheduler: Any) -> list[Sequence]:
    """Who finishes, in order; the rules of each step are checked."""
    over: list[Sequence] = []
    while scheduler.num_requests:
        batch = scheduler.schedule(0)
        check_step(scheduler, batch)
        assert batch.seqs, "requests are queued and nothing is scheduled"
        over += scheduler.complete(batch, None)[1]
    return over


@pytest.mark.parametrize("budget", [3, 4, 100])
def test_with_prompts_first_a_group_that_begins_anew_stays_in_step(budget: int) -> None:
    """Its prompt ends at the prompt, though its leader has an answer; then each member computes its own."""
    allocator: Any = Checked(Paged(64, 40, block_size=4))
    scheduler = Continuous(allocator, on_demand, max_model_len=40, prefill_first=True, chunked_prefill=True,
                           max_num_batched_tokens=budget)  # fmt: skip
    scheduler.add(Request(0, 0, 5, 9, n=3))
    while scheduler.waiting or scheduler.running[0].num_tokens < 10:
        scheduler.complete(scheduler.schedule(0), None)
    scheduler.preempt(scheduler.running[-1], Batch())
    (leader,) = to_the_end(scheduler)
    assert [seq.num_tokens for seq in leader.members] == [14, 14, 14]
    assert sum(seq.recomputed for seq in leader.members) == 5 + 3 * 4


def test_a_pass_in_order_brings_nobody_back_from_the_host() -> None:
    with pytest.raises(ValueError, match=r"scheduler.preemption=swap with scheduler.policy=priority"):
        MaxUtilization(Paged(64, 40, host_slots=64), on_demand, max_model_len=40, policy="priority", preemption="swap")


def test_nobody_starts_over_while_somebody_is_on_the_host() -> None:
    """B's promised slots do not fit beside A's, though its tokens would."""
    allocator: Any = Checked(Paged(36, 36, block_size=4, host_slots=64))
    scheduler = Rebuild(allocator, pow2, max_model_len=36, preemption="swap")
    for request in (Request(0, 0, 8, 16), Request(1, 0, 4, 8)):
        scheduler.add(request)
    scheduler.complete(scheduler.schedule(0), None)
    scheduler.preempt(scheduler.running[-1], Batch())
    assert [seq.request.id for seq in to_the_end(scheduler)] == [0, 1]


def test_a_promise_outlives_a_swap_in_the_books() -> None:
    allocator: Any = Checked(Paged(32, 32, block_size=4, host_slots=32))
    seq = Sequence("a")
    assert allocator.admit([seq], Ask(4, promise=11, final=8)) is not None
    allocator.commit([seq], [4])
    allocator.take_moves()
    before = allocator.memory()
    assert before.over_reserved == 3
    assert allocator.swap([seq], to_host=True)
    assert allocator.swap([seq], to_host=False)
    assert allocator.memory() == before


def test_who_computed_a_known_prompt_again_forks_from_what_was_there_first() -> None:
    """Both compute the same prompt in one step; the group gives its copy back when it forks, and the checker agrees."""
    allocator: Any = Checked(Radix(40, 10))
    scheduler = Continuous(allocator, on_demand, max_model_len=10)
    requests = [Request(0, 0, 1, 2, token_ids=[7]), Request(1, 0, 1, 2, token_ids=[7], n=2)]
    assert len(serve(scheduler, requests).finished) == 2


@pytest.mark.parametrize("cls", [Continuous, Static])
@pytest.mark.parametrize("compaction", ["never", "on_refusal"])
@pytest.mark.parametrize(("prompt", "output"), [(6, 9), (15, 6)])
def test_a_group_alone_whose_extents_lie_badly_begins_anew(cls: Any, compaction: Any, prompt: int, output: int) -> None:
    """Its answers fit the pool to the end, but what one gained by growing, or left behind, the other lacks."""
    allocator: Any = Checked(Contiguous(40, 37, fit="first_fit", growth=3, compaction=compaction))
    scheduler = cls(allocator, on_demand, max_model_len=37, chunked_prefill=True)
    (leader,) = serve(scheduler, [Request(0, 0, prompt, output, n=2)]).finished
    assert [seq.num_tokens for seq in leader.members] == [prompt + output] * 2
    assert scheduler.allocator.memory().free == 40


def test_a_static_batch_takes_the_head_that_longest_prefix_brings_forward_whole() -> None:
    """C begins as A did, and overtakes B, whose prompt is shorter."""
    scheduler = Static(Radix(40, 20), on_demand, max_model_len=20, max_num_seqs=1, policy="longest_prefix")
    prompts = ([1, 2, 3, 4], [9], [1, 2, 5, 6, 7])
    requests = [Request(i, 0, len(prompt), 2, token_ids=prompt) for i, prompt in enumerate(prompts)]
    assert [seq.request.id for seq in serve(scheduler, requests).finished] == [0, 2, 1]


def test_a_promise_is_made_to_the_leader_of_a_group_only() -> None:
    """4 blocks promised to the leader, and one more for each of three answers whose first block is the prompt's."""
    for blocks, fits in ((7, True), (6, False)):
        scheduler = Continuous(Paged(blocks * 16, 64, 16), max_model_len, max_model_len=64)
        assert (scheduler.add(Request(0, 0, 16, 16, n=4)) is None) == fits
        assert not fits or len(finish(scheduler)) == 16
