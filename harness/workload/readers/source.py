"""Opens a trace, compressed or plain: CSV, JSON lines, JSON or Parquet, recognised by its content."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO, cast

from harness.files import missing
from harness.workload.errors import WorkloadError
from harness.workload.readers.csv_rows import csv_chunks, csv_header
from harness.workload.readers.format import Chunk
from harness.workload.readers.json_rows import is_unfinished, json_chunks, json_lines, json_values
from harness.workload.readers.parquet_rows import MAGIC as PARQUET
from harness.workload.readers.parquet_rows import ParquetSource
from harness.workload.readers.strangers import encoding_of, stranger

_HEAD = 1 << 20  # characters of the first line that are enough to recognise the kind of file
_PEEK = 64  # objects whose keys are looked at to recognise the format: the first alone may lack some
_PACKED: tuple[tuple[bytes, str, Any], ...] = (
    (b"\x1f\x8b", "gzip", gzip.open),
    (b"BZh", "bzip2", bz2.open),
    (b"\xfd7zXZ", "xz", lzma.open),
)


class Source(Protocol):
    """An open trace: its kind, its header, and then its rows.

    Attributes:
        path: the file.
        kind: "csv", "json" (lines, an array, or objects one after another) or "parquet".
        header: column names, or the keys of the first objects (empty if they are not objects).
        first_line: number of the first line that is not blank, from 1.
        first_text: its beginning.
        first_value: the first JSON value; None for other kinds.
        place: what a row's number counts in messages; "" = lines.
    """

    path: str
    kind: str
    header: list[str]
    first_line: int
    first_text: str
    first_value: Any
    place: str

    def chunks(self, names: Collection[str]) -> Iterator[Chunk]:
        """The rows, with those of the columns `names` that they have."""


class TextSource:
    """A `Source` of text."""

    place = ""
    first_value: Any = None

    def __init__(self, path: str, stream: TextIO) -> None:
        self.path, self._stream, self.first_line = path, stream, 1
        head = stream.readline(_HEAD)
        while head.isspace():
            head, self.first_line = stream.readline(_HEAD), self.first_line + 1
        if not head:
            raise WorkloadError(f"{path}: the file as a whole is empty")
        self.first_text = head.strip()[:80]
        self.kind = "json" if head.lstrip()[0] in "{[" else "csv"
        if self.kind == "csv":
            self.header, self._delimiter = csv_header(path, head, self.first_line)
            return
        array = head.lstrip()[0] == "["
        if not array and not head.endswith("\n"):
            head += stream.readline()
        lines = not array and not is_unfinished(head)
        self.objects = (
            json_lines(head, self.first_line, stream)
            if lines
            else json_values(path, head, self.first_line, stream, array)
        )
        first = list(islice(self.objects, 1))
        if not first:
            raise WorkloadError(f"{path}: the file as a whole has no rows")
        self.first_value = first[0][1]
        if isinstance(self.first_value, dict):
            first += islice(self.objects, _PEEK - 1)
        self.header = list(dict.fromkeys(key for _, value in first if isinstance(value, dict) for key in value))
        self.objects = chain(first, self.objects)

    def chunks(self, names: Collection[str]) -> Iterator[Chunk]:
        """The rows, with those of the columns `names` that they have."""
        if self.kind == "csv":
            return csv_chunks(self.path, self._stream, self.header, self._delimiter, self.first_line, names)
        return json_chunks(self.objects, names)


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Opens a trace for the duration of a `with` block; `~` is the home folder.

    Raises:
        WorkloadError: it cannot be opened, is empty, is another kind of file, or is damaged (also later, while its rows
            are read).
    """
    name, packing = os.path.expanduser(path), ""
    try:
        with open(name, "rb") as raw:
            head = raw.peek(512)[:512]
            if head.startswith(PARQUET):
                yield ParquetSource(name, raw)
                return
            data: Any = raw
            for magic, kind, unpack in _PACKED:
                if head.startswith(magic):
                    packing, data = kind, unpack(raw)
            head = data.peek(512)[:512]
            if what := stranger(head):
                raise WorkloadError(f"{name}: the file as a whole is {what}")
            # A byte that is not UTF-8 becomes a surrogate that no rule accepts, so the message can name its line.
            with TextIOWrapper(cast(BinaryIO, data), encoding=encoding_of(head), errors="replace") as text:
                yield TextSource(name, text)
    except FileNotFoundError:
        raise WorkloadError(f"workload.path={name}: {missing(name)}") from None
    except IsADirectoryError:
        inside = sorted(entry.name for entry in os.scandir(name) if entry.is_file())
        some = f"; in it are {', '.join(inside[:5])}{' ...' if len(inside) > 5 else ''}" if inside else ""
        raise WorkloadError(f"{name}: the file as a whole cannot be read: it is a folder; name a file{some}") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise WorkloadError(f"{name}: the file as a whole is damaged {packing}: {error}") from None
    except UnicodeError as error:
        raise WorkloadError(f"{name}: the file as a whole is no text: {error}") from None
    except OSError as error:
        why = (
            f"is damaged {packing}: {error}"
            if packing and not error.strerror
            else f"cannot be read: {error.strerror or error}"
        )
        raise WorkloadError(f"{name}: the file as a whole {why}") from None
