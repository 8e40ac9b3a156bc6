"""What sharing saves, by hand: samples of one prompt on blocks of 16, every step as long as any other."""

from __future__ import annotations

import numpy as np
import pytest

from allocators.paged import Paged
from harness.report.figures.swap_vs_recompute import crossing
from harness.runner.latency.fitted import FittedLatency
from harness.workload.histograms import HISTOGRAMS
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import on_demand
from tests.conformance.play import Played, play

BLOCK = 16
EVERY_STEP_ALIKE = FittedLatency((1e6, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)


def samples(requests: list[Request], n: int, slots: int = 15_728) -> Played:
    for request in requests:
        request.n = n
    scheduler = Continuous(Paged(slots, 2048, block_size=BLOCK), on_demand, max_model_len=2048)
    return play(requests, scheduler, EVERY_STEP_ALIKE)


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


@pytest.mark.parametrize("n", [2, 4, 6])
@pytest.mark.parametrize(("prompt", "output"), [(32, 20), (32, 2), (16, 33), (20, 20), (5, 40)])
def test_the_full_blocks_of_a_prompt_are_held_once(n: int, prompt: int, output: int) -> None:
    """One step computes the prompt, for the first sample; each of the others stores a token of every sample."""
    full = prompt // BLOCK
    saved, held = 0, blocks(prompt)
    for stored in range(prompt + 1, prompt + output):
        saved += (n - 1) * full
        held += n * blocks(stored)
    summary = samples([Request(0, 0, prompt, output)], n).summary
    assert summary["steps"] == output
    assert summary["kv_saved_pct"] == pytest.approx(100 * saved / held)
    assert summary["copied_slots"] == (n - 1) * (prompt % BLOCK)


@pytest.mark.parametrize(("n", "paper"), [(2, 6.09), (4, 8.53), (6, 9.79)])
def test_alpacas_prompts_save_what_figure_15_says(n: int, paper: float) -> None:
    """And what a plain count over the same lengths says: a group runs as many steps as it has tokens."""
    random = np.random.default_rng(3)
    prompts, outputs = (HISTOGRAMS[f"alpaca_{part}"].sample(random, 600).tolist() for part in ("input", "output"))
    pairs = [(prompt, output) for prompt, output in zip(prompts, outputs, strict=True) if prompt + output <= 2048]
    saved = sum((n - 1) * (prompt // BLOCK) * (output - 1) for prompt, output in pairs)
    held = sum(blocks(prompt) + n * sum(map(blocks, range(prompt + 1, prompt + output))) for prompt, output in pairs)
    requests = [Request(i, 0, prompt, output) for i, (prompt, output) in enumerate(pairs)]
    summary = samples(requests, n, slots=1 << 20).summary
    assert summary["kv_saved_pct"] == pytest.approx(100 * saved / held)
    assert summary["kv_saved_pct"] == pytest.approx(paper, abs=2)


def test_where_swapping_begins_to_win() -> None:
    assert crossing({1: 8.0, 4: 2.0}, {1: 4.0, 4: 4.0}) == pytest.approx(2)
    assert np.isnan(crossing({1: 8.0, 4: 6.0}, {1: 4.0, 4: 4.0}))
