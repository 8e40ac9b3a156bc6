"""Writes a workload as a trace of our own format, which reads back to the same requests."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness.workload.errors import WorkloadError
from harness.workload.fields import DEFAULTS, FIELDS, OPTIONAL, Field
from schedulers.request import Request

_ROWS = 10_000  # written at once
_OF: dict[str, Callable[[Request], Any]] = {field.name: attrgetter(field.name) for field in FIELDS}


def export(requests: Iterable[Request], path: str | Path) -> None:
    """Writes requests in order of arrival: CSV if the name says so, else JSON lines; gzip if it ends in `.gz`.

    Fields that no request sets are left out. The bytes depend on the requests alone. Read back with `workload=trace
    workload.path=...` and max_tokens=auto, the requests are equal to these, provided that their ids are their positions
    in this order (as `build_workload` makes them).

    Raises:
        WorkloadError: the file cannot be written.
    """
    ordered = list(requests)
    if any(a.arrival_ns > b.arrival_ns or (a.arrival_ns == b.arrival_ns and a.id > b.id) for a, b in pairwise(ordered)):
        ordered.sort(key=lambda request: (request.arrival_ns, request.id))
    name = str(path)
    try:
        with open(path, "wb") as raw:
            # No name and no time in the gzip header: the same requests are the same bytes.
            binary = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if name.endswith(".gz") else raw
            with io.TextIOWrapper(binary, encoding="utf-8", newline="") as stream:
                (_write_csv if name.removesuffix(".gz").endswith(".csv") else _write_lines)(ordered, stream)
    except OSError as error:
        raise WorkloadError(f"{name}: the trace cannot be written: {error.strerror or error}") from None


def _write_lines(requests: list[Request], stream: io.TextIOWrapper) -> None:
    for start in range(0, len(requests), _ROWS):  # one template for many requests: as fast as hand-written formatting
        names, columns = [], []
        for field, values, blanks in _said(requests[start : start + _ROWS]):
            key = f',"{field.name}":'.replace("%", "%%")
            plain = field.kind in ("time", "length", "whole")
            if blanks:
                names.append("%s")
                columns.append(["" if _is_blank(field, value) else key + field.text(value) for value in values])
            else:
                names.append(f"{key}%s")
                columns.append(values if plain else [field.text(value) for value in values])
        template = f"{{{''.join(names)[1:]}}}\n"
        stream.writelines([template % row for row in zip(*columns, strict=True)])


def _write_csv(requests: list[Request], stream: io.TextIOWrapper) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    said = list(_said(requests))
    writer.writerow([field.name for field, _, _ in said])
    columns = [[field.cell(value) for value in values] for field, values, _ in said]
    writer.writerows(zip(*columns, strict=True))


def _said(requests: list[Request]) -> Iterator[tuple[Field, list[Any], int]]:
    """The fields that any request sets: (field, its values, how many of them are blank)."""
    for field in FIELDS:
        values = list(map(_OF[field.name], requests))
        if field not in OPTIONAL:
            yield field, values, 0
        elif (blanks := _blanks(field, values)) < len(values):
            yield field, values, blanks


def _blanks(field: Field, values: list[Any]) -> int:
    if field.kind == "ids":  # arrays can't be compared with a blank
        return [value is None for value in values].count(True)
    return values.count(DEFAULTS[field.name])


def _is_blank(field: Field, value: Any) -> bool:
    return value is None or (field.kind != "ids" and value == DEFAULTS[field.name])
