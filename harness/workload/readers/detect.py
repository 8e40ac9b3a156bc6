"""Recognises a trace's format by its header or keys; an error says what else the file seems to be."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.lookup import hint
from harness.workload.errors import WorkloadError
from harness.workload.fields import FIELDS, OPTIONAL
from harness.workload.readers import (
    agents,
    apex,
    azure,
    benchmarks,
    burstgpt,
    castillo,
    chats,
    kvlab,
    llmservingsim,
    mooncake,
    servegen,
    splitwise,
    text,
    vidur,
    vtc,
)
from harness.workload.readers.format import Format, Unreadable
from harness.workload.readers.names import unit_of, words
from harness.workload.readers.plain import SHOWN, plain
from harness.workload.readers.source import Source

_FAMILIES = (kvlab, azure, mooncake, burstgpt, vidur, llmservingsim, text, vtc, servegen, apex, castillo, splitwise,
             chats, agents, benchmarks)  # fmt: skip
KNOWN: tuple[Format, ...] = tuple(layout for family in _FAMILIES for layout in family.FORMATS)
NAMEABLE = ("arrival", *(f"arrival_{unit}" for unit in ("s", "ms", "us", "ns")),
            *(field.name for field in FIELDS if field.kind != "time"))  # fmt: skip
_ALIKE = 0.6  # of 1: below, naming a nearest format would mislead


def detect(source: Source, named: Mapping[str, str]) -> Format:
    """The format all of whose required names the file has; of several, the one that requires most.

    Args:
        named: `workload.columns`: field → column, which overrides the format's.

    Raises:
        WorkloadError: no format fits (the message shows how the file begins, the nearest format and all known ones),
            a recognised file holds no requests, or a named column does not exist.
    """
    for field, column in named.items():
        if column not in source.header and source.kind != "json":
            raise no_such_column(source.path, field, column, source.header)
    fits = [layout for layout in KNOWN if set(layout.required) <= set(source.header)]
    layout = (
        max(fits, key=lambda layout: len(layout.required)) if fits else plain(source.path, source.header, list(named))
    )
    if layout is None:
        raise WorkloadError(f"{source.path}:{source.first_line}: not a trace: it begins with {source.first_text!r}"
                            f"{_nearest(source)}{_known()}")  # fmt: skip
    if layout.instead:
        raise WorkloadError(f"{source.path}: the file as a whole is {layout.name}: {layout.instead}")
    if not named:
        return layout
    known = dict(layout.times)
    times = tuple((column, unit_of(field) or (known[column] if column in known else unit_of(column) or ASK))
                  for field, column in named.items() if field.startswith("arrival"))  # fmt: skip
    columns = {field: column for field, column in named.items() if not field.startswith("arrival")}
    return replace(layout, columns={**layout.columns, **columns}, times=times or layout.times)


ASK = -1  # the unit of a column named without one: only `workload.time_unit` can say it, unless it holds dates


def no_such_column(path: str, field: str, column: str, header: Sequence[str]) -> WorkloadError:
    """The error for a column that was named for a field but does not exist."""
    meant = hint(column, header)
    return WorkloadError(
        f"workload.columns.{field}={column}: {path} has no such column{meant}; it has {', '.join(header)}"
    )


def _known() -> str:
    names: dict[str, list[str]] = {}
    for layout in KNOWN:
        if not layout.instead:
            names.setdefault(layout.name, []).append(", ".join(layout.required))
    lines = "".join(f"\n  {name}: {'; or '.join(required)}" for name, required in names.items())
    return (
        f". Known kinds and the names they must have:{lines}\n  plain columns: {SHOWN}\nColumns of other names are "
        "read with workload.columns={prompt_len: NAME, output_len: NAME, arrival_s: NAME}; other fields are "
        f"{', '.join(field.name for field in OPTIONAL)}"
    )


def _nearest(source: Source) -> str:
    """What the file seems to be: another kind of file, or the nearest format and the names it lacks for it."""
    header = source.header
    seen = [name.lower()[:60] for name in header]

    def likeness(layout: Format) -> float:
        best = [
            max((difflib.SequenceMatcher(None, name.lower(), other).ratio() for other in seen), default=0.0)
            for name in layout.required
        ]
        return sum(best) / len(best)

    if "\0" in source.first_text:
        return " and has NUL bytes, so it is no text"
    if seen and all(_is_number(name) for name in seen):
        return " and has no line of column names; put one above it, such as arrival_s,prompt_len,output_len"
    if source.kind == "csv" and source.first_text.startswith("#"):
        return " and so with a comment; the first line must be the column names"
    if source.kind == "csv" and len(header) == 1 and len(words(header[0])) > 1 and " " in header[0]:
        return "; if its columns are separated by spaces: they must be by commas, semicolons, tabs or |"
    if isinstance(source.first_value, Unreadable):
        return f"; {source.first_value.why}"
    for key, value in source.first_value.items() if isinstance(source.first_value, dict) else ():
        if isinstance(value, list) and value and isinstance(value[0], dict) and source.kind == "json":
            return f"; its {key!r} holds a list of objects: `jq -c '.{key}[]' FILE` puts each on a line of its own"
    nearest = max((layout for layout in KNOWN if not layout.instead), key=likeness)
    if likeness(nearest) < _ALIKE:
        return ""
    lacking = ", ".join(name for name in nearest.required if name not in header)
    return f"; the nearest kind is {nearest.name}, for which it lacks {lacking}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
