"""A part of the eighty configurations, and that a fault in how one is served would show."""

from __future__ import annotations

from typing import Any

import pytest

from harness.runner.families import families
from tests.eighty import examine as module
from tests.eighty.draw import OF_FAMILY, draw
from tests.eighty.examine import examine
from tests.runner.test_logits_check import without

MISTRAL, LFM2 = (list(families()).index(name) for name in ("mistral", "lfm2"))


def test_every_family_has_its_turn_and_is_not_the_one_that_is_tested() -> None:
    drawn = dict(draw(0, number) for number in range(80))
    assert drawn.keys() == OF_FAMILY.keys() == families().keys()
    assert all(config != families()[name] for name, config in drawn.items())


@pytest.mark.parametrize("number", [MISTRAL, LFM2])
def test_what_is_drawn_is_served_as_the_model_says(number: int) -> None:
    found = examine(0, number, ("torch",))
    assert (found.verdict, found.preemptions and found.preemptions > 0) == ("equal", True), found


def test_a_window_that_is_forgotten_shows_in_a_small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "probe", without(window=0))  # as the pool is served, not as `check` asks
    number = next(n for n in range(80) if draw(0, n)[1].get("sliding_window") in (2, 3, 5, 8))
    found = examine(0, number, ("torch",))
    assert found.verdict == "different"
    assert found.checked is not None
    assert found.served is not None
    assert found.checked < 1e-4 < found.served


@pytest.mark.slow
@pytest.mark.parametrize("number", range(80))
def test_eighty(number: int) -> None:
    found: Any = examine(0, number)
    assert found.verdict in ("equal", "refused"), found
