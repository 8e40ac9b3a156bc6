"""The rules a row must keep, applied to whole columns at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.workload.readers.format import ABSENT

Integers = npt.NDArray[np.int64]
_LONGEST = 2**31 - 1  # tokens; beyond, a length is a slip (a time in the wrong column)
_LATEST = 2**62  # nanoseconds, 146 years: sums of two never overflow
_GOOD, _MISSING, _TEXT, _OTHER = range(4)
_WORDS: dict[Any, int] = {"true": 1, "1": 1, 1: 1, "false": 0, "0": 0, 0: 0, "": 0, None: 0, ABSENT: 0}


@dataclass(slots=True)
class Faults:
    """The first fault of each row of a chunk.

    Attributes:
        code: int16[rows], 0 = no fault, else 1 + index into `rules`.
        rules: (column, rule) pairs met so far.
    """

    code: npt.NDArray[np.int16]
    rules: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: npt.NDArray[np.bool_], column: str, rule: str) -> None:
        """Marks the rows of the mask that have no fault yet."""
        new = where & (self.code == 0)
        if new.any():
            self.rules.append((column, rule))
            self.code[new] = len(self.rules)


def numbers(values: list[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int8]]:
    """A raw column as int64 (if all are whole) or float64, and for each value whether it is a number at all."""
    kinds = set(map(type, values))
    try:
        if kinds == {int}:
            return np.array(values, dtype=np.int64), np.zeros(len(values), dtype=np.int8)
        if kinds == {str}:
            return np.array(list(map(int, values)), dtype=np.int64), np.zeros(len(values), dtype=np.int8)
    except (ValueError, OverflowError):
        pass
    try:
        if kinds <= {int, float, str}:
            return np.array(list(map(float, values)), dtype=np.float64), np.zeros(len(values), dtype=np.int8)
    except (ValueError, OverflowError):
        pass
    pairs = [_number(value) for value in values]
    return np.array([pair[0] for pair in pairs], dtype=np.float64), np.array([pair[1] for pair in pairs], dtype=np.int8)


def _number(value: Any) -> tuple[float, int]:
    if value is ABSENT or value is None or (isinstance(value, str) and not value.strip()):
        return 0.0, _MISSING
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0, _OTHER
    try:
        return float(value), _GOOD
    except ValueError:
        return 0.0, _TEXT
    except OverflowError:
        return math.inf, _GOOD


def check_whole(values: list[Any], column: str, least: int, most: int, faults: Faults) -> Integers:
    """Whole numbers from `least` to `most`; faulty ones become `least` and are marked."""
    found, state = numbers(values)
    faults.add(state == _MISSING, column, "is missing")
    faults.add(state > _MISSING, column, "is not a number")
    if found.dtype == np.float64:
        finite = np.isfinite(found)
        faults.add(~finite, column, "is not finite")
        found = np.where(finite, found, 0.0)
        faults.add(found != np.floor(found), column, "is not a whole number")
    faults.add(found < least, column, f"is below {least}")
    faults.add(found > most, column, f"is above {most}")
    bounded: Integers = np.clip(found, least, most).astype(np.int64)
    return bounded


def check_length(values: list[Any], column: str, faults: Faults) -> Integers:
    """Lengths in tokens: whole numbers >= 1."""
    return check_whole(values, column, 1, _LONGEST, faults)


def check_yes_or_no(values: list[Any], column: str, faults: Faults) -> npt.NDArray[np.bool_]:
    """JSON's booleans, or the words and digits for them; nothing, null and an empty cell mean no."""
    said = [_WORDS.get(value.strip().lower() if isinstance(value, str) else value, -1)
            if isinstance(value, str | bool | int) or value is None or value is ABSENT else -1
            for value in values]  # fmt: skip
    found = np.array(said, dtype=np.int8)
    faults.add(found < 0, column, "is neither true nor false")
    return found > 0


@dataclass(slots=True)
class Times:
    """A checked time column: nanoseconds, and which rows have only a placeholder (a text, or nothing at all)."""

    ns: Integers
    placeholder: npt.NDArray[np.bool_]


def check_times(values: list[Any], column: str, unit: int, dates: bool, untimed: bool, faults: Faults) -> Times:
    """Arrival times. Placeholders are not marked: whether they are a fault depends on the rest of the file."""
    stamps = _dates(values) if dates else None
    if stamps is not None and stamps[1].all():
        found, state = np.zeros(len(values), dtype=np.int64), np.full(len(values), _GOOD)
    else:
        found, state = numbers(values)
    if stamps is not None:
        state[stamps[1]] = _GOOD
    placeholder = state == _TEXT
    if untimed:
        placeholder |= np.fromiter((value is ABSENT for value in values), dtype=np.bool_, count=len(values))
    faults.add((state == _MISSING) & ~placeholder, column, "is missing")
    faults.add(state == _OTHER, column, "is not a number")
    whole = found.dtype == np.int64
    if not whole:
        faults.add(~np.isfinite(found), column, "is not finite")
        found = np.where(np.isfinite(found), found, 0.0)
    faults.add(found < 0, column, "is negative")
    faults.add(found > _LATEST // unit, column, "is later than any clock")
    found = np.clip(found, 0, _LATEST // unit)
    seconds = found if whole else np.floor(found)  # apart from the fraction: epoch nanoseconds are no exact floats
    ns = seconds.astype(np.int64) * unit + np.rint((found - seconds) * unit).astype(np.int64)
    if stamps is not None:
        ns = np.where(stamps[1], stamps[0], ns)
    return Times(ns, placeholder)


def _dates(values: list[Any]) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Texts that are ISO 8601 dates with a time of day as nanoseconds, and which values are."""
    import pandas

    texts = pandas.Series(
        [value if isinstance(value, str) and ":" in value else None for value in values], dtype=object
    )
    stamps = pandas.to_datetime(texts, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    stamps = stamps.where(stamps.dt.year.between(1900, 2100))  # others have no nanoseconds in 64 bits, and are slips
    good = stamps.notna().to_numpy()
    return np.where(good, stamps.dt.as_unit("ns").to_numpy(dtype="datetime64[ns]").astype(np.int64), 0), good


def check_ids(
    values: list[Any], column: str, expected: Integers, rule: str, low: int, high: int, faults: Faults
) -> list[list[int] | None]:
    """Lists of `expected` integers (else `rule` is broken) in [low, high]; null is allowed and means none."""
    result: list[list[int] | None] = []
    wrong = np.zeros((3, len(values)), dtype=np.bool_)
    for index, (value, count) in enumerate(zip(values, expected.tolist(), strict=True)):
        ids = _integers(value)
        if ids is None or ids is _NONE:
            wrong[0, index] = ids is None
            result.append(None)
            continue
        wrong[1, index] = len(ids) != count
        wrong[2, index] = bool(ids) and (min(ids) < low or max(ids) > high)
        result.append(ids)
    faults.add(wrong[0], column, "is not a list of whole numbers")
    faults.add(wrong[1], column, rule)
    faults.add(wrong[2], column, f"has an entry outside {low} to {high}")
    return result


_NONE: list[int] = []


def _integers(value: Any) -> list[int] | None:
    """The list, `_NONE` where there is none, or None where the value is something else."""
    if value is None or value is ABSENT or value == "":
        return _NONE
    if isinstance(value, str):  # our own CSV: numbers in one cell
        try:
            return [int(word) for word in value.strip("[] ").replace(",", " ").split()]
        except ValueError:
            return None
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return None
    return value
