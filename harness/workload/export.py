"""Writes a workload as a trace of our own format, which reads back to the same requests."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness.workload.errors import WorkloadError
from harness.workload.fields import DEFAULTS, FIELDS, OPTIONAL, Field
from schedulers.request import Request

_ROWS = 10_000  # written at once
_OF = {field.name: attrgetter(field.name) for field in FIELDS}


def export(requests: Iterable[Request], path: str | Path) -> None:
    """Writes requests in order of arrival: CSV if the name says so, else JSON lines; gzip if it ends in `.gz`.

    What no request says is not written. The bytes depend on the requests alone. Read back with `workload=trace
    workload.path=...` and max_tokens=auto, the requests are equal to these, provided their ids are their positions in
    this order (as `build_workload` makes them).

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
    for start in range(0, len(requests), _ROWS):  # columns of texts: half the time of a dict for each request
        part = requests[start : start + _ROWS]
        columns = [_texts(field, _OF[field.name], part) for field in _said(part)]
        stream.writelines(f"{{{text[1:]}}}\n" for text in map("".join, zip(*columns, strict=True)))


def _texts(field: Field, of: Any, requests: list[Request]) -> list[str]:
    """Each request's `,"name":value`; nothing where it says nothing."""
    key, blank, values = f',"{field.name}":', DEFAULTS[field.name], list(map(of, requests))
    if field.kind in ("time", "length", "whole"):
        return [f"{key}{value}" if value != blank else "" for value in values]
    return ["" if value is None or (field.kind != "ids" and value == blank) else key + field.text(value)
            for value in values]  # fmt: skip


def _said(requests: list[Request]) -> Iterator[Field]:
    """The fields that every request has, and those that any of them sets."""
    for field in FIELDS:
        values, blank = map(_OF[field.name], requests), DEFAULTS[field.name]
        if field not in OPTIONAL or any(value is not blank and (field.kind == "ids" or value != blank) for value in values):
            yield field


def _write_csv(requests: list[Request], stream: io.TextIOWrapper) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    said = list(_said(requests))
    writer.writerow([field.name for field in said])
    writer.writerows([[field.cell(_OF[field.name](request)) for field in said] for request in requests])
