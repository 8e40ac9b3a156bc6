"""Writes a workload as a trace of our own format, which reads back to the same requests."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.workload.errors import WorkloadError
from schedulers.request import Request

_COLUMNS = ("arrival_ns", "prompt_len", "output_len", "max_tokens", "session", "priority")
_LISTS = ("hash_block", "hash_ids", "token_ids")


def export(requests: Iterable[Request], path: str | Path) -> None:
    """Writes requests in order of arrival: CSV if the name says so, else JSON lines; gzip if it ends in `.gz`.

    The bytes depend on the requests alone. Read back with `workload=trace workload.path=...` and max_tokens=auto, the
    requests are equal to these, provided their ids are their positions in this order (as `build_workload` makes them).

    Raises:
        WorkloadError: the file cannot be written.
    """
    ordered = sorted(requests, key=lambda request: (request.arrival_ns, request.id))
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
    for request in requests:
        row: dict[str, Any] = {name: getattr(request, name) for name in _COLUMNS}
        if row["max_tokens"] is None:
            del row["max_tokens"]
        if not row["session"]:
            del row["session"]
        if not row["priority"]:
            del row["priority"]
        if request.hash_ids is not None:
            row |= {"hash_block": request.hash_block, "hash_ids": [int(value) for value in request.hash_ids]}
        if request.token_ids is not None:
            row["token_ids"] = [int(value) for value in request.token_ids]
        stream.write(json.dumps(row, separators=(",", ":")) + "\n")


def _write_csv(requests: list[Request], stream: io.TextIOWrapper) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    lists = _LISTS if any(request.hash_ids is not None or request.token_ids is not None for request in requests) else ()
    writer.writerow((*_COLUMNS, *lists))
    for request in requests:
        cells = [getattr(request, name) for name in _COLUMNS]
        if lists:
            ids, tokens = request.hash_ids, request.token_ids
            cells += [request.hash_block or "", "" if ids is None else " ".join(str(int(value)) for value in ids)]
            cells.append("" if tokens is None else " ".join(str(int(value)) for value in tokens))
        writer.writerow(cells)
