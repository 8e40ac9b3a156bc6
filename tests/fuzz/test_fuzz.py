"""A part of the fuzz, and that it finds what is wrong: `python -m tests.fuzz` runs any amount of it."""

from __future__ import annotations

import pytest

from tests.conformance.effort import cases

from .cases import Case
from .draw import draw
from .play import examine
from .readers import SMALL, originals
from .readers import examine as examine_file
from .shrink import shrink

LEAKY = "allocator=paged allocator._target_=tests.deadly.Leaks kv_slots=64 max_model_len=30 scheduler=continuous"


def play(seed: int, numbers: range) -> None:
    failed, kinds, events = [], dict.fromkeys(("served", "refused", "failed"), 0), dict[str, int]()
    for number in numbers:
        case = draw(seed, number)
        outcome = examine(case)
        kinds[outcome.kind] += 1
        for event, times in outcome.events.items():
            events[event] = events.get(event, 0) + times
        if outcome.kind == "failed":
            failed.append(f"{outcome.said}\n  python -m tests.fuzz case '{shrink(case, outcome)}'")
    assert not failed, "\n".join(failed)
    assert kinds["served"] > len(numbers) / 2
    assert min(events.values()) > 0, f"nothing of this kind happened: {events}"


def test_configurations() -> None:
    play(1, range(cases(300)))


FOUND = (  # by the fuzz, and mended
    "kv_slots=42 max_model_len=2 scheduler.max_num_seqs=5 layout=state requests=0:1>1",  # states beside the slots
    "allocator=vllm_hybrid kv_slots=21 max_model_len=3 allocator.enable_prefix_caching=true layout=chunk "
    "requests=0:1>1",  # one token is wanted, and the pool lacks a block for a prompt of one: it waited for ever
)


@pytest.mark.parametrize("line", FOUND)
def test_what_was_found_is_mended(line: str) -> None:
    outcome = examine(Case.read(line))
    assert outcome.kind == "served", outcome.trace


@pytest.mark.slow  # 10 minutes
def test_10_000_configurations() -> None:
    play(2, range(10_000))


def test_a_line_says_all_of_a_case() -> None:
    for number in range(20):
        case = draw(3, number)
        assert Case.read(str(case)) == case
        assert [str(row) for row in Case.read(str(case)).rows] == [str(row) for row in case.rows]


def test_a_fault_is_found_and_becomes_a_short_line() -> None:
    case = Case.read(f"{LEAKY} scheduler.max_num_seqs=3 latency=constant requests=0:5>3,p1;0:4>2;700:4>2,sa;0:9>9,t1")
    outcome = examine(case)
    assert outcome.kind == "failed"
    assert "ContractError" in outcome.said
    small = shrink(case, outcome)
    assert len(small.rows) <= 2
    assert "max_num_seqs" not in str(small)
    assert examine(Case.read(str(small))).said.startswith(outcome.said[:20])


@pytest.mark.parametrize("name", ["Raises", "FreesTwice", "Lies", "Overlaps"])
def test_other_faults_are_found_too(name: str) -> None:
    case = Case.read(f"{LEAKY} requests=0:20>5;0:18>4;90000:20>5;90000:18>4".replace("Leaks", name))
    assert examine(case).kind == "failed"


def test_mutated_files_are_read_or_refused() -> None:
    small = [one for one in originals() if one.name in SMALL or one.name in ("made up", "steps.csv", "a100_40gb.yaml")]
    failed = {}
    for number in range(300):
        outcome, said, trace = examine_file(small[number % len(small)], 1, number)
        if outcome == "failed":
            failed[said] = trace
    assert not failed
