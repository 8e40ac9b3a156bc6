"""A machine whose steps take longer and shorter by chance, written after reading `harness/runner/latency/base.py`."""

from __future__ import annotations

import random

from harness.runner.latency.base import LatencyModel
from schedulers.request import Batch, BatchStats


class Jittery(LatencyModel):
    """A line with a lognormal factor on each step, and now and then a step that stumbles.

    Args:
        step_ms, lane_ms, prompt_us, context_ns: of a step, a sequence in it, a prompt's token, a token looked back to.
        sigma: standard deviation of the factor's logarithm.
        stumble_ms: what every hundredth step takes besides, on average.
        seed: of the chances.
    """

    def __init__(self, step_ms: float = 20.0, lane_ms: float = 0.4, prompt_us: float = 100.0, context_ns: float = 600.0,
                 sigma: float = 0.1, stumble_ms: float = 200.0, seed: int = 0) -> None:  # fmt: skip
        self.step_ms, self.lane_ms, self.prompt_us, self.context_ns = step_ms, lane_ms, prompt_us, context_ns
        self.sigma, self.stumble_ms = sigma, stumble_ms
        self.random = random.Random(seed)

    def line(self, stats: BatchStats) -> tuple[float, float]:
        base = self.step_ms * 1e6 + self.lane_ms * 1e6 * (stats.lanes + stats.prompts)
        return base + self.prompt_us * 1e3 * stats.prompt_tokens, self.context_ns

    def step_ns(self, batch: Batch) -> int:
        ns = super().step_ns(batch) * self.random.lognormvariate(0, self.sigma)
        if self.random.random() < 0.01:
            ns += self.random.expovariate(1 / self.stumble_ms) * 1e6
        return round(ns)
