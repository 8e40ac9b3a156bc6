"""What a key's value may be: kinds that read a value as YAML or the command line gives it, and say what they take.

A kind's `str` completes "KEY must be …". `read` gives the value as the program takes it (`off` is False, 12e9 is a
whole number) or raises ValueError, whose text, if any, is a hint. Whether null is allowed is the key's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.lookup import near

WORDS = {word: on for on, words in ((True, "true yes on y"), (False, "false no off n")) for word in words.split()}


class Kind(Protocol):
    """See the module."""

    def read(self, value: Any) -> Any:
        """The value as the program takes it. Raises ValueError."""


@dataclass(frozen=True)
class Switch:
    """True or false, or one of YAML's words for them, in any capitals and quoted or not."""

    def __str__(self) -> str:
        return "true or false"

    def read(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in WORDS:
            return WORDS[value.lower()]
        raise ValueError


@dataclass(frozen=True)
class Whole:
    """A whole number, both bounds included; 12e9 is one, true is none."""

    least: int | None = None
    most: int | None = None
    said: str = ""

    def __str__(self) -> str:
        return self.said or "a whole number" + _between(self.least, self.most)

    def read(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if not math.isfinite(value) or value != int(value):
            raise ValueError
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
            raise ValueError
        return int(value)


@dataclass(frozen=True)
class Number:
    """A finite number: `least` and `most` are included, `above` and `below` are not."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        words = "a finite number" + (f" above {self.above:g}" if self.above is not None else "")
        if self.above is not None and self.most is not None:
            words += f" and at most {self.most:g}"
        elif self.above is None:
            words += _between(self.least, self.most)
        return words + (f" and below {_power(self.below)}" if self.below is not None else "")

    def read(self, value: Any) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError
        if (self.least is not None and value < self.least) or (self.above is not None and value <= self.above):
            raise ValueError
        if (self.most is not None and value > self.most) or (self.below is not None and value >= self.below):
            raise ValueError
        return value


class Choice:
    """One of some names. A number is taken for its name: 0.33 for "0.33"."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}" if len(self.names) > 1 else self.names[0]

    def read(self, value: Any) -> str:
        if not isinstance(value, bool) and str(value) in self.names:
            return str(value)
        raise ValueError(near(value, self.names))


class Named:
    """One of the names that `known` lists now, or, with `what`, a path of something that is there.

    Args:
        what: what such a path leads to, for messages.
    """

    def __init__(self, known: Callable[[], Iterable[str]], what: str = "") -> None:
        self.known, self.what = known, what

    def __str__(self) -> str:
        return f"one of {', '.join(self.known())}" + (f", or {self.what}" if self.what else "")

    def read(self, value: Any) -> str:
        if isinstance(value, str) and (value in self.known() or (self.what and value and Path(value).exists())):
            return value
        raise ValueError(near(value, self.known()))


@dataclass(frozen=True)
class Text:
    """A name, a path or a sentence; a number is taken for one."""

    what: str = "a text"

    def __str__(self) -> str:
        return self.what

    def read(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise ValueError
        return str(value)


@dataclass(frozen=True)
class Spec:
    """A word, or a word and a number behind a colon, such as `fixed:N`.

    Attributes:
        words: those that stand alone.
        numbers: by word, what may follow its colon: (how that is called, its kind).
    """

    words: tuple[str, ...]
    numbers: Mapping[str, tuple[str, Kind]]

    def __str__(self) -> str:
        forms = [f"{word}:{name} ({kind})" for word, (name, kind) in self.numbers.items()]
        return f"{', '.join(self.words)} or {' or '.join(forms)}"

    def read(self, value: Any) -> str:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        word, colon, number = text.partition(":")
        if not colon and word in self.words:
            return text
        if colon and word in self.numbers:
            try:
                self.numbers[word][1].read(float(number))
            except ValueError:
                raise ValueError from None
            return text
        raise ValueError(near(word, [*self.words, *self.numbers]))


class Either:
    """What one of several kinds takes, the first that does."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = kinds

    def __str__(self) -> str:
        return ", or ".join(map(str, self.kinds))

    def read(self, value: Any) -> Any:
        hints = []
        for kind in self.kinds:
            try:
                return kind.read(value)
            except ValueError as error:
                hints.append(str(error))
        raise ValueError(next(filter(None, hints), ""))


@dataclass(frozen=True)
class Many:
    """A list, with `some` not an empty one."""

    of: Kind
    some: bool = False

    def __str__(self) -> str:
        return f"a list, each {self.of}"

    def read(self, value: Any) -> list[Any]:
        if isinstance(value, str) or not isinstance(value, Sequence) or (self.some and not value):
            raise ValueError
        return [self.of.read(item) for item in value]


@dataclass(frozen=True)
class Table:
    """A mapping with any keys."""

    of: Kind | None = None
    what: str = "a mapping"

    def __str__(self) -> str:
        return self.what + (f", each {self.of}" if self.of else "")

    def read(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise ValueError
        return {name: self.of.read(item) if self.of else item for name, item in value.items()}


@dataclass(frozen=True)
class Object:
    """A mapping that names a class by `_target_`, with its arguments beside it."""

    what: str

    def __str__(self) -> str:
        return f"{self.what} (`{{_target_: my.Class, …}}`)"

    def read(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise ValueError
        if not isinstance(value.get("_target_"), str):
            raise ValueError("a mapping names its class by _target_")
        return dict(value)


def _between(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {_power(least)} to {_power(most)}"
    if least is not None:
        return f" of at least {_power(least)}"
    return f" of at most {_power(most)}" if most is not None else ""


def _power(value: float) -> str:
    """2**64 - 1 as people write it."""
    whole = int(value)
    if whole == value and whole >= 2**31 - 1:
        for rest in (0, -1):
            if (whole - rest).bit_count() == 1:
                return f"2**{(whole - rest).bit_length() - 1}" + (" - 1" if rest else "")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
