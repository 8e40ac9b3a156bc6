"""Steps that only repeat the step before: what a scheduler predicts about them, and when the prediction is used."""

from __future__ import annotations

from itertools import takewhile
from types import FunctionType
from typing import NamedTuple

from allocators.base import Ask


class Quiet(NamedTuple):
    """How long a scheduler only decodes: the next steps give each sequence of the batch its next token.

    Such steps end in any case with the first step in which a sequence finishes, with the first step that ends at or
    after the scheduler's wake-up time (`Scheduler.wake_at`), and before the first step that is refused room.

    Attributes:
        until: when (ns) `schedule` might do something else for another reason; None = never.
        arrivals: whether an arrival could change the next batch, or change the length predicted for the request. True
            is always right, but slower.
        blocked: what the queue's head is refused for lack of memory in each of these steps; None = it is not refused.
    """

    until: int | None = None
    arrivals: bool = True
    blocked: Ask | None = None


def vouched(plugin: object, hook: str) -> bool:
    """Whether `hook`, which handles many steps at once, covers everything that `plugin` does in a single step.

    It does if no subclass of the class that defines the hook, nor the object itself, overrides any other code of that
    class. Implementing an abstract method does not count, nor do names like `__init__`. So if a subclass changes part
    of a plug-in without knowing of the hook, its steps are taken one by one; if it knows the hook, it defines it again,
    even if only as `super().hook(…)`.
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
    """Whether a method was set on the object itself. Not read from `__dict__`, which would slow the object down."""
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
