"""Writes a workload as a trace of our own format, which reads back to the same requests."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from harness.workload.errors import WorkloadError
from schedulers.request import Request

_COLUMNS = ("arrival_ns", "prompt_len", "output_len", "max_tokens", "session", "priority")
_ANSWERS = ("n", "use_beam_search")
_LISTS = ("hash_block", "hash_ids", "token_ids")


def export(requests: Iterable[Request], path: str | Path) -> None:
    """Writes requests in order of arrival: CSV if the name says so, else JSON lines; gzip if it ends in `.gz`.

    The bytes depend on the requests alone. Read back with `workload=trace workload.path=...` and max_tokens=auto, the
    requests are equal to these, provided their ids are their positions in this order (as `build_workload` makes them).

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
    for r in requests:  # a million of them: half the time of `json.dumps`, and the same text
        line = f'{{"arrival_ns":{r.arrival_ns},"prompt_len":{r.prompt_len},"output_len":{r.output_len}'
        if r.max_tokens is not None:
            line += f',"max_tokens":{r.max_tokens}'
        if r.session:
            line += f',"session":{json.dumps(r.session)}'
        if r.priority:
            line += f',"priority":{r.priority}'
        if r.n > 1:
            line += f',"n":{r.n}' + (',"use_beam_search":true' if r.use_beam_search else "")
        if r.hash_ids is not None:
            line += f',"hash_block":{r.hash_block},"hash_ids":[{",".join([str(int(value)) for value in r.hash_ids])}]'
        if r.token_ids is not None:
            line += f',"token_ids":[{",".join([str(int(value)) for value in r.token_ids])}]'
        stream.write(line + "}\n")


def _write_csv(requests: list[Request], stream: io.TextIOWrapper) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    lists = _LISTS if any(request.hash_ids is not None or request.token_ids is not None for request in requests) else ()
    answers = _ANSWERS if any(request.n > 1 for request in requests) else ()
    writer.writerow((*_COLUMNS, *answers, *lists))
    for request in requests:
        cells = [getattr(request, name) for name in _COLUMNS]
        if answers:
            cells += [request.n, str(request.use_beam_search).lower()]
        if lists:
            ids, tokens = request.hash_ids, request.token_ids
            cells += [request.hash_block or "", "" if ids is None else " ".join(str(int(value)) for value in ids)]
            cells.append("" if tokens is None else " ".join(str(int(value)) for value in tokens))
        writer.writerow(cells)
