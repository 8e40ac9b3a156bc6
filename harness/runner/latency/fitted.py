"""A latency model fitted to the steps of a real run: a non-negative linear model of what a step computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.runner.latency.base import LatencyModel
from schedulers.request import Batch, BatchStats

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
LINE = (0, 1)  # knots of a base that is one straight line
FEW = 10  # steps that a knot needs between itself and the one before
REST = ("context_tokens", "prefill_steps", "prefill_tokens", "prefill_attention")


def names(knots: Sequence[int]) -> tuple[str, ...]:
    """What each coefficient is of: a step at the first knot, what each further knot adds to it, and `REST`."""
    return (f"step with {knots[0]} lanes", *(f"from {low} to {high} lanes" for low, high in pairwise(knots)), *REST)


def features(steps: pd.DataFrame, knots: Sequence[int] = LINE) -> np.ndarray:
    """``[n, len(names(knots))]`` float64: what the coefficients are multiplied with, for each row of a step table.

    A step costs what its lanes (decoding or idle) make it cost, each token of context read, a constant if any prompt
    is in it, each prompt token, and each pair of a prompt token with a token it looks back to. Between two knots the
    part of a lane count is linear; behind the last one it goes on as before it.
    """
    lanes = (steps["num_seqs"] + steps["idle_lanes"]).to_numpy(np.float64)
    prompts = steps["prefill_tokens"].to_numpy(np.float64)
    rises = [(lanes - low) / (high - low) for low, high in pairwise(knots)]
    rises = [np.clip(rise, 0, None if at == len(rises) - 1 else 1) for at, rise in enumerate(rises)]
    context = steps["context_tokens"].to_numpy(np.float64)
    pairs = steps["prefill_attention"].to_numpy(np.float64)
    return np.column_stack([np.ones(len(steps)), *rises, context, prompts > 0, prompts, pairs])


def knots_of(lanes: np.ndarray) -> tuple[int, ...]:
    """Those of `KNOTS` that steps with these lanes can tell; a straight line where they tell no two."""
    kept = [KNOTS[0]]
    for knot in KNOTS[1:]:
        if ((lanes > kept[-1]) & (lanes <= knot)).sum() >= FEW:
            kept.append(knot)
    return tuple(kept) if len(kept) > 1 else LINE


@dataclass(frozen=True, slots=True)
class FittedLatency(LatencyModel):
    """Step time = base(lanes) + coefficients · the rest of its work, in nanoseconds.

    Attributes:
        coefficients: one per entry of `names(knots)`, all >= 0, so that the base never falls.
        overhead_ns: what a step costs outside the model (schedule and complete), mean of the run.
        knots: numbers of lanes between which the base is linear, ascending.
        live_ns: what a lane costs more than an idle one of a static batch, of which no token is wanted: measured here,
            a step of seven lanes takes 2.6 ms if all are live and 1.8 if one is.
    """

    coefficients: tuple[float, ...]
    overhead_ns: float = 0.0
    knots: tuple[int, ...] = LINE
    live_ns: float = 0.0
    _levels: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values, count = [*self.coefficients, self.overhead_ns, self.live_ns], len(self.knots)
        if len(values) != count + len(REST) + 2 or not all(_is_time(value) for value in values):
            raise ValueError(f"coefficients must be {count + len(REST)} numbers of ns, 0 or more, and overhead_ns and "
                             f"live_ns one each; got {values!r:.200}")  # fmt: skip
        if count < 2 or not all(type(knot) is int for knot in self.knots) or sorted({*self.knots}) != [*self.knots]:
            raise ValueError(f"knots must be two numbers of lanes or more, ascending; got {self.knots!r:.200}")
        levels = [level + self.overhead_ns for level in accumulate(self.coefficients[:count])]
        rises = zip(self.coefficients[1:count], pairwise(self.knots), strict=True)
        slopes = [rise / (high - low) for rise, (low, high) in rises]
        object.__setattr__(self, "_levels", tuple(levels))
        object.__setattr__(self, "_slopes", tuple(slopes))

    @classmethod
    def fit(cls, steps: pd.DataFrame) -> FittedLatency:
        """Least squares on relative error, over the steps that computed something, then scaled to keep their total.

        Relative error, so that short steps count as much as long ones; but such a fit sits below the mean where step
        times have a tail, and throughput is made of means. The base has knots because no machine's step is a straight
        line in its lanes: kernels change with the size of a batch.

        Raises:
            HarnessError: fewer steps than coefficients, or times and counts that are no numbers above 0.
        """
        from scipy.optimize import nnls  # takes as long to import as everything else that a simulation needs

        steps = steps[pd.to_numeric(steps["num_seqs"], errors="coerce") > 0]
        try:
            knots = knots_of((steps["num_seqs"] + steps["idle_lanes"]).to_numpy(np.float64))
            matrix, target = features(steps, knots), steps["execute_ms"].to_numpy(np.float64) * 1e6
            if steps["idle_lanes"].any():  # else nothing tells what a lane is from what its token is
                matrix = np.column_stack([matrix, steps["num_seqs"].to_numpy(np.float64)])
        except (TypeError, ValueError) as error:
            raise HarnessError(f"a latency fit needs numbers: {error}") from error
        if len(steps) < matrix.shape[1]:
            raise HarnessError(f"a latency fit needs at least {matrix.shape[1]} steps, there are {len(steps)}")
        if not (np.isfinite(matrix).all() and (matrix >= 0).all() and np.isfinite(target).all() and (target > 0).all()):
            raise HarnessError("a latency fit needs steps whose execute_ms is above 0 and whose counts are 0 or more")
        scale = np.abs(matrix).max(axis=0)
        scale[scale == 0] = 1.0
        solution, _ = nnls(matrix / scale / target[:, None], np.ones(len(target)))
        solution *= target.sum() / (matrix / scale @ solution).sum()
        overhead = float((steps["schedule_ms"] + steps["complete_ms"]).mean() * 1e6)
        count = len(knots) + len(REST)
        found = (solution / scale).tolist()
        return cls(tuple(found[:count]), overhead, knots, *found[count:])

    def predict(self, steps: pd.DataFrame) -> np.ndarray:
        """``[n]`` float64: the execute time of each step in ns."""
        live = self.live_ns * steps["num_seqs"].to_numpy(np.float64)
        told: np.ndarray = features(steps, self.knots) @ np.array(self.coefficients) + live
        return told

    def base(self, lanes: int, idle: int = 0) -> float:
        """Ns of a step with so many lanes beside what it reads and its prompts, schedule and complete included.

        Args:
            idle: how many of them are.
        """
        knots, at = self.knots, 0
        last = len(knots) - 2
        while at < last and lanes > knots[at + 1]:
            at += 1
        return self._levels[at] + self._slopes[at] * (lanes - knots[at]) + self.live_ns * (lanes - idle)

    def line(self, stats: BatchStats) -> tuple[float, float]:
        """Schedule and complete included."""
        context, prompt_step, prompt, pair = self.coefficients[-len(REST) :]
        base = self.base(stats.lanes + stats.prompts, stats.idle)
        if stats.prompts:
            base += prompt_step + context * stats.prompt_context + prompt * stats.prompt_tokens + pair * stats.pairs
        return base, context

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        return self.along_line(batch, steps)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
