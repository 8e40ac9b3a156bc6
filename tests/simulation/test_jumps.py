"""When steps are taken together, and that every built-in scheduler has it right then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator
from allocators.paged import Paged
from harness.runner.latency.roofline import Roofline
from schedulers.base import Scheduler
from schedulers.continuous import Continuous
from schedulers.guaranteed_no_evict import GuaranteedNoEvict
from schedulers.ideal import Ideal
from schedulers.max_utilization import MaxUtilization
from schedulers.past_future import PastFuture
from schedulers.request import Request
from schedulers.reservation import on_demand
from schedulers.static import Static
from schedulers.static_bucketed import StaticBucketed
from schedulers.vllm_v1 import VllmV1
from tests.conformance.effort import cases
from tests.conformance.jumps import LATENCIES, any_jump_is_its_steps, assert_jumps_are_steps
from tests.latency.models import TINY

MODELS = LATENCIES | {"roofline": lambda: Roofline("l4", TINY, step_overhead_us=0.1, sequence_overhead_us=0.01)}
PREDICTORS = st.fixed_dictionaries({"length_predictor": st.sampled_from(["oracle", "history", "noisy:0.5"])})


class Swapping(Continuous):
    def __init__(self, allocator: Allocator, *args: Any, **kwargs: Any) -> None:
        super().__init__(allocator, *args, preemption="swap" if allocator.host_capacity else "recompute", **kwargs)


SCHEDULERS = {
    "swapping": (Swapping, {}),
    "continuous": (Continuous, {}),
    "prompts first": (Continuous, {"prefill_first": True}),
    "static": (Static, {}),
    "static, waits": (Static, {"max_wait_s": 3e-6, "compute_finished": False}),
    "static, by prompt": (StaticBucketed, {"bucket_by": "prompt", "max_wait_s": 3e-6}),
    "static, by output": (StaticBucketed, {"bucket_by": "output"}),
    "no evict": (GuaranteedNoEvict, {}),
    "no evict, oracle": (GuaranteedNoEvict, {"promise": "exact"}),
    "max utilization": (MaxUtilization, {}),
    "max utilization, in order": (MaxUtilization, {"policy": "shortest_first"}),
    "past future": (PastFuture, {"length_predictor": "history"}),
    "past future, one": (PastFuture, {"length_predictor": "noisy:0.3", "reserved": 0.2}),
    "ideal": (Ideal, {}),
    "vllm v1": (VllmV1, {}),
    "vllm v1, in pieces": (VllmV1, {"long_prefill_token_threshold": 3, "scheduler_reserve_full_isl": False}),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_jump_is_its_steps(name: str) -> None:
    cls, more = SCHEDULERS[name]

    @settings(max_examples=cases(60), deadline=None, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        def make(*parts: Any, **limits: Any) -> Scheduler:
            return cls(*parts, **limits | more)

        any_jump_is_its_steps(data, make, PREDICTORS, models=MODELS)

    check()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_built_in_jumps(name: str) -> None:
    """Else the test above would say nothing of it: 3 requests of 40 tokens, of whose steps nearly all are repeated."""
    cls, more = SCHEDULERS[name]
    requests = [Request(i, 0, 5, 40) for i in range(3)]
    told = assert_jumps_are_steps(lambda _: cls(Paged(400, 60), on_demand, max_model_len=60, **more), requests)
    assert told["foretold"] >= 38


def test_what_is_expected_of_an_arrival_depends_on_who_finished_before_it_came() -> None:
    """1 and 2 come while 0 runs: nobody has finished, so their clients' caps of 40 and 35 say who is next."""
    requests = [Request(0, 0, 1, 30), Request(1, 55, 1, 20, 40), Request(2, 56, 1, 20, 35)]
    told = assert_jumps_are_steps(
        lambda _: Continuous(Paged(100, 60), on_demand, max_model_len=60, max_num_seqs=1, policy="shortest_first",
                             length_predictor="history"),
        requests, LATENCIES["constant"],
    )  # fmt: skip
    assert told["table"].set_index("id")["first_scheduled_s"].rank().tolist() == [1, 3, 2]


def test_a_group_that_computes_its_answers_again_gives_no_token_meanwhile() -> None:
    """Two answers of two tokens that were taken away: the first of each is computed again in a step of its own."""
    requests = [Request(0, 0, 1, 4), Request(1, 0, 1, 4, n=2)]
    told = assert_jumps_are_steps(
        lambda _: Continuous(Paged(10, 12, block_size=1), on_demand, max_model_len=12, watermark=0.0),
        requests, LATENCIES["constant"],
    )  # fmt: skip
    assert told["summary"]["preemptions"] == 1
