"""CSV text to chunks of columns, with exact line numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from operator import itemgetter
from typing import TextIO, cast

from harness.workload.errors import WorkloadError
from harness.workload.readers.format import ABSENT, Chunk, Columns

csv.field_size_limit(1 << 30)  # a cell may hold all token ids of a long prompt
_ROWS = 16_384  # in a chunk: enough for arrays to pay, few enough to stay near the processor


def csv_header(line: str) -> tuple[list[str], str]:
    """The column names of a header line and its delimiter (the commonest of comma, tab and semicolon)."""
    delimiter = max(",\t;", key=line.count)
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter))], delimiter


def csv_chunks(
    path: str, stream: TextIO, header: list[str], delimiter: str, line: int, names: Sequence[str]
) -> Iterator[Chunk]:
    """The rows below a header that stood in `line`, with the columns `names` (ABSENT where the file lacks one).

    Raises:
        WorkloadError: the text cannot be split into rows at all.
    """
    reader, above = csv.reader(stream, delimiter=delimiter), line
    while True:
        try:
            rows = list(islice(reader, _ROWS))
        except csv.Error as error:
            raise WorkloadError(f"{path}:{above + reader.line_num}: not CSV: {error}") from None
        if not rows:
            return
        after = above + reader.line_num
        lines = list(range(line + 1, after + 1))
        if len(lines) != len(rows):  # there are line breaks within quotes: count them, a row is named by its last line
            lines = list(accumulate((1 + sum(cell.count("\n") for cell in row) for row in rows), initial=line))[1:]
        line = after
        if not all(rows):
            lines = [number for number, row in zip(lines, rows, strict=True) if row]
            rows = [row for row in rows if row]
        if rows:
            yield _chunk(rows, lines, header, names)


def _chunk(rows: list[list[str]], lines: list[int], header: list[str], names: Sequence[str]) -> Chunk:
    width, broken = len(header), dict[int, str]()
    if set(map(len, rows)) != {width}:
        for index, row in enumerate(rows):
            if len(row) != width:
                broken[index] = f"the row has {len(row)} fields, the header {width}"
                rows[index] = [cast(str, ABSENT)] * width
    columns: Columns = {name: [ABSENT] * len(rows) for name in names if name not in header}
    for name in names:
        if name in header:
            columns[name] = list(map(itemgetter(header.index(name)), rows))
    return Chunk(lines, columns, broken)
