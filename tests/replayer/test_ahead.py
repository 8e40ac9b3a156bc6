"""One step ahead: when tokens, arrivals and freed blocks are seen, by hand, and that nothing is lost."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from allocators.checker import Checked
from allocators.paged import Paged
from harness.errors import HarnessError
from harness.metrics.recorder import Recorder
from harness.replay.engine import Engine
from harness.runner.simulated import SimulatedModelRunner
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request
from schedulers.reservation import on_demand
from schedulers.vllm_v1 import VllmV1
from tests.conformance.play import SECOND, Played, Steps, play


def scheduler(slots: int = 640, **more: Any) -> VllmV1:
    return VllmV1(Checked(Paged(slots, 64, block_size=4)), on_demand, max_model_len=64, **more)


def ahead(requests: list[Request], policy: VllmV1, latency: Any = None, **more: Any) -> Played:
    return play(requests, policy, latency or Steps(1.0), depth=2, **more)


def at(seconds: float, request: int = 0, prompt: int = 4, output: int = 3) -> Request:
    return Request(request, round(seconds * SECOND), prompt, output)


def times(played: Played, request: int = 0) -> tuple[float, ...]:
    row = played.row(request)
    delivered = row["arrival_s"] + row["lateness_s"]
    return delivered, row["first_scheduled_s"], row["first_token_s"], row["last_token_s"]


def test_a_lone_request_runs_as_ever() -> None:
    """Steps of 1 s, one after the other: nothing to be ahead of."""
    played = ahead([at(3)], scheduler())
    assert times(played) == (3, 3, 4, 6)
    assert times(play([at(3)], scheduler(), Steps(1.0))) == (3, 3, 4, 6)
    assert played.summary["steps"] == 4  # with the idle time before it


def test_an_arrival_is_scheduled_behind_the_step_that_waits() -> None:
    """B arrives during step 1. When step 1 ends, step 2 is handed over already, so B is part of step 3."""
    both = [at(0, output=9), at(0.5, 1)]
    assert times(ahead(both, scheduler()), 1)[:3] == (1, 1, 3)  # seen and scheduled at 1 s, computed from 2 to 3 s
    assert times(play(both, scheduler(), Steps(1.0)), 1)[:3] == (1, 1, 2)


def test_what_a_finished_request_held_is_free_one_step_later() -> None:
    """Room for two. A ends with step 2; C is computed in step 4 when B goes on, in step 3 without being ahead."""
    requests = [at(0, output=2), at(0, 1, output=9), at(0, 2, output=2)]
    assert times(ahead(requests, scheduler(max_num_seqs=2)), 2)[1:3] == (2, 4)
    assert times(play(requests, scheduler(max_num_seqs=2), Steps(1.0)), 2)[1:3] == (2, 3)


def test_nobody_waits_for_a_step_that_is_not_there() -> None:
    """A ends with step 2 and there is no step 3: B starts at once."""
    assert times(ahead([at(0, output=2), at(0, 1, output=2)], scheduler(max_num_seqs=1)), 1)[1:3] == (2, 3)


def test_no_step_is_spent_on_a_request_whose_last_token_is_under_way() -> None:
    batches: list[list[str]] = []
    ahead([at(0, output=2), at(0, 1, output=4)], scheduler(), before=lambda b: batches.append([s.name for s in b.seqs]))
    both, alone = ["request 0", "request 1"], ["request 1"]
    assert batches == [both, both, alone, alone]


def test_steps_fill_the_time_and_latencies_are_gaps() -> None:
    played = ahead([at(0), at(0.5, 1), at(20, 2)], scheduler())
    summary = played.summary
    assert summary["duration_s"] == pytest.approx(23)
    assert summary["busy_fraction"] * summary["duration_s"] == pytest.approx(8)
    assert summary["itl_mean_ms"] == 1000


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_request_gets_its_tokens_even_when_preempted(seed: int, caching: bool) -> None:
    """A pool that holds a third of what arrives; a victim may have its last token under way."""
    draw = random.Random(seed)
    requests = [at(draw.uniform(0, 20), i, draw.randint(1, 20), draw.randint(1, 20)) for i in range(30)]
    requests.sort(key=lambda request: request.arrival_ns)
    for i, request in enumerate(requests):
        request.id = i
    allocator = Checked(Paged(60, 64, block_size=4, enable_prefix_caching=caching, freed_blocks="back"))
    policy = VllmV1(allocator, on_demand, max_model_len=64, max_num_seqs=8, max_num_batched_tokens=24)
    played = ahead(requests, policy, Steps(*(draw.uniform(0.1, 1) for _ in range(500))))
    assert (played.table["status"] == "finished").all()
    assert played.table["output_tokens"].tolist() == [request.output_len for request in requests]
    assert not policy.waiting
    assert not policy.running
    assert allocator.memory().used == 0


def test_that_pool_preempts_somebody_whose_last_token_is_under_way() -> None:
    """Else the test above would say nothing of it: the batch before holds its last token, the one after preempts it."""
    hit = 0
    for seed in range(12):
        draw, last = random.Random(seed), set[str]()

        def watch(batch: Batch, last: set[str] = last) -> None:
            nonlocal hit
            hit += sum(seq.name in last for seq in batch.preempted)
            last.clear()
            last |= {seq.name for seq in batch.seqs if seq.stored + 1 >= seq.end_tokens}

        requests = [at(0, i, draw.randint(1, 20), draw.randint(1, 20)) for i in range(30)]
        allocator = Paged(60, 64, block_size=4)
        ahead(requests, VllmV1(allocator, on_demand, max_model_len=64, max_num_seqs=8), before=watch)
    assert hit


def test_the_predictor_of_lengths_learns_from_every_answer() -> None:
    seen: list[int] = []
    policy = scheduler()
    policy.lengths = SimpleNamespace(expect=lambda request: 1, observe=lambda request: seen.append(request.id))  # type: ignore[assignment]
    ahead([at(0, output=4), at(0, 1, output=2)], policy)
    assert seen == [1, 0]


def test_a_closed_loop_goes_on() -> None:
    played = ahead([at(0, i) for i in range(6)], scheduler(), concurrency=2)
    assert (played.table["status"] == "finished").all()
    assert played.table["arrival_s"].tolist() == [0, 0, 3, 3, 6, 6]


def test_what_can_never_be_served_is_refused() -> None:
    played = ahead([at(0, prompt=60, output=20), at(0, 1)], scheduler(slots=16))
    assert played.table["status"].tolist() == ["rejected", "finished"]


def test_a_scheduler_that_needs_its_tokens_is_refused() -> None:
    policy = Continuous(Paged(64, 64), on_demand, max_model_len=64)
    with pytest.raises(HarnessError, match="Continuous can't schedule one step ahead"):
        Engine(policy, SimulatedModelRunner(Steps(1.0)), Recorder(), depth=2)


def test_it_is_switched_on_by_the_configuration(tmp_path: Any) -> None:
    import harness.__main__  # noqa: F401  (its resolvers)
    from harness.job import run_job
    from harness.tasks.claims import composed

    small = ["device=simulated", "workload.num_requests=20", "workload.rate=5", "simulation.async_scheduling=true"]
    row = run_job(composed([*small, "scheduler=vllm_v1"]), tmp_path / "a")
    sync = run_job(composed([*small[:-1], "scheduler=vllm_v1"]), tmp_path / "b")
    assert (row["status"], row["finished"]) == ("finished", 20)
    assert row["ttft_mean_ms"] > sync["ttft_mean_ms"]
    assert "can't schedule one step ahead" in run_job(composed(small), tmp_path / "c")["error"]
    real = run_job(composed([*small[1:], "device=cpu", "scheduler=vllm_v1"]), tmp_path / "d")
    assert "needs a simulated device" in real["error"]
