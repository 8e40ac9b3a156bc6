"""In which order waiting sequences are admitted: each policy is a sort key, the lowest first, ties by arrival."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schedulers.request import Sequence

Order = Callable[[Sequence], tuple[Any, ...]]


def by_priority(seq: Sequence) -> tuple[int, int, int]:
    """The lowest number first (vLLM's `priority`)."""
    return seq.request.priority, seq.request.arrival_ns, seq.request.id


def by_length(seq: Sequence) -> tuple[int, int, int]:
    """The shortest answer first, by what was expected of it when it came."""
    return seq.expected, seq.request.arrival_ns, seq.request.id


ORDERS: dict[str, Order | None] = {
    "fcfs": None,
    "priority": by_priority,
    "shortest_first": by_length,
    "longest_prefix": None,  # depends on what is cached: chosen anew at each admission
}
