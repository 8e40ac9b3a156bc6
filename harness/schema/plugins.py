"""The keys of a plug-in: the arguments of its constructor, with what its annotations say of them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from harness.schema.kinds import Choice, Either, Kind, Number, Switch, Text, Whole

GIVEN = ("self", "capacity", "max_model_len", "allocator", "reservation")  # by the program
OURS = ("allocators", "schedulers")
PLAIN: dict[Any, Kind] = {bool: Switch(), int: Whole(), float: Number(), str: Text()}


class Argument(NamedTuple):
    """An argument of a plug-in's constructor.

    Attributes:
        kind: what its annotation takes; None = anything, where it has none or one that is not plain.
        null: whether it takes null.
        default: what it is when nobody sets it; `inspect.Parameter.empty` where it must be set.
    """

    kind: Kind | None
    null: bool
    default: Any = inspect.Parameter.empty


@cache
def arguments(cls: Any) -> Mapping[str, Argument]:
    """By name, all that a class or function takes; what it hands on by `**kwargs` is its base's to say."""
    known: dict[str, Argument] = {}
    for parameters in _signatures(cls):
        for one in parameters:
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and one.name not in GIVEN:
                known.setdefault(one.name, _argument(one))
    return known


@cache
def takes_any(cls: Any) -> bool:
    """Whether it is a plug-in that takes what it does not name, by `**kwargs`, and judges it itself."""
    return cls.__module__.partition(".")[0] not in OURS and any(
        one.kind is one.VAR_KEYWORD for one in _signatures(cls)[0]
    )


def read(cls: Any, name: str, value: Any) -> Any:
    """A value as the argument `name` of a plug-in takes it.

    Raises:
        ValueError: its annotation takes no such value; the text completes "KEY must be".
    """
    argument = arguments(cls).get(name, Argument(None, True))
    kind, null = argument.kind, argument.null
    if kind is None or (value is None and null):
        return value
    try:
        return kind.read(value)
    except ValueError as error:
        raise ValueError(f"{kind}" + (", or null" if null else "") + (f"; {error}" if str(error) else "")) from None


def _signatures(cls: Any) -> list[list[inspect.Parameter]]:
    """Of a class and those bases to which it hands on what it does not name."""
    found = []
    for base in inspect.getmro(cls) if inspect.isclass(cls) else (cls,):
        found.append(_parameters(base))
        if not any(one.kind is one.VAR_KEYWORD for one in found[-1]):
            break
    return found


def _parameters(base: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(base, eval_str=True).parameters.values())
    except NameError:  # an annotation that names what is imported for type checkers only
        return [one.replace(annotation=one.empty) for one in inspect.signature(base).parameters.values()]


def _argument(one: inspect.Parameter) -> Argument:
    hint = one.annotation
    if hint is one.empty and isinstance(one.default, bool):  # nobody writes a default of True for a number
        return Argument(Switch(), True, one.default)
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [_kind(option) for option in options if option is not types.NoneType]
    if not kinds or None in kinds:
        return Argument(None, True, one.default)
    kind = kinds[0] if len(kinds) == 1 else Either(*kinds)  # type: ignore[arg-type]
    return Argument(kind, types.NoneType in options, one.default)


def _kind(hint: Any) -> Kind | None:
    if get_origin(hint) is Literal:
        names = get_args(hint)
        return Choice(*names) if all(isinstance(name, str) for name in names) else None
    return PLAIN.get(hint)
