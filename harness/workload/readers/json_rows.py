"""JSON lines and JSON arrays to chunks of columns, with line numbers, never the whole file at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from harness.workload.errors import WorkloadError
from harness.workload.readers.format import ABSENT, Chunk

_ROWS = 4_096  # in a chunk; rows with ids are large
_READ = 1 << 20  # characters of an array read at once


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a line that is no JSON."""

    why: str


def json_chunks(objects: Iterable[tuple[int, Any]], names: Sequence[str]) -> Iterator[Chunk]:
    """Groups (line, value) pairs; a value that is no object becomes a broken row, a key it lacks ABSENT."""
    chunk = Chunk([], {name: [] for name in names})
    for line, value in objects:
        if not isinstance(value, dict):
            why = value.why if isinstance(value, Unreadable) else f"the row is {str(value)[:40]}, not an object"
            chunk.broken[len(chunk.lines)] = why
            value = {}
        chunk.lines.append(line)
        for name, column in chunk.columns.items():
            column.append(value.get(name, ABSENT))
        if len(chunk.lines) == _ROWS:
            yield chunk
            chunk = Chunk([], {name: [] for name in names})
    if chunk.lines:
        yield chunk


def json_lines(head: str, line: int, stream: TextIO) -> Iterator[tuple[int, Any]]:
    """(line, value) of each line that is not blank, beginning with `head`, which stood in `line`."""
    text = head
    while text:
        if not text.isspace():
            try:
                yield line, json.loads(text)
            except (ValueError, RecursionError) as error:
                yield line, Unreadable(f"the row is not JSON: {error}")
        line, text = line + 1, stream.readline()


def json_array(path: str, head: str, line: int, stream: TextIO) -> Iterator[tuple[int, Any]]:
    """(line, value) of each element of one array, decoded as the text comes in.

    Raises:
        WorkloadError: the text stops being a JSON array; names the line where the last element began.
    """
    decode = json.JSONDecoder().raw_decode
    text, read, first = head.lstrip()[1:], _READ, True
    while True:
        bare = text.lstrip(" \t\r\n")
        if bare.startswith("]"):
            return
        begin = bare[1:].lstrip(" \t\r\n") if bare.startswith(",") and not first else bare
        line += text.count("\n", 0, len(text) - len(begin))
        problem = "a comma is missing" if begin is bare and not first and bare else ""
        if begin and not problem:
            try:
                value, end = decode(begin)
                if end < len(begin):  # at the very end a number might go on in what is not read yet
                    yield line, value
                    line += begin.count("\n", 0, end)
                    text, read, first = begin[end:], _READ, False
                    continue
            except (ValueError, RecursionError) as error:
                problem = str(error)[:100]
        more = "" if problem == "a comma is missing" else stream.read(read)
        if not more:
            raise WorkloadError(f"{path}:{line}: not a JSON array: {problem or 'it does not end with a bracket'}")
        # The comma stays until its element is whole. Reading doubles, so a broken file is scanned a few times only.
        text, read = ("" if first or not bare.startswith(",") else ",") + begin + more, read * 2
