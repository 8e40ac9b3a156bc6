"""CSV text to chunks of columns, with exact line numbers."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import accumulate, islice
from operator import itemgetter
from typing import TextIO, cast

from harness.workload.errors import WorkloadError
from harness.workload.readers.format import ABSENT, Chunk, Columns

csv.field_size_limit(1 << 30)  # a cell may hold all token ids of a long prompt
_ROWS = 16_384  # in a chunk: enough for arrays to pay, few enough to stay in the CPU's cache
_SHOWN = 256  # values kept of an unread column
DELIMITERS = ",\t;|"


def csv_header(path: str, line: str, number: int) -> tuple[list[str], str]:
    """The column names of a header line and its delimiter, the commonest of `DELIMITERS`.

    Raises:
        WorkloadError: a column is named twice.
    """
    delimiter = max(DELIMITERS, key=line.count)
    try:
        header = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, strict=True))]
    except csv.Error as error:
        raise WorkloadError(f"{path}:{number}: the line of column names is not CSV: {error}") from None
    twice = [name for name, times in Counter(header).items() if times > 1 and name]
    if twice and not all(_is_number(name) for name in header):
        raise WorkloadError(f"{path}:{number}: the column {twice[0]!r} is named twice; rename or remove one of them")
    return header, delimiter


def csv_chunks(
    path: str, stream: TextIO, header: list[str], delimiter: str, line: int, names: Collection[str]
) -> Iterator[Chunk]:
    """The rows below a header in line `line`, with those of the columns `names` that it has.

    Raises:
        WorkloadError: the text cannot be split into rows.
    """
    reader, above = csv.reader(stream, delimiter=delimiter, strict=True), line
    unread, failed = [name for name in header if name not in names], False
    while not failed:
        rows: list[list[str]] = []
        try:
            rows.extend(islice(reader, _ROWS))
        except csv.Error as error:
            failed, why = True, str(error)  # what was read before it is in `rows`
        if not rows and not failed:
            return
        after = above + reader.line_num
        lines = list(range(line + 1, after + 1))
        if len(lines) != len(rows):  # line breaks within quotes: count them, a row's number is that of its last line
            lines = list(accumulate((1 + sum(cell.count("\n") for cell in row) for row in rows), initial=line))[1:]
            _no_rows_in_quotes(path, rows, lines, delimiter)
        if failed:
            begin = (lines[-1] if lines else line) + 1
            never = f"a quote is opened there and not closed up to the last line, {after}"
            within = f"a quoted cell of this row goes on behind its closing quote, in line {after}: one too many"
            why = never if "unexpected end" in why else within if "expected after" in why else why
            raise WorkloadError(f"{path}:{begin}: not CSV: {why}")
        line = after
        if not all(rows):
            lines = [number for number, row in zip(lines, rows, strict=True) if row]
            rows = [row for row in rows if row]
        if rows:
            yield _chunk(rows, lines, header, names, unread)
            unread = []  # some values are enough


def _no_rows_in_quotes(path: str, rows: list[list[str]], lines: list[int], delimiter: str) -> None:
    """Raises if a cell holds whole rows: a stray quote opened it, and the next one, further down, closed it."""
    for row, last in zip(rows, lines, strict=True):
        numeric = [place for place, cell in enumerate(row) if _is_number(cell)]
        broken = [cell for cell in row if "\n" in cell] if len(numeric) > 1 else []
        for cell in broken:
            for text in cell.split("\n")[1:]:
                cells = text.split(delimiter)
                if len(cells) >= len(row) and all(_is_number(cells[place]) for place in numeric):
                    first = last - sum(other.count("\n") for other in row)
                    raise WorkloadError(
                        f"{path}:{first}: not CSV: a quote is opened there and closed {last - first} lines below, "
                        f"around what looks like a row: {text[:40]!r}"
                    )


def _chunk(
    rows: list[list[str]], lines: list[int], header: list[str], names: Collection[str], unread: list[str]
) -> Chunk:
    width, broken = len(header), dict[int, str]()
    if set(map(len, rows)) != {width}:
        for index, row in enumerate(rows):
            if len(row) != width:
                more = " (a decimal comma, or one of thousands?)" if len(row) > width else ""
                broken[index] = f"the row has {len(row)} fields, the header {width}{more}"
                rows[index] = [cast(str, ABSENT)] * width
    columns: Columns = {name: list(map(itemgetter(header.index(name)), rows)) for name in names if name in header}
    others = {name: [row[header.index(name)] for row in rows[:_SHOWN]] for name in unread}
    return Chunk(lines, columns, broken, others)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
