"""States of recurrent layers follow their sequences: through steps, forks, swaps and lost memory."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.contiguous import Contiguous
from allocators.paged import Paged
from harness.errors import HarnessError
from harness.layout import layout_of
from harness.runner.families import families
from harness.runner.probe import probe
from harness.runner.states import StateRows
from schedulers.continuous import Continuous
from schedulers.reservation import RESERVATIONS
from tests.runner.serving import relative, requests, serve
from tests.runner.test_logits_check import built

LONGEST = 64
PLACES = {
    "recompute": lambda: Paged(96, LONGEST, block_size=4),
    "swap": lambda: Paged(96, LONGEST, block_size=4, host_slots=200),
    "extents": lambda: Contiguous(400, LONGEST, fit="first_fit"),
}


def scheduler(place: str, budget: int = 19) -> Any:
    def make(allocator: Any) -> Continuous:
        reservation = RESERVATIONS["exact" if place == "extents" else "on_demand"]
        preemption = "swap" if place == "swap" else "recompute"
        return Continuous(allocator, reservation, max_model_len=LONGEST, watermark=0.0, max_num_batched_tokens=budget,
                          chunked_prefill=True, preemption=preemption)  # fmt: skip

    return make


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("lfm2", [(64, 2)]),
        ("mamba", [(128, 3), (128, 16)]),
        ("mamba2", [(192, 3), (8, 16, 16)]),
        ("qwen3_next", [(128, 3), (4, 16, 16)]),
    ],
)
def test_the_states_of_a_layer_are_found(name: str, states: list[tuple[int, ...]]) -> None:
    found = probe(built(families()[name]))
    assert [state.shape for state in found.calls.mixers[0].states] == states


@pytest.mark.parametrize("name", ["lfm2", "mamba2", "falcon_h1", "zamba", "jamba", "granite4_h", "nemotron_h", "bamba"])
def test_a_real_run_and_its_simulation_keep_the_same(name: str) -> None:
    model = built(families()[name])
    real, simulated = probe(model).layout(4), layout_of(model.config, 4)
    assert (real.token_bytes, real.state_bytes) == (simulated.token_bytes, simulated.state_bytes)
    assert [(g.kind, g.layers) for g in real.groups] == [(g.kind, g.layers) for g in simulated.groups]


@pytest.mark.parametrize(("name", "carries"), [("mamba", False), ("zamba", False), ("mamba2", True), ("lfm2", True)])
def test_a_scan_that_starts_from_nothing_is_noticed(name: str, carries: bool) -> None:
    assert {mixer.carries for mixer in probe(built(families()[name])).calls.mixers} == {carries}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "name", ["lfm2", *[pytest.param(name, marks=pytest.mark.slow) for name in ("jamba", "falcon_h1", "qwen3_next")]]
)
def test_states_follow_their_sequences(name: str, place: str) -> None:
    served = serve(name, PLACES[place](), scheduler(place))
    assert place == "extents" or any(answer.preemptions for answer in served.values())
    assert relative(name, served) < 1e-3


def test_a_state_that_is_not_brought_back_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.runner.states.StatePool.put", lambda self, row, held: None)
    served = serve("lfm2", PLACES["swap"](), scheduler("swap"))
    assert not relative("lfm2", served) < 1e-3


def test_a_fork_that_takes_nothing_over_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = shared()
    for request in asked:
        request.n = 3
    right = serve("lfm2", Paged(400, LONGEST, block_size=4), scheduler("recompute"), asked)
    monkeypatch.setattr("harness.runner.states.StatePool.copy", lambda self, sources, targets: None)
    wrong = serve("lfm2", Paged(400, LONGEST, block_size=4), scheduler("recompute"), asked)
    assert right[0].answers[0] == wrong[0].answers[0]
    assert right[0].answers[1:] != wrong[0].answers[1:]


def test_a_prefix_whose_state_nobody_has_is_refused() -> None:
    with pytest.raises(HarnessError, match="goes on after 8 tokens, and nobody has the state"):
        serve("lfm2", Paged(400, LONGEST, block_size=4, enable_prefix_caching=True), scheduler("recompute"), shared())


def shared() -> list[Any]:
    first = requests(3)
    for request in first:
        request.token_ids = first[0].token_ids[:9]
        request.prompt_len = 9
    return first


def test_rows_are_given_back() -> None:
    rows: list[StateRows] = []

    def tamper(runner: Any, batch: Any) -> None:
        rows[:] = [runner._states]

    serve("lfm2", PLACES["recompute"](), scheduler("recompute"), tamper=tamper)
    assert rows[0].pool.rows <= 16
    assert len(rows[0]._rows) <= 2
