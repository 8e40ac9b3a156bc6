"""What time it is in a replay: integer nanoseconds since its start."""

from __future__ import annotations

import time


class Clock:
    """A virtual clock: only what a latency model predicts takes time.

    The replayer brackets each piece of work with `tick` and `charge`; what a piece costs is the clock's business.
    """

    def __init__(self) -> None:
        self._now = 0

    @property
    def now(self) -> int:
        return self._now

    def tick(self) -> int:
        """A mark to hand to `charge`."""
        return 0

    def charge(self, since: int, simulated_ns: int = 0) -> int:
        """Advance by what was done since the mark `since`; the nanoseconds charged."""
        self._now += simulated_ns
        return simulated_ns

    def wait_until(self, when: int) -> None:
        """Let time pass until `when` (ns)."""
        self._now = max(self._now, when)


class MeasuredClock(Clock):
    """Advances by the measured time of the work itself; idle gaps are skipped and recording costs nothing."""

    def tick(self) -> int:
        return time.perf_counter_ns()

    def charge(self, since: int, simulated_ns: int = 0) -> int:
        spent = time.perf_counter_ns() - since
        self._now += spent
        return spent


class WallClock(Clock):
    """Real time: sleeps until arrivals, and everything counts."""

    def __init__(self) -> None:
        self._zero = time.perf_counter_ns()

    @property
    def now(self) -> int:
        return time.perf_counter_ns() - self._zero

    def tick(self) -> int:
        return time.perf_counter_ns()

    def charge(self, since: int, simulated_ns: int = 0) -> int:
        return time.perf_counter_ns() - since

    def wait_until(self, when: int) -> None:
        while (left := when - self.now) > 0:
            time.sleep(left / 1e9)


CLOCKS = {"virtual": Clock, "measured": MeasuredClock, "wall": WallClock}
