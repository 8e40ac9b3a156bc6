"""Results that are known without a run, and relations between runs that must hold whatever the results."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from allocators.base import Allocator, Books
from allocators.buddy import Buddy
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from harness.runner.latency.fitted import FittedLatency
from harness.workload.histograms import HISTOGRAMS
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import RESERVATIONS, Reservation, exact, max_model_len, on_demand, pow2
from schedulers.static import Static
from tests.conformance.play import PAPER, Played, play

SLOTS, LONGEST = 15_728, 2048  # OPT-13B on a 40 GB A100
FIG_2 = {  # % of KV memory: token states, reservation, internal fragmentation, external fragmentation and others
    "Orca (Max)": (20.4, 13.3, 57.3, 8.9),
    "Orca (Pow2)": (26.8, 17.9, 13.6, 41.6),
    "Orca (Oracle)": (38.2, 25.2, 0.0, 36.6),
    "vLLM": (96.26, 1.05, 1.04, 1.65),
}
FIG_13 = {"Orca (Max)": 7.00, "Orca (Pow2)": 9.81, "Orca (Oracle)": 13.62}  # average batched requests


def sharegpt(count: int, seed: int = 0) -> list[Request]:
    """All at time 0, lengths of Fig. 11, those dropped that the model does not take."""
    random = np.random.default_rng(seed)
    prompts = HISTOGRAMS["sharegpt_input"].sample(random, 2 * count)
    outputs = HISTOGRAMS["sharegpt_output"].sample(random, 2 * count)
    fits = prompts + outputs <= LONGEST
    pairs = zip(prompts[fits].tolist(), outputs[fits].tolist(), strict=True)
    return [Request(i, 0, prompt, output) for i, (prompt, output) in enumerate(pairs)][:count]


def run(requests: list[Request], allocator: Allocator, reservation: Reservation, latency: FittedLatency = PAPER,
        scheduler: type[Continuous | Static] = Continuous) -> Played:  # fmt: skip
    return play(requests, scheduler(allocator, reservation, max_model_len=allocator.max_model_len), latency)


@pytest.fixture(scope="module")
def fig_2() -> dict[str, Played]:
    """The four systems of the paper's Fig. 2 on 512 requests."""
    requests = sharegpt(512)
    return {
        "Orca (Max)": run(requests, Buddy(SLOTS, LONGEST), max_model_len),
        "Orca (Pow2)": run(requests, Buddy(SLOTS, LONGEST), pow2),
        "Orca (Oracle)": run(requests, Buddy(SLOTS, LONGEST), exact),
        "vLLM": run(requests, Paged(SLOTS, LONGEST), on_demand),
    }


def buckets(played: Played) -> list[float]:
    """The paper's four buckets: a chunk's rounding and whatever is free are external."""
    share = {key: played.summary[f"saturated_kv_{key}_pct"] for key in Books._fields}
    external = share["rounding"] + share["fragmented"] + share["short"] + share["free"]
    return [share["used"], share["reserved"], share["over_reserved"], external]


@pytest.mark.parametrize("system", FIG_2)
def test_kv_memory_is_within_4_points_of_figure_2(system: str, fig_2: dict[str, Played]) -> None:
    assert buckets(fig_2[system]) == pytest.approx(FIG_2[system], abs=4)


@pytest.mark.parametrize("system", FIG_13)
def test_orcas_batches_are_within_5_percent_of_figure_13(system: str, fig_2: dict[str, Played]) -> None:
    assert fig_2[system].summary["saturated_mean_batch_size"] == pytest.approx(FIG_13[system], rel=0.05)


def test_paging_uses_almost_the_whole_pool(fig_2: dict[str, Played]) -> None:
    assert fig_2["vLLM"].summary["saturated_kv_used_pct"] >= 95.5


def test_reserving_the_longest_length_runs_exactly_seven_requests(fig_2: dict[str, Played]) -> None:
    """floor(15,728 / 2,048) = 7, and 1,392 slots are of no use."""
    summary = fig_2["Orca (Max)"].summary
    assert summary["saturated_mean_batch_size"] == pytest.approx(7)
    assert summary["saturated_kv_short_pct"] == pytest.approx(100 * 1392 / 15728)
    assert summary["saturated_kv_rounding_pct"] == 0


def test_chunks_of_the_longest_length_are_as_good_as_lanes(fig_2: dict[str, Played]) -> None:
    lanes = run(sharegpt(512), Contiguous(SLOTS, LONGEST), max_model_len)
    pd.testing.assert_frame_equal(fig_2["Orca (Max)"].table, lanes.table)


def test_mean_lengths_of_a_saturated_queue_follow_from_the_moments(fig_2: dict[str, Played]) -> None:
    """Long answers stay longer: final length = E[P] + E[O²] / E[O], current length = E[P] + E[O²] / 2 E[O]."""
    requests = sharegpt(512)
    prompt, output = (np.array([getattr(r, name) for r in requests]) for name in ("prompt_len", "output_len"))
    residence = (output**2).mean() / output.mean()
    summary = fig_2["Orca (Oracle)"].summary
    slots = SLOTS / 100 / summary["saturated_mean_batch_size"]
    current = slots * summary["saturated_kv_used_pct"]
    final = current + slots * summary["saturated_kv_reserved_pct"]
    assert final == pytest.approx(prompt.mean() + residence, rel=0.08)
    assert current == pytest.approx(prompt.mean() + residence / 2, rel=0.08)


SYSTEMS = {
    "static, lanes": (Static, lambda slots: Contiguous(slots, LONGEST), max_model_len),
    "static, paged": (Static, lambda slots: Paged(slots, LONGEST), on_demand),
    "lanes": (Continuous, lambda slots: Contiguous(slots, LONGEST), max_model_len),
    "best fit, pow2": (Continuous, lambda slots: Contiguous(slots, LONGEST, fit="best_fit"), pow2),
    "buddy, exact": (Continuous, lambda slots: Buddy(slots, LONGEST), exact),
    "paged": (Continuous, lambda slots: Paged(slots, LONGEST), on_demand),
    "paged, max tokens": (Continuous, lambda slots: Paged(slots, LONGEST), RESERVATIONS["max_tokens"]),
}
systems = pytest.mark.parametrize("system", SYSTEMS)


def run_system(system: str, requests: list[Request], latency: FittedLatency = PAPER, slots: int = SLOTS) -> Played:
    scheduler, allocator, reservation = SYSTEMS[system]
    return run(requests, allocator(slots), reservation, latency, scheduler)


def poisson(count: int, rate: float, seed: int = 0) -> list[Request]:
    requests = sharegpt(count, seed)
    arrivals = np.random.default_rng(seed).exponential(1e9 / rate, count).cumsum().astype(int).tolist()
    return [Request(r.id, at, r.prompt_len, r.output_len) for r, at in zip(requests, arrivals, strict=True)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("system", [name for name in SYSTEMS if "static" not in name])
def test_twice_the_pool_never_lowers_throughput(system: str, seed: int) -> None:
    """For continuous batching and a burst; a static batch may get worse company in a larger pool."""
    requests = sharegpt(64, seed)
    small, large = (run_system(system, requests, slots=slots).summary for slots in (SLOTS // 2, SLOTS))
    assert large["output_throughput"] >= small["output_throughput"]


@systems
def test_arrivals_and_step_times_k_times_as_long_make_all_latencies_k_times_as_long(system: str) -> None:
    k, requests = 3, poisson(40, rate=1.0)
    slow = [Request(r.id, k * r.arrival_ns, r.prompt_len, r.output_len) for r in requests]
    table = run_system(system, requests).table
    scaled = run_system(system, slow, FittedLatency(tuple(k * c for c in PAPER.coefficients))).table
    times = [name for name in table if name.endswith(("_s", "_ms"))]
    pd.testing.assert_frame_equal(scaled[times], k * table[times], rtol=1e-12)
    pd.testing.assert_frame_equal(scaled.drop(columns=times), table.drop(columns=times))


@systems
def test_other_ids_change_nothing_but_ids(system: str) -> None:
    requests = poisson(40, rate=1.0)
    names = np.random.default_rng(1).permutation(len(requests)).tolist()
    renamed = [Request(name, r.arrival_ns, r.prompt_len, r.output_len) for name, r in zip(names, requests, strict=True)]
    table = run_system(system, requests).table.drop(columns="id")
    other = run_system(system, renamed).table.set_index("id").loc[names].reset_index(drop=True)
    pd.testing.assert_frame_equal(other, table)


@systems
def test_the_same_seed_gives_the_same_table_to_the_byte(system: str) -> None:
    first, second = (run_system(system, poisson(40, rate=1.0)).table.to_csv() for _ in range(2))
    assert first == second


@systems
def test_every_token_is_produced_once(system: str) -> None:
    requests = poisson(40, rate=1.0)
    played = run_system(system, requests)
    assert played.recorder.steps.whole.sum("produced") == sum(r.output_len for r in requests)
    gaps = sum(played.recorder.gaps.counts.values())
    assert gaps == sum(r.output_len - 1 for r in requests)
