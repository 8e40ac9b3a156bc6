"""Rows whose lengths are drawn, not read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.workload.errors import WorkloadError
from harness.workload.fit import Fitted, fit_rows
from harness.workload.lengths import LengthSampler
from harness.workload.readers.rows import Rows, join
from harness.workload.settings import Settings
from harness.workload.streams import stream


@dataclass(slots=True)
class Drawn:
    """Rows that fit, with the counts over all pairs drawn for them."""

    fitted: Fitted
    drawn: int


def draw_rows(settings: Settings, count: int, max_model_len: int, seed: int) -> Drawn:
    """`count` rows with independent prompt and output lengths.

    With fit=drop a pair that does not fit is drawn again, both lengths together, so the result is the joint
    distribution conditioned on fitting. The first n rows are the same whatever the count.

    Raises:
        WorkloadError: a bad spec, or almost no pair fits.
    """
    prompts = LengthSampler(settings.prompt, "workload.prompt", stream(seed, "prompt lengths"))
    outputs = LengthSampler(settings.output, "workload.output", stream(seed, "output lengths"))
    parts: list[Rows] = []
    total, have, drawn = Fitted(_pairs(prompts, outputs, 0)), 0, 0
    while have < count:
        drawn += count - have
        pairs = _pairs(prompts, outputs, count - have)
        fitted = fit_rows(pairs, settings.max_tokens, max_model_len, settings.fit, lambda line: settings.name)
        parts.append(fitted.rows)
        have += len(fitted.rows)
        total.dropped += fitted.dropped
        total.clipped += fitted.clipped
        total.scaled += fitted.scaled
        if have < count and drawn > 100 * count + 10_000:
            raise WorkloadError(
                f"workload.prompt and workload.output: of {drawn} drawn pairs only {have} fit "
                f"max_model_len={max_model_len} together; shorten them or choose workload.fit=scale"
            )
    total.rows = join(parts) if parts else total.rows
    return Drawn(total, drawn)


def _pairs(prompts: LengthSampler, outputs: LengthSampler, count: int) -> Rows:
    return Rows(np.zeros(count, dtype=np.int64), prompts.take(count), outputs.take(count))
