"""What time it is in a replay: integer nanoseconds since its start."""

from __future__ import annotations

import time


class Clock:
    """A virtual clock: only what a latency model predicts takes time.

    Each piece of work is bracketed with `tick` and `charge`; what a piece costs is the clock's business.

    Attributes:
        virtual: whether steps may be predicted, so that several engines can run at once.
    """

    virtual = True

    def __init__(self) -> None:
        self._now = 0

    @property
    def now(self) -> int:
        return self._now

    def tick(self) -> int:
        """A mark to hand to `charge`."""
        return 0

    def charge(self, since: int, simulated_ns: int = 0) -> int:
        """The nanoseconds that what was done since the mark `since` took; a predicted step ends later, see `ends`."""
        return simulated_ns

    def ends(self, begun: int, ns: int) -> int:
        """When (ns) a step is done that began at `begun` and was charged `ns`."""
        return begun + ns

    def wait_until(self, when: int) -> int:
        """Let time pass until `when` (ns); what time it is then."""
        if when > self._now:
            self._now = when
        return self._now


class MeasuredClock(Clock):
    """Advances by the measured time of the work itself; idle gaps are skipped and recording costs nothing."""

    virtual = False

    def tick(self) -> int:
        return time.perf_counter_ns()

    def charge(self, since: int, simulated_ns: int = 0) -> int:
        spent = time.perf_counter_ns() - since
        self._now += spent
        return spent

    def ends(self, begun: int, ns: int) -> int:
        return self.now


class WallClock(MeasuredClock):
    """Real time: sleeps until arrivals, and everything counts."""

    def __init__(self) -> None:
        super().__init__()
        self._zero = time.perf_counter_ns()

    @property
    def now(self) -> int:
        return time.perf_counter_ns() - self._zero

    def charge(self, since: int, simulated_ns: int = 0) -> int:
        return time.perf_counter_ns() - since

    def wait_until(self, when: int) -> int:
        while (left := when - self.now) > 0:
            time.sleep(left / 1e9)
        return self.now


CLOCKS = {"virtual": Clock, "measured": MeasuredClock, "wall": WallClock}
