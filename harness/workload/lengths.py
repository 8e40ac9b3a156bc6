"""Prompt and output lengths drawn from a spec such as {kind: lognormal, mean: 160, cv: 1.9, cap: 2048}."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.schema.keys.workload import BOUNDED, KINDS
from harness.workload.errors import WorkloadError
from harness.workload.histograms import HISTOGRAMS

Lengths = npt.NDArray[np.int64]
_DRAWS = 4096  # drawn at once, whatever the count, so that a longer trace begins with the shorter one


class LengthSampler:
    """Whole lengths >= 1 from one spec, drawn from one stream.

    Samples are rounded, to at least 1. Those outside [low, cap] are drawn again, never clipped to the bound (a clipped
    distribution has a spike there), as in Anyscale's article on static and continuous batching.

    Args:
        spec: as in the schema; keys that its kind does not use are ignored, so that kinds can be swept.
        key: the spec's configuration key, for messages ("workload.prompt").
        random: the stream to draw from.

    Raises:
        WorkloadError: a key is missing, or contradicts another; the message names it.
    """

    def __init__(self, spec: Mapping[str, Any], key: str, random: np.random.Generator) -> None:
        self._key, self._random = key, random
        self._draw = _distribution(spec, key)
        kind = spec["kind"]
        bounded = kind in BOUNDED
        low, cap = (spec.get(name) if bounded else None for name in ("low", "cap"))
        self._low, self._cap = low or 0.0, cap or math.inf
        if self._cap < self._low:
            raise WorkloadError(f"{key}.cap={self._cap:g} is below {key}.low={self._low:g}")
        self._spare: Lengths = np.zeros(0, dtype=np.int64)

    def take(self, count: int) -> Lengths:
        """The next `count` lengths, int64[count]."""
        pieces, have = [self._spare], len(self._spare)
        fruitless = 0
        while have < count:
            drawn = self._draw(self._random, _DRAWS)
            kept = np.maximum(1, np.rint(drawn[(drawn >= self._low) & (drawn <= self._cap)])).astype(np.int64)
            fruitless = 0 if len(kept) else fruitless + 1
            if fruitless == 100:
                raise WorkloadError(f"{self._key}: no sample lies between low={self._low:g} and cap={self._cap:g}")
            pieces.append(kept)
            have += len(kept)
        joined = np.concatenate(pieces)
        self._spare = joined[count:]
        return joined[:count]


def _distribution(
    spec: Mapping[str, Any], key: str
) -> Callable[[np.random.Generator, int], npt.NDArray[np.float64] | Lengths]:
    kind = spec.get("kind")
    if kind not in KINDS:
        raise WorkloadError(f"{key}.kind={kind!r}: the kinds are {', '.join(KINDS)}")
    for name in KINDS[kind]:
        if spec.get(name) is None:
            raise WorkloadError(f"{key}.{name} is not set; kind={kind} needs {' and '.join(KINDS[kind])}")
    if kind == "histogram":
        return HISTOGRAMS[spec["histogram"]].sample
    if kind == "fixed":
        value = _whole(spec, "value", key)
        return lambda random, count: np.full(count, value, dtype=np.int64)
    if kind == "uniform":
        low, high = _whole(spec, "low", key), _whole(spec, "high", key)
        if high < low:
            raise WorkloadError(f"{key}.high={high} is below {key}.low={low}")
        return lambda random, count: random.integers(low, high + 1, count)
    mean = spec["mean"]
    if kind == "exponential":
        return lambda random, count: random.exponential(mean, count)
    variance = math.log1p(spec["cv"] ** 2)
    return lambda random, count: random.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)


def _whole(spec: Mapping[str, Any], name: str, key: str) -> int:
    if spec[name] < 1 or spec[name] != int(spec[name]):
        raise WorkloadError(f"{key}.{name}={spec[name]!r}: must be a whole number of tokens, at least 1")
    return int(spec[name])
