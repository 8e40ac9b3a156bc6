"""The rules for the rows of a trace, applied to whole columns at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.workload.readers.format import ABSENT

Integers = npt.NDArray[np.int64]
_LONGEST = 2**31 - 1  # tokens; more must be a mistake (a time in the wrong column)
_LATEST = 2**62  # nanoseconds, 146 years: sums of two never overflow
_GOOD, _MISSING, _TEXT, _OTHER = range(4)
_FLAGS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0", "", "none"), False)
_A_TIME = "a number, or a date such as 2023-11-16 18:15:46.5,"
_COMMA = re.compile(r"[-+]?\d[\d ]*([,.'’]\d+)*,\d+([,.'’]\d+)*")
_ZONE = re.compile(r"([+-]\d\d(:?\d\d)?|[Zz])$")


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
    """A raw column as int64 (if all are whole) or float64, and for each value its state: number, missing or other."""
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
    if (state > _MISSING).any():
        _add_texts(values, state > _MISSING, column, "is not a number", faults)
    if found.dtype == np.float64:
        finite = np.isfinite(found)
        faults.add(~finite, column, "is not finite")
        found = np.where(finite, found, 0.0)
        faults.add(found != np.floor(found), column, "is not a whole number")
    faults.add(found < least, column, f"is below {least}")
    faults.add(found > most, column, f"is above {most}")
    bounded: Integers = np.clip(found, least, most).astype(np.int64)
    return bounded


def check_limits(values: list[Any], column: str, faults: Faults) -> npt.NDArray[np.float64]:
    """Milliseconds above 0; a missing key, null and an empty cell mean no limit, which is NaN."""
    found, state = numbers(values)
    if (state > _MISSING).any():
        _add_texts(values, state > _MISSING, column, "is not a number", faults)
    given = state == _GOOD
    limits = np.where(given, found, math.nan).astype(np.float64)
    faults.add(given & ~np.isfinite(limits), column, "is not finite")
    faults.add(given & ~(limits > 0), column, "is not above 0")
    return limits


def check_flags(values: list[Any], column: str, faults: Faults) -> npt.NDArray[np.bool_]:
    """YAML's words for true and false; a missing key, null and an empty cell mean false."""
    words = [_FLAGS.get(str(value).strip().lower()) if value is not ABSENT else False for value in values]
    faults.add(np.array([word is None for word in words], dtype=np.bool_), column, "is neither true nor false")
    return np.array([bool(word) for word in words], dtype=np.bool_)


def check_length(values: list[Any], column: str, faults: Faults) -> Integers:
    """Lengths in tokens: whole numbers >= 1."""
    return check_whole(values, column, 1, _LONGEST, faults)


@dataclass(slots=True)
class Times:
    """A checked time column.

    Attributes:
        ns: nanoseconds.
        placeholder: rows with a word instead of a time, or with nothing.
        dates: whether the times are dates.
    """

    ns: Integers
    placeholder: npt.NDArray[np.bool_]
    dates: bool


def check_times(values: list[Any], column: str, unit: Callable[[float], int], untimed: bool, faults: Faults) -> Times:
    """Arrival times: numbers or dates. Placeholders are not marked: the rest of the file decides if they are faults.

    Args:
        unit: (the largest number) → nanoseconds per unit.
        untimed: a row may lack the column.
    """
    first = next((value for value in values if isinstance(value, str) and value.strip()), "")
    found, state = (np.zeros(len(values), np.int64), np.full(len(values), _TEXT)) if ":" in first else numbers(values)
    dates = _Dates(values, state == _TEXT) if (state == _TEXT).any() else None
    if dates is not None and ":" in first and not dates.good.all():
        found, state = numbers(values)
    if dates is not None:
        faults.add(dates.good & dates.odd_zone, column, "has no time zone where others have one, or the reverse")
        if dates.good.any() and (numeric := state == _GOOD).any():
            rare = numeric if np.argmax(dates.good) < np.argmax(numeric) else dates.good
            faults.add(rare, column, "is a number where others are dates, or the reverse")
        state[dates.good] = _GOOD
    placeholder = state == _TEXT
    if placeholder.any():
        digits = np.zeros(len(values), dtype=np.bool_)
        for index in np.flatnonzero(placeholder).tolist():
            digits[index] = any(character.isdigit() for character in values[index])
        _add_texts(values, digits, column, f"is not a time: {_A_TIME} is", faults)
        placeholder &= ~digits
    missing = state == _MISSING
    if untimed and missing.any():
        for index in np.flatnonzero(missing).tolist():
            placeholder[index] = values[index] is ABSENT
    faults.add(missing & ~placeholder, column, "is missing")
    faults.add(state == _OTHER, column, "is not a number")
    whole = found.dtype == np.int64
    if not whole:
        faults.add(~np.isfinite(found), column, "is not finite")
        found = np.where(np.isfinite(found), found, 0.0)
    faults.add(found < 0, column, "is negative")
    counted = (state == _GOOD) & (faults.code == 0) & (True if dates is None else ~dates.good)
    per = unit(float(found[counted].max())) if counted.any() else 1
    faults.add(found > _LATEST // per, column, "is later than any clock (workload.time_unit=s, ms, us or ns?)")
    found = np.clip(found, 0, _LATEST // per)
    seconds = found if whole else np.floor(found)  # without the fraction: epoch nanoseconds are not exact as floats
    ns = seconds.astype(np.int64) * per + np.rint((found - seconds) * per).astype(np.int64)
    if dates is not None:
        ns = np.where(dates.good, dates.ns, ns)
    return Times(ns, placeholder, dates is not None and bool((dates.good & (faults.code == 0)).any()))


class _Dates:
    """Texts that are ISO 8601 dates with a time of day.

    Attributes:
        good: which values are.
        ns: their nanoseconds since 1970; without a zone they are taken as UTC.
        odd_zone: where the first date has a zone and this one does not, or the reverse.
    """

    def __init__(self, values: list[Any], texts: npt.NDArray[np.bool_]) -> None:
        import pandas

        given = [value if text and isinstance(value, str) and ":" in value else None
                 for value, text in zip(values, texts.tolist(), strict=True)]  # fmt: skip
        series = pandas.Series(given, dtype=object)
        stamps = pandas.to_datetime(series, format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
        stamps = stamps.where(stamps.dt.year.between(1900, 2100))  # others are mistakes, and may overflow int64
        self.good = stamps.notna().to_numpy()
        ns = stamps.dt.as_unit("ns").to_numpy(dtype="datetime64[ns]").astype(np.int64)
        self.ns: Integers = np.where(self.good, ns, 0)
        self.odd_zone = np.zeros(len(values), dtype=np.bool_)
        if len({text[-6:-5] in "+-" or text[-1] in "Zz" for text in given if text}) > 1:
            zoned = [bool(text and _ZONE.search(text)) for text in given]
            self.odd_zone[:] = np.array(zoned) != zoned[int(np.argmax(self.good))]


def _add_texts(values: list[Any], where: npt.NDArray[np.bool_], column: str, rule: str, faults: Faults) -> None:
    """Marks texts that are not numbers, with a rule of their own for those that have a comma."""
    commas = np.zeros(len(values), dtype=np.bool_)
    for index in np.flatnonzero(where).tolist():
        commas[index] = isinstance(values[index], str) and _COMMA.fullmatch(values[index].strip()) is not None
    faults.add(commas, column, "is not a number: it has a comma (decimal, or of thousands?), where 1234.5 is meant")
    faults.add(where, column, rule)


def check_ids(
    values: list[Any], column: str, expected: Integers, rule: str, low: int, high: int, faults: Faults
) -> list[list[int] | None]:
    """Lists of `expected` integers in [low, high], else `rule` is broken; null is allowed and means no ids."""
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
