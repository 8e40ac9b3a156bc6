"""Sarathi-Serve's stall-free batches: continuous batching with prompts in pieces and a small token budget."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.paged import Paged
from harness.job.build import build_scheduler
from harness.tasks.claims import composed
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand
from tests.conformance.effort import cases
from tests.conformance.scheduler import STEP_NS


def sarathi(slots: int, **limits: int) -> Continuous:
    """As `scheduler=sarathi` configures it."""
    keys = [f"scheduler.{key}={value}" for key, value in limits.items()]
    scheduler = build_scheduler(
        composed(["scheduler=sarathi", "allocator.block_size=4", "max_model_len=100", *keys]), slots
    )
    assert isinstance(scheduler, Continuous)
    return scheduler


def test_a_step_is_decodes_then_the_prompt_that_was_begun_then_new_ones() -> None:
    """Budget 8: two decodes leave 6 tokens, of which the rest of a begun prompt takes 2 and a new one the last 4."""
    scheduler = sarathi(400, max_num_batched_tokens=8)
    told = []
    for arrived in ([(3, 9), (3, 9)], [(8, 9)], [(20, 9)], []):
        for prompt, output in arrived:
            number = len(scheduler.running) + len(scheduler.waiting)
            assert scheduler.add(Request(number, 0, prompt, output)) is None
        batch = scheduler.schedule(0)
        told.append({seq.request.id: count for seq, count in zip(batch.seqs, batch.counts, strict=True)})
        scheduler.complete(batch, None)
    assert told == [{0: 3, 1: 3}, {0: 1, 1: 1, 2: 6}, {0: 1, 1: 1, 2: 2, 3: 4}, {0: 1, 1: 1, 2: 1, 3: 5}]


@settings(max_examples=cases(150), deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 40), st.sampled_from([0, 0, 30, 90])), min_size=1, max_size=14
    ),
    st.sampled_from([96, 200, 1000]),
    st.integers(8, 40),
)
def test_no_decode_ever_waits_for_a_prompt(lengths: list[tuple[int, int, int]], slots: int, budget: int) -> None:
    """With no more lanes than tokens in a step, whoever runs and has a token due gets it, or is preempted."""
    scheduler = Continuous(Paged(slots, 100, 4), on_demand, max_model_len=100, max_num_seqs=8,
                           max_num_batched_tokens=budget, chunked_prefill=True)  # fmt: skip
    pending, now = [], 0
    for number, (prompt, output, gap) in enumerate(lengths):
        now += gap
        pending.append(Request(number, now, prompt, output))
    now = 0
    while pending or scheduler.waiting or scheduler.running:
        while pending and pending[0].arrival_ns <= now:
            scheduler.add(pending.pop(0))
        due = [seq for seq in scheduler.running if seq.num_tokens - seq.stored == 1]
        batch = scheduler.schedule(now)
        assert all(seq in batch.seqs or seq in batch.preempted for seq in due)
        assert batch.num_tokens <= budget
        begun = [seq for seq in scheduler.running if seq.stored < seq.num_tokens]
        assert begun in ([], scheduler.running[-1:])  # one prompt at most is begun, and it is the last
        scheduler.complete(batch, None)
        now += STEP_NS


def test_whole_prompts_in_the_same_steps_would_stall_decodes_where_prompts_go_first() -> None:
    """The same load with prompts first: a decode waits, so the test above can fail."""
    scheduler = sarathi(400, max_num_batched_tokens=8)
    scheduler.prefill_first = True
    scheduler.add(Request(0, 0, 3, 9))
    scheduler.complete(scheduler.schedule(0), None)
    scheduler.add(Request(1, 0, 20, 9))
    assert [seq.request.id for seq in scheduler.schedule(0).seqs] == [1]
