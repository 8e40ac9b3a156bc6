"""Column names: their words, their units, and whether they (or the column's values) look like times."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from harness.workload.readers.format import ABSENT, MICROSECOND, MILLISECOND, NANOSECOND, SECOND

_UNIT_WORDS = {
    SECOND: ("s", "sec", "secs", "second", "seconds"),
    MILLISECOND: ("ms", "msec", "msecs", "milli", "millis", "millisecond", "milliseconds"),
    MICROSECOND: ("us", "usec", "usecs", "micro", "micros", "microsecond", "microseconds"),
    NANOSECOND: ("ns", "nsec", "nsecs", "nano", "nanos", "nanosecond", "nanoseconds"),
}
_UNIT_OF = {word: unit for unit, spelt in _UNIT_WORDS.items() for word in spelt}
_TIME = re.compile(
    r"(date)?time(stamp)?s?|t|ts|tstamp|date|day|hour|minute|epoch|clock|when|at|offset|start|started|begin|begun|"
    r"arriv(al|als|e|es|ed)|sent|send|submit|submitted|submission|created?|creation|issued?|received|queued|enqueued|"
    r"dispatched|scheduled|interarrival|iat|gap|delay|interval|zeit|fecha|heure"
)
_NO_TIME = re.compile(  # durations, not points in time, whatever the unit
    r"latency|latencies|duration|ttft|tpot|itl|e2e|timeout|slo|deadline|elapsed|runtime|lifetime|ratio|zone|budget"
)
_NO_TIME_TEXT = re.compile(r"time_(to|per|between|in|of)_|_rate$|(^|_)(price|cost)")
_COUNTS = re.compile(
    r"id|ids|idx|index|tokens?|toks?|len|lens|length|lengths|size|sizes|count|num|number|n|turns?|rounds?|priority|seed|"
    r"rank|score|ratio|weight|level|batch|class|type|label|version|line|row|key|hash|cost|price|temperature|top|rate|"
    r"model|name|users?|clients?|tenant|session|request|req|task|app|application|status|language|category|source|host|"
    r"port|pid|node|gpu|worker|topic"
)
_SAMPLE = 256  # values of a column that are looked at


def words(name: str) -> list[str]:
    """The words of a column name, the same for "arrivalTime", "Arrival Time" and "arrival_time"."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]


def unit_of(name: str) -> int | None:
    """Nanoseconds per unit of the unit that a name ends in ("arrival_ms"); None if it names none."""
    spelt = words(name)
    return _UNIT_OF.get(spelt[-1]) if len(spelt) > 1 else None


def unit_name(unit: int) -> str:
    """The word for a unit of so many nanoseconds."""
    return _UNIT_WORDS[unit][-1]


def named_like_a_time(name: str) -> bool:
    """Whether a name says that its column holds points in time, not durations."""
    spelt = words(name)
    if _tells_no_time(spelt):
        return False
    return any(_TIME.fullmatch(word) for word in spelt) or (len(spelt) > 1 and spelt[-1] in _UNIT_OF)


def _tells_no_time(spelt: Sequence[str]) -> bool:
    return any(_NO_TIME.fullmatch(word) for word in spelt) or bool(_NO_TIME_TEXT.search("_".join(spelt)))


def valued_like_a_time(name: str, values: Sequence[Any]) -> bool:
    """Whether a column's values can only be times: dates, seconds since 1970, or rising numbers that aren't an index.

    Not so if the name says that the column numbers or counts something.
    """
    there = [value for value in values[:_SAMPLE] if value is not ABSENT and value is not None and value != ""]
    spelt = words(name)
    if not there or not spelt or spelt[0] == "unnamed" or _tells_no_time(spelt):
        return False  # a column without a name is the index of some table
    if any(_COUNTS.fullmatch(word) for word in spelt):
        return False
    if all(isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[ T]\d\d:", value) for value in there):
        return True
    try:
        numbers = [math.nan if isinstance(value, bool) else float(value) for value in there]
    except (TypeError, ValueError, OverflowError):
        return False
    if all(1e9 <= number < 2.2e9 or 1e12 <= number < 2.2e12 or 1e15 <= number < 2.2e18 for number in numbers):
        return True
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    return len(there) == len(values[:_SAMPLE]) > 2 and min(steps) >= 0 and not steps <= {0.0, 1.0}
