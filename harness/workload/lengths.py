"""Prompt and output lengths drawn from a spec such as {kind: lognormal, mean: 160, cv: 1.9, cap: 2048}."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.workload.errors import WorkloadError
from harness.workload.histograms import HISTOGRAMS

Lengths = npt.NDArray[np.int64]
KEYS = ("kind", "value", "mean", "cv", "low", "high", "cap", "histogram")
_NEEDS = {
    "fixed": ("value",),
    "uniform": ("low", "high"),
    "lognormal": ("mean", "cv"),
    "exponential": ("mean",),
    "histogram": ("histogram",),
}
_DRAWS = 4096  # drawn at once, always: so a longer trace begins with the shorter one


class LengthSampler:
    """Whole lengths >= 1 from one spec, drawn from one stream.

    Samples are rounded, and to 1 at least. Those outside [low, cap] are drawn again, never clipped to the bound (a
    clipped distribution has a spike there), as the static-against-continuous-batching article did.

    Args:
        spec: keys of `KEYS`; those its kind does not use are ignored, so that kinds can be swept.
        key: where the spec stands, for messages ("workload.prompt").
        random: the stream to draw from.

    Raises:
        WorkloadError: a key is unknown, missing or out of range; the message names it.
    """

    def __init__(self, spec: Mapping[str, Any], key: str, random: np.random.Generator) -> None:
        self._key, self._random = key, random
        self._draw = _distribution(spec, key)
        kind = spec["kind"]
        bounded = kind in ("lognormal", "exponential", "histogram")
        self._low = _number(spec, "low", key, 0.0) if bounded else 0.0
        self._cap = _number(spec, "cap", key, math.inf) if bounded else math.inf
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
    unknown = [name for name in spec if name not in KEYS]
    if unknown:
        near = get_close_matches(unknown[0], KEYS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise WorkloadError(f"{key}.{unknown[0]}: no such key; a length spec has {', '.join(KEYS)}{hint}")
    kind = spec.get("kind")
    if kind not in _NEEDS:
        raise WorkloadError(f"{key}.kind={kind!r}: the kinds are {', '.join(_NEEDS)}")
    for name in _NEEDS[kind]:
        if spec.get(name) is None:
            raise WorkloadError(f"{key}.{name} is not set; kind={kind} needs {' and '.join(_NEEDS[kind])}")
    if kind == "histogram":
        histogram = HISTOGRAMS.get(str(spec["histogram"]))
        if histogram is None:
            raise WorkloadError(f"{key}.histogram={spec['histogram']!r}: known are {', '.join(HISTOGRAMS)}")
        return histogram.sample
    if kind == "fixed":
        value = _whole(spec, "value", key)
        return lambda random, count: np.full(count, value, dtype=np.int64)
    if kind == "uniform":
        low, high = _whole(spec, "low", key), _whole(spec, "high", key)
        if high < low:
            raise WorkloadError(f"{key}.high={high} is below {key}.low={low}")
        return lambda random, count: random.integers(low, high + 1, count)
    mean = _number(spec, "mean", key, 0.0)
    if kind == "exponential":
        return lambda random, count: random.exponential(mean, count)
    variance = math.log1p(_number(spec, "cv", key, 0.0) ** 2)
    return lambda random, count: random.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)


def _number(spec: Mapping[str, Any], name: str, key: str, default: float) -> float:
    value = spec.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
        raise WorkloadError(f"{key}.{name}={value!r}: must be a number above 0 and below 2**31")
    return float(value)


def _whole(spec: Mapping[str, Any], name: str, key: str) -> int:
    value = _number(spec, name, key, 0.0)
    if value < 1 or value != int(value):
        raise WorkloadError(f"{key}.{name}={spec[name]!r}: must be a whole number of tokens, at least 1")
    return int(value)
