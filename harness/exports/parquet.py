"""`requests.parquet` and `steps.parquet`: the same columns, rows and digits as the CSV files, for pandas, DuckDB, …"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from harness.exports.folder import REQUESTS, STEPS
from harness.files import written

TEXTS = ("status", "reason")
REALS = ("_s", "_ms")  # what these end is a time; all else are whole numbers


def write(folder: Path) -> None:
    """Write those of which there is a CSV file, some rows at a time: a step table may have millions."""
    for name in (REQUESTS, STEPS):
        if (path := folder / name).exists():
            _convert(path, path.with_suffix(".parquet"))


def _convert(source: Path, target: Path) -> None:
    with open(source, encoding="utf-8") as text:
        columns = text.readline().rstrip("\n").split(",")
    options = csv.ConvertOptions(column_types={name: _kind(name) for name in columns}, strings_can_be_null=True)
    with (
        csv.open_csv(source, convert_options=options) as batches,
        written(target, "wb") as file,
        parquet.ParquetWriter(file, batches.schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def _kind(column: str) -> pa.DataType:
    if column in TEXTS:
        return pa.string()
    return pa.float64() if column.endswith(REALS) else pa.int64()
