"""Several answers to a request: the same tokens wherever they lie, and those that `transformers` finds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allocators.base import Allocator, Move
from allocators.buddy import Buddy
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.radix import Radix
from harness.workload.streams import stream
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import RESERVATIONS
from schedulers.static import Static
from tests.conformance.effort import cases
from tests.runner.serving import VOCABULARY, answers, expected, model_of, serve

POOL, LONGEST = 240, 64
PLACES = {
    "paged": lambda: Paged(POOL, LONGEST, block_size=4),
    "small pool": lambda: Paged(96, LONGEST, block_size=4),
    "prefix caching": lambda: Paged(POOL, LONGEST, block_size=4, enable_prefix_caching=True),
    "swapping": lambda: Paged(96, LONGEST, block_size=4, host_slots=200),
    "radix": lambda: Radix(POOL, LONGEST),
    "extents": lambda: Contiguous(POOL, LONGEST, fit="first_fit"),
    "buddy": lambda: Buddy(POOL, LONGEST),
}


def asked(beams: bool) -> list[Request]:
    rng = np.random.default_rng(2)
    wanted = []
    for i, n in enumerate((3, 1, 2, 4, 2, 3)):
        prompt = rng.integers(3, VOCABULARY, rng.integers(1, 14))
        request = Request(i, 0, len(prompt), int(rng.integers(8, 20)), token_ids=prompt)
        request.n, request.use_beam_search = n, beams and n > 1
        wanted.append(request)
    return wanted


def scheduler(place: str, chunked: bool = True, static: bool = False, budget: int = 64):
    paged = place not in ("extents", "buddy")

    def make(allocator: Allocator):
        more = {} if static else {"preemption": "swap" if allocator.host_capacity else "recompute"}
        return (Static if static else Continuous)(
            allocator, RESERVATIONS["on_demand" if paged else "exact"], max_model_len=LONGEST, watermark=0.0,
            max_num_batched_tokens=budget, chunked_prefill=chunked, **more,
        )  # fmt: skip

    return make


@lru_cache
def found(name: str = "llama") -> dict[int, list[tuple[list[int], float]]]:
    """The beams that `transformers` finds, best first."""
    model, told = model_of(name, ours=False), {}
    for request in asked(beams=True):
        if request.n > 1:
            prompt = torch.tensor(request.token_ids).unsqueeze(0)
            with torch.inference_mode():
                said = model.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=request.output_len,
                    num_beams=request.n, num_return_sequences=request.n, do_sample=False, pad_token_id=0,
                    length_penalty=0.0, return_dict_in_generate=True, output_scores=True,
                )  # fmt: skip
            tokens = said.sequences[:, request.prompt_len :].tolist()
            told[request.id] = list(zip(tokens, said.sequences_scores.tolist(), strict=True))
    return told


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("static", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_beams_are_those_that_transformers_finds(place: str, static: bool) -> None:
    if static and place == "swapping":
        pytest.skip("static batches do not swap")
    served = serve("llama", PLACES[place](), scheduler(place, static=static), asked(beams=True))
    assert place not in ("small pool", "swapping") or any(answer.preemptions for answer in served.values())
    for number, beams in found().items():
        ours = sorted(served[number].answers, key=lambda answer: -answer[1])
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in beams]
        assert [score for _, score in ours] == pytest.approx([score for _, score in beams], abs=1e-3)


@lru_cache
def drawn(name: str = "llama") -> dict[int, list[list[int]]]:
    """Samples drawn one token after the other from plain forward passes, by the draws that the runner makes."""
    model, told = model_of(name, ours=False), {}
    for request in asked(beams=False):
        told[request.id] = []
        for answer in range(request.n if request.n > 1 else 0):
            tokens = list(request.token_ids)
            while len(tokens) < request.prompt_len + request.output_len:
                with torch.inference_mode():
                    logits = model(torch.tensor([tokens])).logits[0, -1]
                odds = torch.softmax(logits.double(), -1).cumsum(-1).numpy()
                draw = stream(0, "samples", request.id, answer, len(tokens)).random()
                tokens.append(int(np.searchsorted(odds, draw * odds[-1], side="right")))
            told[request.id].append(tokens[request.prompt_len :])
    return told


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("budget", [9, pytest.param(64, marks=pytest.mark.slow)])
def test_samples_are_drawn_from_what_the_model_says(place: str, budget: int) -> None:
    served = serve("llama", PLACES[place](), scheduler(place, budget=budget), asked(beams=False))
    for request in asked(beams=False):
        if request.n > 1:
            assert [tokens for tokens, _ in served[request.id].answers] == drawn()[request.id]
    alone = answers("llama", [request for request in asked(beams=False) if request.n == 1])
    assert {i: served[i].tokens for i in alone} == {i: answer.tokens for i, answer in alone.items()}


@pytest.mark.parametrize("place", ["paged", "small pool", "swapping", "extents"])
@pytest.mark.parametrize("name", ["lfm2", pytest.param("jamba", marks=pytest.mark.slow)])
def test_states_of_samples_and_beams_go_with_them(name: str, place: str) -> None:
    served = serve(name, PLACES[place](), scheduler(place, budget=9), asked(beams=False))
    for request in asked(beams=False):
        if request.n > 1:
            assert [tokens for tokens, _ in served[request.id].answers] == drawn(name)[request.id]
    searched = serve(name, PLACES[place](), scheduler(place), asked(beams=True))
    for number, beams in found(name).items():
        ours = sorted(searched[number].answers, key=lambda answer: -answer[1])
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in beams]


@settings(max_examples=cases(12), deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(PLACES)), st.booleans(), st.sampled_from([4, 9, 20, 64]), st.sampled_from([96, 120, 240]),
    st.sampled_from([1, 4, 16]), st.booleans(), st.sampled_from([0, 60, 200]),
)  # fmt: skip
def test_any_combination_finds_the_same_beams(
    place: str, chunked: bool, budget: int, pool: int, block_size: int, caching: bool, host: int
) -> None:
    allocator = PLACES[place]()
    if isinstance(allocator, Paged):
        allocator = Paged(pool, LONGEST, block_size, enable_prefix_caching=caching, host_slots=host)
    make = scheduler(place, chunked=chunked or budget < LONGEST, budget=budget)
    served = serve("llama", allocator, make, asked(beams=True))
    assert len(served) >= 4  # a group of four may never fit a small pool of large blocks
    for number, beams in found().items():
        if number in served:
            ours = sorted(served[number].answers, key=lambda answer: -answer[1])
            assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in beams]


def copies_left_out(moves: list[Move]) -> list[Move]:
    return []


def copies_one_slot_off(moves: list[Move]) -> list[Move]:
    return [move._replace(source=move.source + 1) for move in moves]


@pytest.mark.parametrize("change", [copies_left_out, copies_one_slot_off])
@pytest.mark.parametrize("place", ["paged", "swapping", "extents"])
def test_a_wrong_move_shows(place: str, change) -> None:
    """Copy-on-write, swaps and the copies of beams: one that is skipped or wrong changes what is found."""
    changed = []

    def tamper(runner, batch) -> None:
        if batch.moves and len(changed) < 8:
            changed.extend(batch.moves)
            batch.moves = change(batch.moves)

    served = serve("llama", PLACES[place](), scheduler(place), asked(beams=True), tamper=tamper)
    assert changed
    assert any(
        sorted(tokens for tokens, _ in served[number].answers) != sorted(tokens for tokens, _ in beams)
        for number, beams in found().items()
    )


def test_single_requests_are_answered_as_ever() -> None:
    served = serve("opt", Paged(POOL, LONGEST, block_size=4, host_slots=200), scheduler("swapping"))
    assert {i: answer.tokens for i, answer in served.items()} == {i: a.tokens for i, a in expected("opt").items()}
