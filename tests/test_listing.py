"""`python -m harness list`: every choice has a sentence."""

import pytest

from harness.console.listing import GROUPS, entries, list_names
from harness.errors import HarnessError


@pytest.mark.parametrize("name", GROUPS)
def test_every_choice_has_a_sentence_of_its_own(name: str) -> None:
    found = dict(entries(name))
    assert found
    assert all(len(sentence) > 8 and sentence[-1] in ".?!" for sentence in found.values()), found
    if name == "schedulers":
        assert len(set(found.values())) == len(found)


def test_an_unknown_list_names_the_nearest() -> None:
    with pytest.raises(HarnessError, match="did you mean schedulers"):
        list_names("scheduler")
