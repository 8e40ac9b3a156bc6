"""Opens a trace: gzip or plain, CSV, JSON lines or a JSON array, told by what is in it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from harness.workload.errors import WorkloadError
from harness.workload.readers.csv_rows import csv_chunks, csv_header
from harness.workload.readers.format import Chunk
from harness.workload.readers.json_rows import json_array, json_chunks, json_lines

_HEAD = 1 << 20  # characters of the first line that are enough to tell what it is


class Source:
    """An open trace: its kind, its header, and then its rows.

    Attributes:
        path: the file.
        kind: "csv", "jsonl" or "json" (an array).
        header: column names, or the keys of the first object (none when it is no object).
        first_line: number of the first line that is not blank, from 1.
        first_text: its beginning.
    """

    def __init__(self, path: str, stream: TextIO) -> None:
        self.path, self._stream, self.first_line = path, stream, 1
        head = stream.readline(_HEAD)
        while head.isspace():
            head, self.first_line = stream.readline(_HEAD), self.first_line + 1
        if not head:
            raise WorkloadError(f"{path}: the file as a whole is empty")
        self.first_text = head.strip()[:80]
        self.kind = {"{": "jsonl", "[": "json"}.get(head.lstrip()[0], "csv")
        if self.kind == "jsonl" and not head.endswith("\n"):
            head += stream.readline()
        if self.kind == "csv":
            self.header, self._delimiter = csv_header(head)
            return
        objects = (
            json_lines(head, self.first_line, stream)
            if self.kind == "jsonl"
            else json_array(path, head, self.first_line, stream)
        )
        first = next(objects, None)
        if first is None:
            raise WorkloadError(f"{path}: the file as a whole has no rows")
        self.header = list(first[1]) if isinstance(first[1], dict) else []
        self._objects = chain([first], objects)

    def chunks(self, names: Sequence[str]) -> Iterator[Chunk]:
        """The rows, with the columns `names`; a column that the file lacks is ABSENT throughout."""
        if self.kind == "csv":
            return csv_chunks(self.path, self._stream, self.header, self._delimiter, self.first_line, names)
        return json_chunks(self._objects, names)


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Opens a trace for the length of a `with` block.

    Raises:
        WorkloadError: it cannot be opened, is empty, or turns out damaged (also later, while its rows are read).
    """
    name = str(path)
    try:
        with open(name, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            data = cast(BinaryIO, gzip.GzipFile(fileobj=raw) if packed else raw)
            # A byte that is no UTF-8 becomes a mark that no rule accepts, so that the message can name its line.
            with TextIOWrapper(data, encoding="utf-8-sig", errors="replace") as text:
                yield Source(name, text)
    except FileNotFoundError:
        raise WorkloadError(f"workload.path={name}: there is no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WorkloadError(f"{name}: the file as a whole is damaged gzip: {error}") from None
    except OSError as error:
        raise WorkloadError(f"{name}: the file as a whole cannot be read: {error.strerror or error}") from None
