"""The steady rate: neither ramp nor drain, whatever it is that keeps requests waiting."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.contiguous import Contiguous
from allocators.paged import Paged
from harness.runner.latency.fitted import FittedLatency
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import max_model_len, on_demand
from schedulers.static import Static
from tests.conformance.play import SECOND, Played, Steps, play

LINE = FittedLatency((26e6, 0.4e6, 0, 0, 0.1e6, 0))


def burst(count: int, prompt: int, output: int, scheduler: Any, **how: Any) -> Played:
    return play([Request(i, 0, prompt, output) for i in range(count)], scheduler, Steps(1.0), **how)


def paged(slots: int = 10_000, **limits: Any) -> Continuous:
    return Continuous(Paged(slots, 2048), on_demand, max_model_len=2048, **limits)


def test_places_are_what_is_short() -> None:
    """4 places, 10 requests of 5 tokens, all done after 15 s: the last two have the batch to themselves for 5 s."""
    summary = burst(10, 3, 5, paged(max_num_seqs=4)).summary
    assert summary["saturated_output_throughput"] is None
    assert summary["output_throughput"] == 50 / 15
    assert summary["steady_output_throughput"] == 4.0
    assert summary["steady_mean_batch_size"] == 4.0
    assert (summary["steady_s"], summary["steady_request_throughput"]) == (9, 8 / 9)  # from the second step on


def test_memory_is_what_is_short() -> None:
    """Three lanes: the same span as the saturated one, but for the step in which they are filled."""
    lanes = Continuous(Contiguous(30, 10), max_model_len, max_model_len=10)
    summary = burst(9, 2, 6, lanes).summary
    assert summary["saturated_output_throughput"] == summary["steady_output_throughput"] == 3.0
    assert summary["steady_s"] == summary["saturated_s"] - 1


def test_the_ramp_is_not_in_it() -> None:
    """A prompt of 50 tokens a step: a place is filled in each of 20 steps, then all are taken."""
    scheduler = paged(max_num_seqs=20, max_num_batched_tokens=70, chunked_prefill=True)
    summary = burst(60, 50, 40, scheduler).summary
    assert summary["steady_mean_batch_size"] > 19
    assert summary["mean_batch_size"] < 18
    assert summary["steady_output_throughput"] > 1.1 * summary["output_throughput"]


def test_the_token_budget_is_what_is_short() -> None:
    """A prompt of 50 tokens a step and 5 tokens each: 5 run whatever happens, though there is room for more."""
    summary = burst(40, 50, 5, paged(max_num_batched_tokens=70)).summary
    assert summary["saturated_output_throughput"] is None
    assert summary["steady_output_throughput"] == 5.0


def test_a_batch_that_nobody_may_join() -> None:
    static = Static(Paged(10_000, 2048), on_demand, max_model_len=2048, max_num_seqs=4)
    assert burst(12, 3, 5, static).summary["steady_output_throughput"] == 4.0


def test_who_keeps_up_has_none() -> None:
    never = {"steady_s": None, "steady_output_throughput": None, "steady_mean_batch_size": None}
    for played in (
        burst(20, 50, 10, paged(max_num_batched_tokens=200)),  # all are admitted before the first has ended
        burst(20, 50, 10, paged(max_num_batched_tokens=500), concurrency=8),  # a closed loop within the places
        play([Request(i, 40 * i * SECOND, 3, 9) for i in range(9)], paged(), Steps(1.0)),
    ):
        assert {key: played.summary[key] for key in never} == never


def test_ramp_and_drain_alone_are_not_steady() -> None:
    """Of 5 requests for 4 places one waits, and only four end while it does."""
    assert burst(5, 3, 5, paged(max_num_seqs=4)).summary["steady_s"] == 4
    assert (
        play([Request(i, 0, 3, 5 + i) for i in range(5)], paged(max_num_seqs=4), Steps(1.0)).summary["steady_s"] is None
    )


def test_a_closed_loop_of_more_than_the_places() -> None:
    assert burst(20, 3, 5, paged(max_num_seqs=4), concurrency=6).summary["steady_output_throughput"] == 4.0


def test_arrivals_over_time_beyond_what_is_served() -> None:
    """A request a second where four places serve one in 2.5 seconds: the drain after the last arrival is in it too,
    as long as somebody waits; the last batch is not."""
    requests = [Request(i, i * SECOND, 3, 10) for i in range(40)]
    summary = play(requests, paged(max_num_seqs=4), Steps(1.0)).summary
    assert summary["steady_output_throughput"] == pytest.approx(4.0, rel=0.02)
