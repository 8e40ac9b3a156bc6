"""How many slots each reservation promises, and what the books call the true end of a sequence."""

from __future__ import annotations

import pytest

from allocators.contiguous import Contiguous
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import RESERVATIONS, exact, max_model_len, max_tokens, on_demand, pow2


def request(prompt: int, output: int, cap: int | None = None) -> Request:
    return Request(0, 0, prompt, output, max_tokens=cap)


def test_on_demand_promises_nothing() -> None:
    assert on_demand(request(10, 20), 2048) == 0


def test_exact_promises_what_is_stored_at_the_end() -> None:
    """The last token is never stored."""
    assert exact(request(10, 20), 2048) == 29


@pytest.mark.parametrize(("output", "rounded"), [(1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64)])
def test_pow2_rounds_the_output_up_to_a_power_of_two(output: int, rounded: int) -> None:
    assert pow2(request(10, output), 2048) == 10 + rounded - 1


def test_pow2_promises_no_more_than_the_model_takes() -> None:
    assert pow2(request(10, 25), 40) == 39


def test_max_tokens_promises_what_the_client_declared() -> None:
    assert max_tokens(request(10, 20, cap=50), 2048) == 59


def test_max_tokens_promises_no_more_than_the_model_takes() -> None:
    assert max_tokens(request(10, 20, cap=50), 40) == 39


def test_max_tokens_of_a_client_that_declares_nothing_is_all_the_model_takes() -> None:
    assert max_tokens(request(10, 20), 2048) == 2047


def test_max_model_len_promises_all_of_it() -> None:
    assert max_model_len(request(10, 20), 2048) == 2048


def test_the_clients_cap_cuts_the_output() -> None:
    assert exact(request(10, 20, cap=15), 2048) == 24


@pytest.mark.parametrize("name", sorted(set(RESERVATIONS) - {"on_demand"}))
@pytest.mark.parametrize("output", [1, 2, 25, 90])
@pytest.mark.parametrize("cap", [None, 1, 30, 500])
def test_every_promise_covers_the_true_end(name: str, output: int, cap: int | None) -> None:
    asked = request(10, output, cap)
    assert exact(asked, 100) <= RESERVATIONS[name](asked, 100) <= 100


@pytest.mark.parametrize("name", sorted(set(RESERVATIONS) - {"on_demand"}))
def test_the_scheduler_tells_the_books_the_true_end(name: str) -> None:
    """Prompt 10, output 25: 34 slots will hold a token, whatever was promised."""
    scheduler = Continuous(Contiguous(1000, 100), RESERVATIONS[name], max_model_len=100)
    scheduler.add(request(10, 25))
    scheduler.schedule(0)
    books = scheduler.allocator.memory()
    assert (books.used, books.reserved) == (10, 24)
    assert books.over_reserved == RESERVATIONS[name](request(10, 25), 100) - 34
