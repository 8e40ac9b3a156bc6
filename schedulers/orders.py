"""The order in which waiting sequences are admitted: an object that gives each sequence a key, the lowest first."""

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
    """The order of admission. To write one, subclass it and write `key`; the rest is there for speed.

    A configuration names it as `scheduler.policy={_target_: my_package.MyOrder, …}`.

    Attributes:
        preempted_first: whether preempted sequences come before all others, whatever their keys.
        look_ahead: how many sequences from the head on are compared if keys are not fixed; None = all.
    """

    preempted_first: bool = False
    look_ahead: int | None = None

    @abstractmethod
    def key(self, seq: Sequence, now: int) -> Any:
        """The sequence with the lowest key is admitted first; among equal keys, the one that was queued first.

        Args:
            now: when the step is scheduled (ns); if keys are fixed, any time since the arrival of `seq`.
        """

    @property
    def fixed(self) -> bool:
        """Whether a sequence's key stays the same while it waits. Then the queue is kept sorted; else waiting sequences
        are compared at each admission. A subclass that overrides `key` must define this again.
        """
        return False

    @property
    def overtakes(self) -> bool:
        """Whether a new sequence may go before a waiting one. A subclass that overrides `key` must define it again."""
        return True

    def for_pool(self, allocator: Allocator) -> Order:
        """The order for a scheduler over `allocator`: a new object if the order looks at the pool."""
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
    """The shortest output first, as `length_predictor` expected it at arrival, then the earliest arrival."""

    def key(self, seq: Sequence, now: int) -> Any:
        return seq.expected, seq.request.arrival_ns, seq.request.id

    @property
    def fixed(self) -> bool:
        return True


class EarliestDeadline(Order):
    """The earliest deadline of a first or last token first, from the request's limits; then the earliest arrival."""

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
    """The longest prefix hit first, so that cached blocks are used before they are evicted."""

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
        """Keys are always 0 if the allocator does not share slots."""
        return not getattr(self.allocator, "shares", False)


ORDERS: dict[str, type[Order]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "shortest_first": ShortestFirst,
    "longest_prefix": LongestPrefix,
    "earliest_deadline": EarliestDeadline,
}


def order_of(policy: str | Order, allocator: Allocator) -> Order:
    """The order that `scheduler.policy` names, for a scheduler over `allocator`.

    Raises:
        ValueError: `policy` is neither the name of an order nor an `Order`.
    """
    if isinstance(policy, str) and policy in ORDERS:
        return ORDERS[policy]().for_pool(allocator)
    if isinstance(policy, Order):
        return policy.for_pool(allocator)
    raise ValueError(
        f"scheduler.policy must be one of {', '.join(ORDERS)}, or an Order (as {{_target_: my.Order}}), got {policy!r}"
    )


class QueueOrder:
    """Keeps a queue in an order.

    Attributes:
        sorted: whether the queue is kept sorted; then its head is the first.
        overtakes: whether a new sequence may go before one that waits.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.sorted = order.fixed and vouched(order, "fixed")
        self.overtakes = order.overtakes or not vouched(order, "overtakes")

    def insert(self, waiting: deque[Sequence], seq: Sequence) -> None:
        """Insert `seq`: at its place in a sorted queue, else at the end."""
        if not (self.sorted and self.overtakes and waiting) or self._rank(waiting[-1]) <= self._rank(seq):
            waiting.append(seq)
        else:
            insort(waiting, seq, key=self._rank)

    def move_first_to_front(self, waiting: deque[Sequence], now: int | None) -> None:
        """Move the sequence with the lowest key at time `now` to the front of a queue that is not sorted."""
        if self.order.preempted_first and waiting[0].preemptions:
            return
        first = min(islice(waiting, self.order.look_ahead), key=lambda seq: self.key(seq, now))
        if first is not waiting[0]:
            waiting.remove(first)
            waiting.appendleft(first)

    def key(self, seq: Sequence, now: int | None) -> Any:
        """The order's key.

        Raises:
            TypeError: the order depends on the time, and `now` is None.
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
