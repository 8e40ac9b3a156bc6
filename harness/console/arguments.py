"""The command line before Hydra reads it: paths as people have them need no quotes of Hydra's.

Hydra's grammar gives commas, brackets, quotes and equals signs a meaning of their own and knows no accents. Of the
keys whose value is a path, a value that Hydra would read as something else is put in its quotes here.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from harness.errors import HarnessError

INPUTS = ("workload.path", "model.path", "model.config", "device.latency", "device.hardware", "validate.measured",
          "validate.profile", "validate.meta", "validate.prompts")  # fmt: skip
FROM_LOG = "from_log:"  # a value of kv_slots
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_MOST_WORDS = 12  # that a path may have been split into


def quoted(words: Sequence[str]) -> list[str]:
    """The words of a command line, with the paths among them in Hydra's quotes where they need them, `~` expanded.

    Raises:
        HarnessError: the shell has split a path at its spaces.
    """
    done: list[str] = []
    for place, word in enumerate(words):
        key, equals, value = word.partition("=")
        if equals and key.lstrip("+") in INPUTS:
            refuse_split(value, words[place + 1 :], f"{key}=")
            word = f"{key}={_input(value)}"
        elif equals and key.lstrip("+") in FOLDERS and not _reads_as_it_is(value):
            word = f"{key}={_in_quotes(os.path.expanduser(value))}"
        elif value.startswith(FROM_LOG) and _exists(value.removeprefix(FROM_LOG)) and not _reads_as_it_is(value):
            word = f"{key}={_in_quotes(value)}"
        done.append(word)
    return done


def is_override(word: str) -> bool:
    """Whether a word is none of Hydra's flags, nor the value of one."""
    return word.startswith("~") or ("=" in word and not word.startswith("-"))


def refuse_split(path: str, rest: Sequence[str], before: str = "") -> None:
    """Raises if `path` exists only together with words behind it: the shell has split it.

    Args:
        before: what stood before the path in its word.
    """
    joined = path
    for word in [] if os.path.exists(os.path.expanduser(path)) else rest[:_MOST_WORDS]:
        joined += f" {word}"
        if os.path.exists(os.path.expanduser(joined)):
            raise HarnessError(f"the shell has split a path at its spaces; quote it: {_typed(before + joined)}")


def with_quotes(word: str) -> str:
    """A word `key=value` that Hydra cannot read, as it can be typed instead; "" where quotes would not help."""
    key, equals, value = word.partition("=")
    helps = equals and re.fullmatch(r"[+~]{0,2}[\w./@:-]+", key)
    return _typed(f"{key}={_in_quotes(value)}") if helps else ""


def keys_of(words: Sequence[str], group: str) -> dict[str, Any]:
    """The keys of a group that words such as `workload.time_unit=s` set, outside Hydra.

    Raises:
        HarnessError: a word sets nothing, or a key of something else.
    """
    found: dict[str, Any] = {}
    for word in words:
        override = _parsed(word)
        if override is None:
            hint = f"; quote its value: {with_quotes(word)}" if with_quotes(word) else ""
            raise HarnessError(f"{word!r} is not {group}.KEY=VALUE{hint}")
        path = override.key_or_group.split(".")
        if path[0] != group or len(path) < 2 or override.is_sweep_override() or override.is_delete():
            raise HarnessError(f"{word!r}: only {group}.KEY=VALUE goes here")
        into = found
        for name in path[1:-1]:
            into = into.setdefault(name, {})
        into[path[-1]] = override.value()
    return found


def value_of(text: str) -> Any:
    """A value as Hydra reads it from a command line; the text itself where it can't.

    Raises:
        ValueError: it is a sweep.
    """
    override = _parsed(f"key={text}")
    if override is not None and override.is_sweep_override():
        raise ValueError(f"{text}: a list has brackets: [{text}]")
    return text if override is None else override.value()


def _input(value: str) -> str:
    """The value of a key that names something to read: what exists is meant, whatever Hydra would make of it."""
    if _exists(value):
        return _in_quotes(os.path.expanduser(value).replace("${", r"\${"))
    if "," in value and (parts := next(_splits(value.split(",")), None)):
        return ",".join(_in_quotes(os.path.expanduser(part).replace("${", r"\${")) for part in parts)  # a sweep
    return value if _parsed(f"key={value}") else _in_quotes(os.path.expanduser(value))


def _splits(pieces: list[str]) -> Iterator[list[str]]:
    """Ways to join pieces of a text that was split at commas so that each part is a path that exists."""
    if not pieces:
        yield []
    for count in range(1, len(pieces) + 1):
        first = ",".join(pieces[:count])
        if _exists(first):
            yield from ([first, *rest] for rest in _splits(pieces[count:]))


def _exists(value: str) -> bool:
    return bool(value) and value != "null" and os.path.exists(os.path.expanduser(value))


def _reads_as_it_is(value: str) -> bool:
    """Whether Hydra takes a value for this very text, or for a text that its author has put in quotes."""
    override = _parsed(f"key={value}")
    if override is None or override.is_sweep_override():
        return False
    return override.value() == value or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\"")


def _in_quotes(value: str) -> str:
    return QuotedString(text=value, quote=Quote.single).with_quotes()


def _typed(word: str) -> str:
    """A word in the quotes that a shell needs, double ones where these do."""
    return shlex.quote(word) if re.search(r'["$`\\!]', word) else f'"{word}"'


def _parsed(word: str) -> Override | None:
    try:
        override: Override = OverridesParser.create().parse_override(word)
    except HydraException:
        return None
    return override
