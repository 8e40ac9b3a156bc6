"""Hooks of plug-ins that have another name now: a class that still defines the old one is refused, with the new."""

from __future__ import annotations

ALLOCATOR_HOOKS = {
    "cuts": "aligned_chunks",
    "expect_steps": "limit_step_tokens(tokens)",
    "give_back": "free_unread(holder)",
    "lacks": "exceeds_free(ask)",
    "more_books": "extra_books()",
    "more_columns": "extra_columns",
    "piece": "chunk_tokens(holder, hit, count, most)",
    "refusals_last": "refusals_persist",
    "takes": "describe_footprint(tokens)",
}


def refuse_renamed(cls: type, renamed: dict[str, str]) -> None:
    """See that a plug-in's class defines no hook by its old name.

    Args:
        renamed: old names, and for each what stands in its place.

    Raises:
        TypeError: it defines one; the message names the new one.
    """
    for name, new in renamed.items():
        if hasattr(cls, name):
            raise TypeError(f"{cls.__module__}.{cls.__qualname__} defines {name}, which is asked no more; it is {new}")
