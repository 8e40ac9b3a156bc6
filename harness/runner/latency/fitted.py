"""A latency model fitted to the steps of a real run: a non-negative linear model of what a step computes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.runner.latency.base import LatencyModel
from schedulers.request import Batch, Work

FEATURES = ("step", "lanes", "context_tokens", "prefill_steps", "prefill_tokens", "prefill_attention")


def features(steps: pd.DataFrame) -> np.ndarray:
    """``[n, 6]`` float64: what `FEATURES` names, for each row of a step table.

    A step costs a constant, each lane (decoding or idle), each token of context read, a constant if any prompt is in
    it, each prompt token, and each pair of a prompt token with a token it looks back to.
    """
    prompts = steps["prefill_tokens"].to_numpy(np.float64)
    return np.column_stack([
        np.ones(len(steps)),
        steps["num_seqs"] + steps["idle_lanes"],
        steps["context_tokens"],
        prompts > 0,
        prompts,
        steps["prefill_attention"],
    ]).astype(np.float64)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FittedLatency(LatencyModel):
    """Step time = coefficients · features, in nanoseconds.

    Attributes:
        coefficients: one per entry of `FEATURES`, all >= 0.
        overhead_ns: what a step costs outside the model (schedule and complete), mean of the run.
    """

    coefficients: tuple[float, ...]
    overhead_ns: float = 0.0

    def __post_init__(self) -> None:
        values = [*self.coefficients, self.overhead_ns]
        if len(values) != len(FEATURES) + 1 or not all(_is_time(value) for value in values):
            raise ValueError(f"coefficients must be {len(FEATURES)} numbers of ns, 0 or more, and overhead_ns one; got "
                             f"{values!r:.200}")  # fmt: skip

    @classmethod
    def fit(cls, steps: pd.DataFrame) -> FittedLatency:
        """Least squares on relative error, over the steps that computed something, then scaled to keep their total.

        Relative error, so that short steps count as much as long ones; but such a fit sits below the mean where step
        times have a tail, and throughput is made of means.

        Raises:
            HarnessError: fewer steps than coefficients, or times and counts that are no numbers above 0.
        """
        from scipy.optimize import nnls  # takes as long to import as everything else that a simulation needs

        steps = steps[pd.to_numeric(steps["num_seqs"], errors="coerce") > 0]
        if len(steps) < len(FEATURES):
            raise HarnessError(f"a latency fit needs at least {len(FEATURES)} steps, there are {len(steps)}")
        try:
            matrix, target = features(steps), steps["execute_ms"].to_numpy(np.float64) * 1e6
        except (TypeError, ValueError) as error:
            raise HarnessError(f"a latency fit needs numbers: {error}") from error
        if not (np.isfinite(matrix).all() and (matrix >= 0).all() and np.isfinite(target).all() and (target > 0).all()):
            raise HarnessError("a latency fit needs steps whose execute_ms is above 0 and whose counts are 0 or more")
        scale = np.abs(matrix).max(axis=0)
        scale[scale == 0] = 1.0
        solution, _ = nnls(matrix / scale / target[:, None], np.ones(len(target)))
        solution *= target.sum() / (matrix / scale @ solution).sum()
        overhead = float((steps["schedule_ms"] + steps["complete_ms"]).mean() * 1e6)
        return cls(tuple((solution / scale).tolist()), overhead)

    def predict(self, steps: pd.DataFrame) -> np.ndarray:
        """``[n]`` float64: the execute time of each step in ns."""
        return features(steps) @ np.array(self.coefficients)

    def line(self, work: Work) -> tuple[float, float]:
        """Schedule and complete included."""
        step, lane, context, prompt_step, prompt, pair = self.coefficients
        base = step + self.overhead_ns + lane * (work.lanes + work.prompts)
        if work.prompts:
            base += prompt_step + context * work.prompt_context + prompt * work.prompt_tokens + pair * work.pairs
        return base, context

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        return self.along_line(batch, steps)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
