"""In which order waiting sequences are admitted: an object that gives each a key, the lowest first."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from itertools import islice
from typing import Any

from allocators.base import Allocator
from schedulers.quiet import vouched
from schedulers.request import Sequence


class Order(ABC):
    """Who of those that wait is admitted first. To write one, subclass it and write `key`; the rest is there for speed.

    It is named in a configuration as `scheduler.policy={_target_: my_package.MyOrder, …}`.

    Attributes:
        preempted_first: whether preempted sequences come before all others, whatever their keys.
        look_ahead: so many of the queue's first are compared where keys are not fixed; None = all.
    """

    preempted_first: bool = False
    look_ahead: int | None = None

    @abstractmethod
    def key(self, seq: Sequence, now: int) -> Any:
        """The lowest is admitted first; of equal ones, who came into the queue first.

        Args:
            now: when the step is scheduled (ns); where keys are fixed, any time since `seq` came.
        """

    @property
    def fixed(self) -> bool:
        """Whether the key of a sequence stays the same while it waits: then the queue is kept sorted, else all that
        wait are compared at each admission. It is said of `key` as it stands: who writes another says it once more.
        """
        return False

    @property
    def overtakes(self) -> bool:
        """Whether one that has just come may go before one that waits; said of `key` as it stands, too."""
        return True

    def for_pool(self, allocator: Allocator) -> Order:
        """This order for a scheduler over `allocator`: another object where it looks at the pool."""
        return self


class Fcfs(Order):
    """First come, first served."""

    preempted_first = True

    def key(self, seq: Sequence, now: int) -> Any:
        return 0

    @property
    def fixed(self) -> bool:
        return True

    @property
    def overtakes(self) -> bool:
        return False


class Priority(Order):
    """The lowest number first (vLLM's `priority`), then the earliest arrival."""

    def key(self, seq: Sequence, now: int) -> Any:
        return seq.request.priority, seq.request.arrival_ns, seq.request.id

    @property
    def fixed(self) -> bool:
        return True


class ShortestFirst(Order):
    """The shortest answer first, by what `length_predictor` expected of it when it came, then the earliest arrival."""

    def key(self, seq: Sequence, now: int) -> Any:
        return seq.expected, seq.request.arrival_ns, seq.request.id

    @property
    def fixed(self) -> bool:
        return True


class EarliestDeadline(Order):
    """Whose first token, or last, is due soonest, as its request says, goes first; then the earliest arrival."""

    def key(self, seq: Sequence, now: int) -> Any:
        request, due = seq.request, math.inf
        if request.ttft_slo_ms is not None:
            due = request.arrival_ns + request.ttft_slo_ms * 1e6
        if request.deadline_ns is not None:
            due = min(due, request.deadline_ns)
        return due, request.arrival_ns, request.id

    @property
    def fixed(self) -> bool:
        return True


class LongestPrefix(Order):
    """The most tokens in the pool first, so that what is cached is used before it is gone."""

    preempted_first = True
    look_ahead: int | None = 128

    def __init__(self, allocator: Allocator | None = None) -> None:
        self.allocator = allocator

    def for_pool(self, allocator: Allocator) -> Order:
        return LongestPrefix(allocator)

    def key(self, seq: Sequence, now: int) -> Any:
        return 0 if self.allocator is None else -self.allocator.lookup(seq, seq.num_tokens - 1).tokens

    @property
    def fixed(self) -> bool:
        """Nothing is ever found in a pool that shares nothing."""
        return not getattr(self.allocator, "shares", False)


ORDERS: dict[str, type[Order]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "shortest_first": ShortestFirst,
    "longest_prefix": LongestPrefix,
    "earliest_deadline": EarliestDeadline,
}


def order_of(policy: str | Order, allocator: Allocator) -> Order:
    """The order that `scheduler.policy` means, for a scheduler over `allocator`.

    Raises:
        ValueError: it is neither the name of one nor one itself.
    """
    if isinstance(policy, str) and policy in ORDERS:
        return ORDERS[policy]().for_pool(allocator)
    if isinstance(policy, Order):
        return policy.for_pool(allocator)
    raise ValueError(
        f"scheduler.policy must be one of {', '.join(ORDERS)}, or an Order (as {{_target_: my.Order}}), got {policy!r}"
    )


class QueueOrder:
    """How a queue is kept in an order.

    Attributes:
        sorted: whether the queue is: then its head is the first.
        overtakes: whether one that enters may go before one that waits.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.sorted = order.fixed and vouched(order, "fixed")
        self.overtakes = order.overtakes or not vouched(order, "overtakes")

    def enter(self, waiting: deque[Sequence], seq: Sequence) -> None:
        """Let `seq` wait: at its place in a sorted queue, else at the end."""
        if not (self.sorted and self.overtakes and waiting) or self._rank(waiting[-1]) <= self._rank(seq):
            waiting.append(seq)
        else:
            insort(waiting, seq, key=self._rank)

    def bring_forward(self, waiting: deque[Sequence], now: int | None) -> None:
        """Bring the first, by the keys as they are `now`, to the front of a queue that is not sorted."""
        if self.order.preempted_first and waiting[0].preemptions:
            return
        first = min(islice(waiting, self.order.look_ahead), key=lambda seq: self.key(seq, now))
        if first is not waiting[0]:
            waiting.remove(first)
            waiting.appendleft(first)

    def key(self, seq: Sequence, now: int | None) -> Any:
        """As the order says it.

        Raises:
            TypeError: it goes by the time, and nobody said it.
        """
        try:
            return self.order.key(seq, now)  # type: ignore[arg-type]
        except TypeError as error:
            if now is not None:
                raise
            name = type(self.order).__name__
            raise TypeError(f"{name} goes by the time: begin each step with Batch(now=now) ({error})") from error

    def _rank(self, seq: Sequence) -> Any:
        key = self.order.key(seq, seq.request.arrival_ns)
        return (not seq.preemptions, key) if self.order.preempted_first else key
