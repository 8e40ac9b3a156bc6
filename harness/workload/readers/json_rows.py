"""JSON lines, JSON arrays and JSON objects over many lines to chunks of columns, never the whole file at once."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TextIO

from harness.workload.errors import WorkloadError
from harness.workload.readers.format import ABSENT, Chunk, LeftOut, Unreadable

_ROWS = 4_096  # in a chunk; rows with ids are large
_READ = 1 << 20  # characters of an array read at once
_SPACE = re.compile(r"[ \t\r\n]*")
_SHOWN = 256  # values kept of an unread column


def json_chunks(objects: Iterable[tuple[int, Any]], names: Collection[str]) -> Iterator[Chunk]:
    """Groups (line, value) pairs into chunks; a value that is not an object is a broken row, a missing key ABSENT."""
    asked = frozenset(names)
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    broken: dict[int, str] = {}
    left_out: Counter[str] = Counter()

    def chunk() -> Chunk:
        seen: dict[str, None] = {}  # a set in order
        for row in rows:
            if not seen.keys() >= row.keys():
                seen.update(dict.fromkeys(row))
        columns = {name: [row.get(name, ABSENT) for row in rows] for name in names if name in seen}
        others = {name: [row.get(name, ABSENT) for row in rows[:_SHOWN]] for name in seen if name not in asked}
        return Chunk(lines, columns, broken, others, dict(left_out))

    for line, value in objects:
        if isinstance(value, LeftOut):
            left_out[value.why] += 1
            continue
        if not isinstance(value, dict):
            why = value.why if isinstance(value, Unreadable) else f"the row is {str(value)[:40]}, not an object"
            broken[len(lines)] = why
            value = {}
        lines.append(line)
        rows.append(value)
        if len(lines) == _ROWS:
            yield chunk()
            lines, rows, broken, left_out = [], [], {}, Counter()
    if lines or left_out:
        yield chunk()


def json_lines(head: str, line: int, stream: TextIO) -> Iterator[tuple[int, Any]]:
    """(line, value) of each line that is not blank, beginning with `head`, the text of line `line`."""
    text = head
    while text:
        if not text.isspace():
            try:
                value = json.loads(text)
                if isinstance(value, dict) and text.count('":') != len(value):  # nested, or a key stands twice
                    value = json.loads(text, object_pairs_hook=_unique)
                yield line, value
            except (ValueError, RecursionError) as error:
                yield line, Unreadable(f"the row is not JSON: {error}")
        line, text = line + 1, stream.readline()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def is_unfinished(text: str) -> bool:
    """Whether a line is the beginning of an object that continues on the next lines."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text.rstrip())
    except RecursionError:
        pass
    return False


def json_values(path: str, head: str, line: int, stream: TextIO, array: bool) -> Iterator[tuple[int, Any]]:
    """(line, value) of each element of one array, or of objects one after another, decoded as the text comes in.

    Raises:
        WorkloadError: the text stops being JSON; names the line where the last element began.
    """
    decode = json.JSONDecoder(object_pairs_hook=_unique).raw_decode
    text, at, read = head, _begin(head, 0) + array, _READ
    after = ""  # the element or the comma that came last
    while True:
        begin, problem = _begin(text, at), ""
        line, at = line + text.count("\n", at, begin), begin
        if array and after != "comma" and text.startswith("]", at):
            return
        if array and after == "element" and at < len(text):
            if text[at] != ",":
                raise WorkloadError(f"{path}:{line}: not a JSON array: a comma is missing")
            at, after = at + 1, "comma"
            continue
        if at < len(text):
            try:
                value, end = decode(text, at)
                if end < len(text) or not array:  # at the very end a number might continue in text not read yet
                    yield line, value
                    line, at, read, after = line + text.count("\n", at, end), end, _READ, "element"
                    continue
            except (ValueError, RecursionError) as error:
                problem = getattr(error, "msg", str(error))[:100]
        more = stream.read(read)
        if not more:
            if not array and at == len(text):
                return
            kind = "a JSON array" if array else "JSON"
            raise WorkloadError(f"{path}:{line}: not {kind}: {problem or 'it does not end with a bracket'}")
        # Reading doubles, so a broken file is scanned a few times only.
        text, at, read = text[at:] + more, 0, read * 2


def _begin(text: str, at: int) -> int:
    """The position of the next character that is not white space."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
