"""Latencies of a request, by hand: they count from its scheduled arrival, and what does not exist is empty."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from allocators.paged import Paged
from harness.metrics.summary import goodput
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand
from tests.conformance.play import SECOND, Played, Steps, play


def served(*requests: Request, steps: tuple[float, ...] = (1.0,), **limits: int) -> Played:
    scheduler = Continuous(Paged(64, 64), on_demand, max_model_len=64, chunked_prefill=True, **limits)
    return play(requests, scheduler, Steps(*steps))


def test_three_tokens_at_1_0_and_1_1_and_1_2_seconds() -> None:
    """The time to the first token is no gap between tokens."""
    played = served(Request(0, 0, 5, 3), steps=(1.0, 0.1))
    row = played.row()
    assert (row["first_token_s"], row["last_token_s"]) == (1.0, 1.2)
    assert (row["ttft_ms"], row["e2e_ms"]) == (1000, 1200)
    assert row["tpot_ms"] == pytest.approx(100)
    assert row["normalized_latency_s"] == pytest.approx(0.4)
    assert played.recorder.gaps.counts == {SECOND // 10: 2}


def test_latencies_count_from_the_arrival() -> None:
    """It arrives at 0.3 s in the middle of a step, is first scheduled at 1 s, and has its token at 2 s."""
    row = served(Request(0, 0, 5, 3), Request(1, 3 * SECOND // 10, 5, 2)).row(1)
    assert (row["arrival_s"], row["first_scheduled_s"], row["first_token_s"]) == (0.3, 1.0, 2.0)
    assert (row["queueing_ms"], row["ttft_ms"], row["e2e_ms"]) == (700, 1700, 2700)


def test_a_chunked_prompt_has_its_first_token_at_the_end_of_its_last_chunk() -> None:
    assert served(Request(0, 0, 5, 2), max_num_batched_tokens=2).row()["ttft_ms"] == 3000


def test_a_preempted_request_has_one_long_gap() -> None:
    """Three blocks: the second request is preempted in the second step and comes back when the first is over."""
    scheduler = Continuous(Paged(12, 12, block_size=4), on_demand, max_model_len=12, watermark=0.0)
    played = play([Request(0, 0, 4, 4), Request(1, 0, 4, 4)], scheduler, Steps(1.0))
    row = played.row(1)
    assert (row["preemptions"], row["recomputed_tokens"]) == (1, 4)
    assert (row["ttft_ms"], row["last_token_s"]) == (1000, 7.0)
    assert played.recorder.gaps.counts == {SECOND: 5, 4 * SECOND: 1}


def test_a_one_token_answer_has_no_tpot() -> None:
    row = served(Request(0, 0, 5, 1)).row()
    assert (row["tpot_ms"], row["ttft_ms"], row["e2e_ms"]) == (None, 1000, 1000)


def test_gaps_are_pooled_over_requests() -> None:
    played = served(Request(0, 0, 5, 3), Request(1, 0, 5, 2), steps=(1.0, 0.2, 0.4))
    assert played.recorder.gaps.counts == {SECOND // 5: 2, 2 * SECOND // 5: 1}


def test_percentiles_are_numpys() -> None:
    played = served(*(Request(i, i * SECOND // 7, 1 + i % 3, 1 + i % 5) for i in range(10)))
    times = played.table["e2e_ms"].to_numpy()
    assert played.summary["e2e_mean_ms"] == pytest.approx(times.mean())
    for p in (50, 90, 95, 99):
        assert played.summary[f"e2e_p{p}_ms"] == pytest.approx(np.percentile(times, p))


def test_the_sums_of_a_single_one_token_answer_are_strict_json() -> None:
    summary = served(Request(0, 0, 5, 1)).summary
    parsed = json.loads(json.dumps(summary, allow_nan=False))
    assert parsed["tpot_p50_ms"] is parsed["itl_mean_ms"] is parsed["saturated_kv_used_pct"] is None


def test_the_sums_of_nothing_served_are_strict_json() -> None:
    summary = served(Request(0, 0, 60, 30)).summary
    assert json.loads(json.dumps(summary, allow_nan=False))["output_throughput"] is None


def test_one_rejected_of_three_is_visible() -> None:
    played = served(Request(0, 0, 5, 2), Request(1, 0, 60, 30), Request(2, 0, 5, 2))
    assert [played.summary[key] for key in ("injected", "finished", "rejected", "unfinished")] == [3, 2, 1, 0]
    row = played.row(1)
    assert (row["status"], row["ttft_ms"], row["output_tokens"]) == ("rejected", None, None)
    assert "max_model_len" in str(row["reason"])


def test_throughputs_are_over_the_time_to_the_last_token() -> None:
    """Two requests, 5 + 6 prompt tokens, 2 + 4 output tokens, over after four steps of half a second."""
    summary = served(Request(0, 0, 5, 2), Request(1, 0, 6, 4), steps=(0.5,)).summary
    assert summary["duration_s"] == 2.0
    assert summary["request_throughput"] == 1.0
    assert summary["output_throughput"] == 3.0
    assert summary["total_token_throughput"] == 8.5


def test_mean_batch_size_is_weighted_by_time() -> None:
    """Two lanes for 3 s, then one lane for 1 s."""
    assert served(Request(0, 0, 5, 1), Request(1, 0, 6, 2), steps=(3.0, 1.0)).summary["mean_batch_size"] == 1.75


def test_an_idle_gap_is_not_busy() -> None:
    summary = served(Request(0, 0, 5, 1), Request(1, 3 * SECOND, 5, 1)).summary
    assert (summary["duration_s"], summary["busy_fraction"], summary["mean_batch_size"]) == (4.0, 0.5, 1.0)


def test_goodput_counts_what_met_every_limit() -> None:
    """Answers of 1, 2 and 3 tokens, all with their first token after a second, over after 1, 2 and 3 seconds."""
    table = served(*(Request(i, 0, 2, 1 + i) for i in range(3))).table
    assert goodput(table, {"ttft": 1000.0, "e2e": 2000.0}, 4.0) == 0.5
    assert goodput(table, {"tpot": 999.0}, 1.0) == 1.0
    assert goodput(table, {"ttft": 1000.0}, None) is None


def test_whole_numbers_stay_whole_beside_empty_cells() -> None:
    table = served(Request(0, 0, 5, 2), Request(1, 0, 60, 30)).table
    assert table["output_tokens"].tolist()[0] == 2
    assert table["output_tokens"].isna().tolist() == [False, True]
    assert pd.api.types.is_integer_dtype(table["output_tokens"])
