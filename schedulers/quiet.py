"""Steps that only repeat one another: what a scheduler foretells of them, and when such a word can be relied on."""

from __future__ import annotations

from itertools import takewhile
from types import FunctionType
from typing import NamedTuple

from allocators.base import Ask


class Quiet(NamedTuple):
    """What bounds the steps that give each sequence of a batch its next token, and do nothing else.

    They end in any case with the first in which a sequence finishes, with the first that ends when the scheduler wants
    to be woken (`Scheduler.wake_at`) or later, and before the first in which a sequence is refused room.

    Attributes:
        until: when (ns) `schedule` might do something else for another reason; None = never.
        arrivals: whether a request that arrives could change the next batch, or be expected to be of another length
            than if it were known a few steps later. True is always right, and slower.
        blocked: what the queue's head is refused for lack of memory in each of these steps; None = nobody is.
    """

    until: int | None = None
    arrivals: bool = True
    blocked: Ask | None = None


def vouched(plugin: object, hook: str) -> bool:
    """Whether `hook`, which tells many steps at once, knows all that `plugin` does in a single one.

    It does if nothing below the class that defines it, nor the object itself, replaces any code of that class. To write
    what was left abstract replaces nothing, and what is named `__so__`, constructors above all, is left aside. So who
    changes a part of a plug-in and never heard of `hook` is asked step by step; who has heard of it defines it once
    more, were it as `super().hook(…)`.
    """
    classes = type(plugin).__mro__
    below = list(takewhile(lambda cls: hook not in vars(cls), classes))
    if len(below) == len(classes):
        return False
    definer = classes[len(below)]
    known = {name for name in dir(definer) if not name.startswith(("__", "_abc_"))}
    for at, cls in enumerate(below):
        for name in known.intersection(vars(cls)):
            before = next(vars(other)[name] for other in classes[at + 1 :] if name in vars(other))
            if not getattr(before, "__isabstractmethod__", False):
                return False
    return not any(_set_on(plugin, name, getattr(definer, name)) for name in known)


def _set_on(plugin: object, name: str, code: object) -> bool:
    """Whether an object has a method of its own. Asked by name: who reads an object's `__dict__` slows it down."""
    if not isinstance(code, FunctionType) or getattr(code, "__isabstractmethod__", False):
        return False
    mine = getattr(plugin, name)
    return getattr(mine, "__func__", mine) is not getattr(type(plugin), name)


SCHEDULER_HOOKS = {
    "ahead": "async_scheduling",
    "arrivals_matter": "quiet(batch), whose answer has the field `arrivals`",
    "blocked_next": "quiet(batch), whose answer has the field `blocked`",
    "cuts_pieces": "aligns_chunks",
    "find_room": "grow_or_preempt(seq, tokens, batch)",
    "lacking": "shortfall(seq, budget)",
    "make_way": "preempt_for(seq, batch)",
    "newcomers_matter": "arrivals_could_join()",
    "refused_next": "refusal_ahead(), whose answer is for the field `blocked` of that of quiet(batch)",
    "several_answers": "supports_groups",
    "steady": "quiet(batch), which returns what bounds the steps that only repeat the batch, or None",
    "withdraw": "remove_running(seq, batch)",
}  # of earlier versions, and what stands in their place; see `allocators.renamed`
