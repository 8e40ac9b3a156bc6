"""Arrival times: a trace's own, or those of a process (`workload.arrival`). All times in nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from harness.workload.errors import WorkloadError
from harness.workload.readers.checks import Integers
from harness.workload.readers.clock import offered_rate
from harness.workload.settings import Settings
from harness.workload.streams import stream

_SECOND = 1_000_000_000
_LATEST = 2**62  # nanoseconds, 146 years
_DRAWS = 4096  # drawn at once, whatever the count, so that a longer trace begins with the shorter one
_MOST = 100_000_000  # requests; more must be a typing error in `duration_s` or `rate`


def trace_arrivals(own: Integers | None, count: int, settings: Settings, seed: int, notes: dict[str, Any]) -> Integers:
    """Arrivals for a trace's `count` rows, int64[at most count]: its `own`, stretched to the rate, or a process's.

    Raises:
        WorkloadError: the file's arrivals were asked for and it has none, or they cannot be stretched.
    """
    if own is None or settings.arrival not in ("auto", "trace"):
        if settings.arrival == "trace":
            raise WorkloadError(
                f"{settings.path}: the file as a whole has no arrival times; choose "
                "workload.arrival=burst (all at once) or poisson, gamma (with workload.rate) or closed_loop"
            )
        return process_arrivals(settings, seed, count, notes)
    notes["arrival"] = "trace"
    if settings.rate is None:
        return own
    rate = offered_rate(own)
    if rate is None:
        raise WorkloadError(
            f"workload.rate={settings.rate}: all rows of {settings.path} arrive at once, which no factor spreads; "
            "choose workload.arrival=poisson"
        )
    return stretch(own, rate / settings.rate, f"workload.rate={settings.rate}")


def process_arrivals(settings: Settings, seed: int, count: int | None, notes: dict[str, Any]) -> Integers:
    """Arrivals of the configured process: `count` of them, or all before the end of a duration (at most `count`).

    Raises:
        WorkloadError: a duration without a rate, or one that holds no request.
    """
    process = settings.arrival
    if process == "auto":
        process = "burst" if settings.rate is None else "poisson"
    notes["arrival"] = process
    if process in ("burst", "closed_loop"):
        if settings.duration_s is not None:
            raise WorkloadError(
                f"workload.duration_s={settings.duration_s:g} means nothing with workload.arrival={process}: "
                "set workload.num_requests, or workload.rate with arrival=poisson"
            )
        return np.zeros(count or 0, dtype=np.int64)
    assert settings.rate is not None  # the settings' own check
    if settings.duration_s is None:
        return _renewal(process, settings.rate, settings.cv, seed, count, None)
    most = count if settings.path is not None else None
    return _renewal(process, settings.rate, settings.cv, seed, most, settings.duration_s / settings.time_scale)


def _renewal(process: str, rate: float, cv: float, seed: int, count: int | None, duration_s: float | None) -> Integers:
    """Gaps are exponential (`poisson`) or gamma with coefficient of variation `cv`, of mean 1/rate, and never clipped.

    The first request comes after the first gap. The same seed gives the same gaps at every rate, only scaled.
    """
    if duration_s is not None and duration_s * rate > _MOST:
        raise WorkloadError(f"workload.duration_s={duration_s} at workload.rate={rate} is more than {_MOST} requests")
    random = stream(seed, "arrivals")
    shape = 1 / cv**2
    pieces: list[npt.NDArray[np.float64]] = []
    time, have = 0.0, 0  # time in mean gaps
    while (count is None or have < count) and (duration_s is None or time < duration_s * rate):
        gaps = random.standard_exponential(_DRAWS) if process == "poisson" else random.gamma(shape, 1 / shape, _DRAWS)
        pieces.append(time + np.cumsum(gaps))
        time, have = float(pieces[-1][-1]), have + _DRAWS
    seconds = np.concatenate(pieces)[:count] / rate
    if duration_s is not None:
        seconds = seconds[seconds < duration_s]
    if len(seconds) == 0:
        raise WorkloadError(f"workload.duration_s={duration_s}: no request arrives in that time at rate {rate}")
    if seconds[-1] * _SECOND >= _LATEST:
        raise WorkloadError(f"workload.rate={rate}: {len(seconds)} requests would take {seconds[-1]:.3g} s")
    arrival: Integers = np.rint(seconds * _SECOND).astype(np.int64)
    return arrival


def stretch(arrival: Integers, factor: float, key: str) -> Integers:
    """Arrival times multiplied by a factor.

    Raises:
        WorkloadError: the last would exceed the largest time there is (2**62 ns); the message begins with `key`.
    """
    if factor == 1 or len(arrival) == 0:
        return arrival
    if float(arrival[-1]) * factor >= _LATEST:
        raise WorkloadError(f"{key}: the last request would arrive after {arrival[-1] / _SECOND * factor:.3g} s")
    stretched: Integers = np.rint(arrival * factor).astype(np.int64)
    return stretched
