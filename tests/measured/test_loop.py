"""The closed loop makes the scheduler's own decisions, to the nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import HarnessError
from harness.measured.exact import serve_exactly
from harness.measured.loop import CHUNKED, PROMPTS_FIRST, WHOLE, Loop, serve
from harness.operators.compose import compose
from harness.operators.costs import Costs, drafting, step_ns
from harness.operators.folder import Tables
from harness.operators.machines import Machine
from harness.operators.model import Model, Parallel, Precision
from tests.measured.made_up import CONFIG, write_tables


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Costs:
    folder = write_tables(tmp_path_factory.mktemp("tables"), ("vllm",))
    machine = Machine(host_ms=0.3, eager_kernel_us=0.1)
    return compose(Model.of(CONFIG), Tables(folder, "made_up", "vllm"), Parallel(), Precision(), machine)


def lengths(isl: int, osl: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    prompts, outputs = (rng.integers(int(0.8 * most), most + 1, count) for most in (isl, osl))
    outputs[3] = 1
    return prompts, outputs


@pytest.mark.parametrize(("kind", "clients", "isl", "budget", "ahead", "client"), [
    (CHUNKED, 8, 1024, 8192, 2, 0.0), (WHOLE, 8, 1024, 4096, 2, 5e6), (CHUNKED, 3, 2000, 700, 2, 9e7),
    (CHUNKED, 1, 30, 64, 2, 1e6), pytest.param(CHUNKED, 8, 1024, 8192, 1, 5e6, marks=pytest.mark.slow),
    pytest.param(CHUNKED, 16, 3000, 2048, 2, 3e6, marks=pytest.mark.slow),
])  # fmt: skip
def test_it_is_the_schedulers_own(costs: Costs, kind: int, clients: int, isl: int, budget: int, ahead: int,
                                  client: float) -> None:  # fmt: skip
    loop = Loop(kind, budget, clients, ahead, client=client, tokenize=client / 2048, clients=clients)
    prompts, outputs = lengths(isl, 40, 6 * clients)
    (*quick,) = serve(loop, costs, prompts, outputs)
    *exact, preemptions = serve_exactly(loop, costs, prompts, outputs)
    for ours, theirs in zip(quick, exact, strict=True):
        assert np.abs(ours - theirs).max() < 1e-3
    assert preemptions == 0


def test_a_small_pool_preempts_in_the_scheduler(costs: Costs) -> None:
    prompts, outputs = lengths(200, 200, 24)
    loop = Loop(CHUNKED, 2048, 8, 2, blocks=100, block=16, clients=8)
    assert serve_exactly(loop, costs, prompts, outputs)[3] > 0
    with pytest.raises(HarnessError, match="batch wait"):
        serve_exactly(loop._replace(wait_steps=3), costs, prompts, outputs)


def test_a_promise_in_full_holds_newcomers_back(costs: Costs) -> None:
    prompts, outputs = np.full(8, 160), np.full(8, 32)
    sent, first, _ = serve(Loop(WHOLE, 4096, 8, 1, blocks=24, block=16, clients=8), costs, prompts, outputs)
    assert (first - sent)[:2].max() < (first - sent)[2:].min()  # two fit at a time


def test_prompts_come_first_and_stop_decodes(costs: Costs) -> None:
    prompts, outputs = np.array([64, 512, 512]), np.array([50, 2, 2])
    mixed, first = (
        serve(Loop(kind, 512, 8, 1, clients=3), costs, prompts, outputs) for kind in (CHUNKED, PROMPTS_FIRST)
    )
    alone = [step_ns(costs, 0, 0.0, n, t, t, p) for n, t, p in ((2, 512, 64**2 / 2 + 448**2 / 2),)]
    assert mixed[1][0] == first[1][0] == pytest.approx(round(alone[0]))
    assert first[2][0] > 0
    assert len(set(first[1])) == 3


def test_a_lone_arrival_waits_for_the_batch(costs: Costs) -> None:
    prompts, outputs = np.array([64, 64, 64]), np.array([200, 20, 20])
    loop = Loop(WHOLE, 4096, 8, 1, clients=2)
    _sent, soon, _ = serve(loop, costs, prompts, outputs)
    _, late, _ = serve(loop._replace(wait_steps=10, wait_tokens=3000.0), costs, prompts, outputs)
    step = step_ns(costs, 1, 90.0, 0, 0, 0, 0.0)
    assert late[2] - soon[2] == pytest.approx(10 * step, rel=0.05)


def test_arrivals_are_looked_for_now_and_then(costs: Costs) -> None:
    prompts, outputs = np.array([64, 64, 64]), np.array([200, 20, 20])
    loop = Loop(PROMPTS_FIRST, 4096, 8, 1, clients=2)
    soon, late = (serve(loop._replace(poll_steps=polls), costs, prompts, outputs)[1][2] for polls in (0, 30))
    assert late > soon + 5 * step_ns(costs, 1, 90.0, 0, 0, 0, 0.0)


def test_prompts_are_tokenized_one_after_the_other(costs: Costs) -> None:
    """A second of it for each of two at once, then for the third when the first is over."""
    prompts, outputs = np.full(3, 1000), np.array([2, 50, 2])
    sent, first, last = serve(Loop(CHUNKED, 2048, 8, 1, tokenize=1e6, clients=2), costs, prompts, outputs)
    alone = step_ns(costs, 0, 0.0, 1, 1000, 1000, 1000**2 / 2)
    assert (first - sent)[:2] == pytest.approx(1e9 * np.array([1, 2]) + alone, rel=1e-3)
    assert sent[2] == last[0]
    assert first[2] == pytest.approx(3e9 + alone, rel=1e-2)  # begun when the second is done


def test_prompts_wait_until_every_engine_has_some(costs: Costs) -> None:
    """Two engines decode; the next prompt waits ten steps for one on the other, which never comes."""
    prompts, outputs = np.full(3, 64), np.array([200, 20, 20])
    loop = Loop(WHOLE, 4096, 8, 1, engines=2, clients=2)
    soon, late = (serve(loop._replace(balance_steps=steps), costs, prompts, outputs)[1][2] for steps in (0, 11))
    assert late == soon  # one engine has no decodes left: nothing to wait for
    prompts, outputs = np.full(5, 64), np.array([200, 200, 20, 20, 20])
    loop = loop._replace(clients=4)
    soon, late = (serve(loop._replace(balance_steps=steps), costs, prompts, outputs)[1][4] for steps in (0, 11))
    assert late - soon == pytest.approx(10 * step_ns(costs, 1, 90.0, 0, 0, 0, 0.0), rel=0.2)


def test_drafts_are_verified_together(costs: Costs) -> None:
    """Three drafts: four tokens of a sequence in a step, as of four; a quarter of the steps if all are right."""
    drafts = drafting(costs, 3, 8)
    one, four = step_ns(costs, 4, 4 * 90.0, 0, 0, 0, 0.0), step_ns(drafts, 1, 90.0, 0, 0, 0, 0.0)
    apart = 3 * (costs.sequences[1] + costs.decode_tokens[1] / 8)
    lanes = costs.lanes[4] - costs.lanes[1] * (1 + 3 / 8)
    assert one + apart - lanes.max() <= four <= one + apart - lanes.min()
    assert drafting(costs, 0, 8) is costs
    prompts, outputs = np.full(4, 64), np.full(4, 41)
    plain, sooner = (serve(Loop(WHOLE, 4096, 8, 1, clients=4, grows=grows), costs, prompts, steps)
                     for grows, steps in ((1.0, outputs), (4.0, np.full(4, 11))))  # fmt: skip
    assert (sooner[1] == plain[1]).all()
    assert (sooner[2] - sooner[1])[0] / (plain[2] - plain[1])[0] == pytest.approx(0.25, rel=0.01)


def test_engines_in_lockstep_share_the_clients_and_each_step(costs: Costs) -> None:
    prompts, outputs = lengths(256, 30, 40)
    one = serve(Loop(CHUNKED, 2048, 8, 2, clients=4), costs, prompts, outputs)
    two = serve(Loop(CHUNKED, 2048, 8, 2, engines=2, clients=8), costs, prompts, outputs)
    assert (two[2] > 0).all()
    assert two[2].max() < one[2].max()
