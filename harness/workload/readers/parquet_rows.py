"""Parquet to chunks of columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

from harness.workload.errors import WorkloadError
from harness.workload.readers.format import Chunk

MAGIC = b"PAR1"
_ROWS = 16_384
_SHOWN = 256  # values kept of an unread column


class ParquetSource:
    """A `Source` whose rows are numbered from 1.

    Raises:
        WorkloadError: the file is damaged or has no rows.
    """

    kind, place, first_line, first_value = "parquet", "row", 1, None

    def __init__(self, path: str, raw: BinaryIO) -> None:
        import pyarrow
        import pyarrow.parquet

        self.path = path
        try:
            self._file = pyarrow.parquet.ParquetFile(raw)
        except (pyarrow.ArrowException, OSError) as error:
            raise WorkloadError(f"{path}: the file as a whole is damaged Parquet: {str(error)[:120]}") from None
        self.header: list[str] = list(self._file.schema_arrow.names)
        self.first_text = ", ".join(self.header)[:80]
        twice = [name for name in self.header if self.header.count(name) > 1]
        if twice:
            raise WorkloadError(
                f"{path}: the file as a whole has two columns {twice[0]!r}; rename or remove one of them"
            )
        if not self._file.metadata.num_rows:
            raise WorkloadError(f"{path}: the file as a whole has no rows")

    def chunks(self, names: Collection[str]) -> Iterator[Chunk]:
        """The rows, with those of the columns `names` that it has."""
        import pyarrow

        wanted = [name for name in self.header if name in names]
        others, line = self._others([name for name in self.header if name not in names]), 0
        try:
            for batch in self._file.iter_batches(_ROWS, columns=wanted):
                columns = {name: _values(batch.column(index)) for index, name in enumerate(batch.schema.names)}
                lines = list(range(line + 1, line + batch.num_rows + 1))
                line += batch.num_rows
                yield Chunk(lines, columns, others=others)
                others = {}
        except (pyarrow.ArrowException, OSError) as error:
            raise WorkloadError(f"{self.path}: the file as a whole is damaged Parquet: {str(error)[:120]}") from None

    def _others(self, names: list[str]) -> dict[str, list[Any]]:
        """Some values of unread columns; none of nested ones, which may be large."""
        import pyarrow

        flat = [name for name in names if not pyarrow.types.is_nested(self._file.schema_arrow.field(name).type)]
        found: dict[str, list[Any]] = {name: [] for name in names}
        if flat:
            batch = next(self._file.iter_batches(_SHOWN, columns=flat))
            found |= {name: _values(batch.column(index)) for index, name in enumerate(batch.schema.names)}
        return found


def _values(column: Any) -> list[Any]:
    """A column as Python values: timestamps as ISO 8601, decimals as numbers, missing values as None."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_timestamp(kind):
        column = column.cast(pyarrow.string())
    elif pyarrow.types.is_decimal(kind) or pyarrow.types.is_float16(kind):
        column = column.cast(pyarrow.float64())
    elif pyarrow.types.is_duration(kind):
        column = column.cast(pyarrow.int64())
    values: list[Any] = column.to_pylist()
    return values
