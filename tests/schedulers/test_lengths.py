"""Who tells how long an answer will be, and what shortest-first makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from allocators.paged import Paged
from schedulers.continuous import Continuous
from schedulers.lengths import UNKNOWN, ByHistory, Noisy, predictor
from schedulers.request import Request
from schedulers.reservation import on_demand
from tests.conformance.scheduler import finish


def request(number: int, prompt: int, output: int, cap: int | None = None, session: str = "") -> Request:
    return Request(number, 0, prompt, output, cap, session=session)


def test_noise_is_lognormal_and_drawn_once_per_request_whatever_the_order() -> None:
    guesses = [Noisy(0.5, seed=3).expect(request(i, 10, 100_000)) for i in range(2000)]
    errors = np.log(np.array(guesses) / 100_000)
    assert (errors.mean(), errors.std()) == (pytest.approx(0, abs=0.03), pytest.approx(0.5, rel=0.05))
    again = Noisy(0.5, seed=3)
    assert [again.expect(request(i, 10, 100_000)) for i in reversed(range(2000))] == guesses[::-1]
    assert [Noisy(0.5, seed=4).expect(request(i, 10, 100_000)) for i in range(9)] != guesses[:9]


def test_no_noise_is_the_truth_and_nobody_passes_his_cap() -> None:
    assert [Noisy(0.0, 0).expect(request(i, 5, i + 1)) for i in range(9)] == list(range(1, 10))
    assert max(Noisy(2.0, 0).expect(request(i, 5, 50, 60)) for i in range(200)) == 60


def test_history_tells_the_mean_of_the_session_then_of_like_prompts_then_of_all() -> None:
    history = ByHistory()
    assert [history.expect(request(0, 5, 9, cap)) for cap in (None, 40)] == [UNKNOWN, 40]
    for number, (prompt, output, session) in enumerate([(5, 10, "a"), (7, 20, ""), (100, 90, "")]):
        history.observe(request(number, prompt, output, session=session))
    assert history.expect(request(9, 90, 1, session="a")) == 10
    assert history.expect(request(9, 4, 1)) == 15  # 4 ... 7 are alike
    assert history.expect(request(9, 1000, 1)) == 40
    assert history.expect(request(9, 1000, 1, cap=30)) == 30


@pytest.mark.parametrize("wrong", ["guess", "noisy", "noisy:", "noisy:-1", "noisy:many", "noisy:inf"])
def test_a_predictor_that_is_none_is_an_error_that_names_the_key(wrong: str) -> None:
    with pytest.raises(ValueError, match="length_predictor"):
        predictor(wrong, 0)


def test_shortest_first_goes_by_what_was_told() -> None:
    """One lane. Expected are 512 of each until 0 has ended with 3; then like prompts are told to be short."""
    scheduler = Continuous(Paged(400, 100), on_demand, max_model_len=100, max_num_seqs=1, policy="shortest_first",
                           length_predictor="history")  # fmt: skip
    for row in (request(0, 4, 3), request(1, 40, 20)):
        scheduler.add(row)
    order = []
    for _ in range(3):
        batch = scheduler.schedule(0)
        scheduler.complete(batch, None)
        order += batch.admitted
    scheduler.add(request(2, 5, 30))  # expected: 3, as the prompt of 4
    scheduler.add(request(3, 41, 2))  # expected: 3, as all
    order += [seq for batch in finish(scheduler) for seq in batch.admitted]
    assert [(seq.request.id, seq.expected) for seq in order] == [(0, 512), (2, 3), (3, 3), (1, 512)]
