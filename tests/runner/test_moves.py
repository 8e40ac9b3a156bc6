"""Extents that are moved while they are in use: the model says the same thing, and a wrong copy shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from allocators.base import Move
from allocators.checker import ContractError
from allocators.contiguous import Contiguous
from harness.runner.torch_runner import TorchModelRunner
from schedulers.continuous import Continuous
from schedulers.request import Batch
from schedulers.reservation import RESERVATIONS
from schedulers.static import Static
from tests.runner.serving import difference, expected, serve

POOL, LONGEST = 100, 64
SYSTEMS = {
    "compacting": ({"fit": "first_fit", "compaction": "on_refusal"}, "exact"),
    "growing": ({"fit": "first_fit", "growth": 4}, "on_demand"),
    "both": ({"fit": "best_fit", "growth": 4, "compaction": "on_refusal"}, "on_demand"),
}
SCHEDULERS = {
    "continuous": partial(Continuous, watermark=0.0),
    "chunked": partial(Continuous, chunked_prefill=True, max_num_batched_tokens=9, watermark=0.0),
    "static": partial(Static, max_num_seqs=6),
}


def served(system: str, schedule: str, name: str = "llama", kernels: str = "auto",
           tamper: Callable[[TorchModelRunner, Batch], None] | None = None) -> tuple[float, list[Move]]:  # fmt: skip
    """(largest difference to what `generate` says, the moves that were asked for)."""
    keys, reservation = SYSTEMS[system]
    moves: list[Move] = []

    def watch(runner: TorchModelRunner, batch: Batch) -> None:
        moves.extend(batch.moves)
        if tamper:
            tamper(runner, batch)

    def make(allocator: Any) -> Any:
        return SCHEDULERS[schedule](allocator, RESERVATIONS[reservation], max_model_len=LONGEST)

    said = serve(name, Contiguous(POOL, LONGEST, **keys), make, kernels=kernels, tamper=watch)
    return difference(said, expected(name)), moves


@pytest.mark.parametrize(
    ("system", "schedule"),
    [
        (system, schedule)
        for system in SYSTEMS
        for schedule in SCHEDULERS
        if schedule != "static" or "com" not in system
    ],
)
def test_moved_sequences_say_what_generate_says(system: str, schedule: str) -> None:
    """(Nobody joins a static batch, so nothing is moved for an admission.)"""
    wrong, moves = served(system, schedule, name="opt" if schedule == "chunked" else "llama")
    assert wrong < 1e-4
    assert moves


@pytest.mark.parametrize("kernels", ["torch", "numba"])
def test_some_moves_overlap_themselves_on_both_cpu_backends(kernels: str) -> None:
    wrong, moves = served("compacting", "continuous", kernels=kernels)
    assert wrong < 1e-4
    assert any(abs(move.target - move.source) < move.length for move in moves)


# ---- mutations: the allocator and its checker are right, and the device does not do as it is told ------------------


def one_wrong(number: int, spoil: Callable[[Move], Move | None]) -> Callable[[TorchModelRunner, Batch], None]:
    """The runner carries out the `number`-th move otherwise."""
    seen = 0

    def tamper(runner: TorchModelRunner, batch: Batch) -> None:
        nonlocal seen
        moves: list[Move] = []
        for move in batch.moves:
            other = spoil(move) if seen == number else move
            moves += [other] if other else []
            seen += 1
        batch.moves = moves

    return tamper


@pytest.mark.parametrize(
    "spoil",
    [
        lambda move: None,
        lambda move: move._replace(source=move.source + 1),
        lambda move: move._replace(target=move.target + 1),
        lambda move: move._replace(length=move.length - 1),
    ],
    ids=["skipped", "from one slot too high", "to one slot too high", "one token too few"],
)
@pytest.mark.parametrize(("system", "number"), [("compacting", 0), ("compacting", 2), ("growing", 5)])
def test_one_wrong_copy_shows(system: str, number: int, spoil: Callable[[Move], Move | None]) -> None:
    wrong, _ = served(system, "continuous", tamper=one_wrong(number, spoil))
    assert not wrong < 1e-2


def test_copies_in_the_wrong_order_show() -> None:
    def tamper(runner: TorchModelRunner, batch: Batch) -> None:
        nonlocal several
        several |= len(batch.moves) > 1
        batch.moves.reverse()

    several = False
    wrong, _ = served("both", "continuous", tamper=tamper)
    assert several
    assert not wrong < 1e-2


def test_a_copy_that_the_allocator_forgets_is_found_by_the_checker() -> None:
    class Forgetful(Contiguous):
        def take_moves(self) -> list[Move]:
            return super().take_moves()[1:]

    with pytest.raises(ContractError, match="does not read what it wrote"):
        serve("llama", Forgetful(POOL, LONGEST, fit="first_fit", compaction="on_refusal"),
              lambda a: Continuous(a, RESERVATIONS["exact"], max_model_len=LONGEST))  # fmt: skip
