"""Admit by the most memory that the future will probably need: LightLLM's past-future scheduler (ASPLOS'25)."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np

from schedulers.base import Branches
from schedulers.ideal import Ideal
from schedulers.lengths import Oracle, Window
from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence


class PastFuture(Ideal):
    """Admits the head of the queue if the highest peak of some drawn futures fits a share of the pool.

    A future gives every answer a length, out of those of the last answers that were longer than what it has so far
    (arXiv 2507.10150; like its artifact's code, half of the window begins as 512 tokens, 5 futures are drawn anew in
    each step, lengths between two known ones are interpolated, and 3 % of the pool are not counted on). There a
    candidate's length is drawn from the whole window; here as everybody's, so that one that was preempted keeps what it
    is known to have. Who has the pool to itself is admitted whatever its future.

    Args:
        reserved: share of the pool that futures may not use (0 ... < 1).
        samples: futures that are drawn.
        window: answers that are remembered.
        initial_output_len: tokens of the answers remembered before there are any.
        length_predictor: `history` draws as said; `oracle` and `noisy:SIGMA` know one future, that all answers are as
            long as told when they came (`oracle` and reserved 0: the ideal scheduler).
    """

    def __init__(self, *args: Any, reserved: float = 0.03, samples: int = 5, window: int = 1000,
                 initial_output_len: int = 512, length_predictor: str = "history", seed: int = 0,
                 **kwargs: Any) -> None:  # fmt: skip
        super().__init__(*args, length_predictor=length_predictor, seed=seed, **kwargs)
        if not 0 <= reserved < 1:
            raise ValueError(f"scheduler.reserved must be at least 0 and below 1, got {reserved}")
        if samples < 1:
            raise ValueError(f"scheduler.samples must be at least 1, got {samples}")
        self.room = int(self.allocator.capacity * (1 - reserved))
        self.samples = samples
        self.window = Window(window, initial_output_len) if length_predictor == "history" else None
        self.random = np.random.default_rng((seed, 0x9A57))

    def shortfall(self, seq: Sequence, budget: int) -> int:
        return super().shortfall(seq, budget) if self.running else 0

    def ends(self, seqs: list[Sequence]) -> list[list[int]]:
        if type(self.lengths) is Oracle:
            return super().ends(seqs)
        prompts = np.array([seq.request.prompt_len for seq in seqs])
        produced = np.array([seq.num_tokens for seq in seqs]) - prompts
        caps = np.maximum(np.array([self._most(seq) for seq in seqs]), produced + 1)
        if self.window is None:
            told = np.clip([seq.expected for seq in seqs], produced + 1, caps)[None]
        else:
            told = self.window.sample(produced, caps, self.random.random((self.samples, len(seqs))))
        return (prompts + told).tolist()

    def complete(self, batch: Batch, tokens: Items[int] | None, branches: Branches | None = None
                 ) -> tuple[list[Sequence], list[Sequence]]:  # fmt: skip
        produced, finished = super().complete(batch, tokens, branches)
        if self.window is not None:
            for seq in finished:
                self.window.observe(seq.num_tokens - seq.request.prompt_len)
        return produced, finished

    def quiet(self, batch: Batch) -> Quiet | None:
        """As `Ideal`: futures are drawn where somebody is admitted, and answers remembered where they end."""
        return super().quiet(batch)

    def _most(self, seq: Sequence) -> int:
        """The longest that an answer may get, as its client or the model caps it."""
        longest, declared = self.max_model_len - seq.request.prompt_len, seq.request.max_tokens
        return longest if declared is None else min(declared, longest)
