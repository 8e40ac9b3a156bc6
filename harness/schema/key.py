"""A key of the configuration, as one line of the schema declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.schema.kinds import Kind

Values = Mapping[str, Any]  # the whole configuration as plain, nested values


class When(NamedTuple):
    """When a key has an effect.

    Attributes:
        text: completes "it counts only …".
        holds: whether it does in a configuration.
    """

    text: str
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class Key:
    """A key.

    Attributes:
        name: dotted.
        kind: what its values may be.
        about: one sentence for people.
        unit: of a number.
        null: whether null is allowed, too.
        needed: whether a configuration without it is none.
        when: all of them must hold, or the key has no effect.
        hint: said behind a refusal.
    """

    name: str
    kind: Kind
    about: str
    unit: str = ""
    null: bool = False
    needed: bool = False
    when: tuple[When, ...] = ()
    hint: str = ""

    def read(self, value: Any) -> Any:
        """The value as the program takes it.

        Raises:
            ValueError: it is none; the text is a whole sentence that begins with the key and the value.
        """
        if value is None and self.null:
            return None
        try:
            return self.kind.read(value)
        except ValueError as error:
            hints = "".join(f"; {hint}" for hint in (str(error), self.hint) if hint)
            raise ValueError(f"{self.name}={value}: {self.name} must be {self.takes}{hints}") from None

    @property
    def takes(self) -> str:
        """``a whole number of at least 1 (tokens), or null``."""
        return f"{self.kind}" + (f" ({self.unit})" if self.unit else "") + (", or null" if self.null else "")


def at(values: Any, name: str) -> Any:
    """What lies at a dotted key; None where there is nothing."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def where(name: str, *wanted: Any) -> When:
    """With one of some values of another key."""
    return When(f"with {name}={' or '.join(map(str, wanted))}", lambda values: at(values, name) in wanted)


def without(name: str) -> When:
    """While another key is not set."""
    return When(f"without {name}", lambda values: at(values, name) is None)


def having(name: str) -> When:
    """While another key is set."""
    return When(f"with {name}", lambda values: at(values, name) is not None)
