"""Which column holds the arrival times of a trace, and in which unit."""

from __future__ import annotations

from typing import Any

from harness.workload.errors import WorkloadError
from harness.workload.readers.checks import Integers
from harness.workload.readers.detect import ASK, no_such_column
from harness.workload.readers.format import (
    ABSENT,
    MICROSECOND,
    MILLISECOND,
    NANOSECOND,
    SECOND,
    UNITS,
    Chunk,
    Format,
)
from harness.workload.readers.names import named_like_a_time, unit_name, unit_of, valued_like_a_time

_BUSY, _SLEEPY = 200.0, 0.005  # requests per second; outside this range another unit is likelier
_SINCE_1970 = ((1e17, NANOSECOND), (1e14, MICROSECOND), (1e11, MILLISECOND))  # from this number on, the unit


class TimeColumn:
    """The arrival times of a trace while it is read.

    Attributes:
        column: the column that holds them; None until a row has one.
        unit: nanoseconds per unit; None until a number is read.
        dates: whether times were dates.
    """

    def __init__(self, layout: Format, path: str, time_unit: str | None, named: str | None) -> None:
        self.column: str | None = None
        self.unit: int | None = None
        self.dates = False
        self._layout, self._path, self._named = layout, path, named  # the field by which the user named it, or None
        self._asked = None if time_unit is None else UNITS[time_unit]
        self._others: dict[str, list[Any]] = {}  # unread columns, with some of their values
        self._also: dict[str, None] = {}  # the format's other time columns

    def settle(self, chunk: Chunk) -> str | None:
        """The column to check in this chunk: the first of the format's time columns that any row has, else None.

        Raises:
            WorkloadError: no row has a time, but another column looks like one.
        """
        self._others = chunk.others | self._others
        there = [name for name, _ in self._layout.times if any(v is not ABSENT for v in chunk.columns.get(name, ()))]
        if self.column is None and there:
            self.column = there[0]
        elif not there:
            self.refuse_others()
        self._also |= dict.fromkeys(there)
        return self.column or (None if self._layout.untimed else self._layout.times[0][0])

    def refuse_others(self) -> None:
        """Raises if no time was found and an unread column looks like one."""
        if self.column is not None:
            return
        if self._named is not None:
            raise no_such_column(self._path, self._named, self._layout.times[0][0], list(self._others))
        suspects = [name for name in self._unread() if named_like_a_time(name)]
        suspects = suspects or [name for name in self._unread() if valued_like_a_time(name, self._others[name])]
        if not suspects:
            return
        known = ", ".join(name for name, _ in self._layout.times) or "none"
        key = f"arrival_{_SHORT[unit_of(suspects[0]) or SECOND]}"
        raise WorkloadError(
            f"{self._path}: the file as a whole has no arrival time that {self._layout.name} knows ({known}), but "
            f"{' and '.join(suspects)} look{'' if len(suspects) > 1 else 's'} like one: "
            f"workload.columns={{{key}: {suspects[0]}}} reads it (arrival_s, _ms, _us or _ns by its unit), "
            "workload.arrival=burst, poisson, gamma or closed_loop goes without"
        )

    def _unread(self) -> list[str]:
        return [name for name in self._others if name not in self._layout.passed_over]

    def per(self, largest: float) -> int:
        """Nanoseconds per unit, decided by the first numbers read, of which `largest` is the largest.

        Raises:
            WorkloadError: the column was named without a unit.
        """
        if self.unit is None:
            unit = self._asked or dict(self._layout.times).get(self.column or "", SECOND)
            if unit == ASK:
                raise WorkloadError(
                    f"workload.columns.arrival={self.column}: in which unit? workload.time_unit=s, ms, us or ns says so"
                )
            self.unit = unit or next((unit for least, unit in _SINCE_1970 if largest >= least), SECOND)
        return self.unit

    def is_told(self) -> bool:
        """Whether the unit of the numbers is stated, by the user or by the column's name."""
        return bool(self._asked or unit_of(self._named or "") or unit_of(self.column or ""))

    def doubts(self, rate: float | None) -> list[str]:
        """What looks wrong with the times: an assumed unit that is unlikely, or another column that could be meant.

        Args:
            rate: requests per second.
        """
        said = []
        if self.column is not None and not self._layout.unfold:
            alike = [name for name in self._unread() if named_like_a_time(name)]
            alike += [name for name in self._also if name != self.column]
            said += [f"{name} looks like a time too and is not read: arrivals are {self.column}" for name in alike]
        if self._asked and self.dates:
            said.append("workload.time_unit has no effect: the times are dates")
        if rate is None or self.unit is None or self.is_told():
            return said
        likely = None
        if rate > _BUSY and self.unit < SECOND:
            likely = next(unit for unit in (MICROSECOND, MILLISECOND, SECOND)
                          if unit > self.unit and (rate * self.unit / unit <= _BUSY or unit == SECOND))  # fmt: skip
        elif rate < _SLEEPY and self.unit > NANOSECOND:
            likely = {SECOND: MILLISECOND, MILLISECOND: MICROSECOND, MICROSECOND: NANOSECOND}[self.unit]
        if likely is not None:
            said.append(
                f"{self.column} was read in {unit_name(self.unit)}, which makes {rate:,.4g} requests a second: "
                f"that looks like {unit_name(likely)}; workload.time_unit={_SHORT[likely]} reads them so "
                f"(time_unit={_SHORT[self.unit]} says that it is right)"
            )
        return said

    def described(self) -> str:
        """The unit, for people."""
        if self.dates and self.unit is None:
            return "dates"
        if self.unit is None:
            return "no times"
        guessed = not self.is_told() and dict(self._layout.times).get(self.column or "") is None
        return f"in {unit_name(self.unit)}{' (assumed)' if guessed else ''}"


_SHORT = {unit: name for name, unit in UNITS.items()}


def offered_rate(arrival: Integers) -> float | None:
    """Requests per second: gaps over the span between first and last arrival; None without a span."""
    span = int(arrival[-1]) - int(arrival[0])
    return (len(arrival) - 1) * SECOND / span if span else None
