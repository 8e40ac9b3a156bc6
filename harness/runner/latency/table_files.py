"""The files of a folder of kernel tables, plain or gzip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from harness.errors import HarnessError

SIGNED = ("alpha",)  # columns that may be negative


def read_table(folder: Path, name: str, columns: Sequence[str], texts: Sequence[str] = ("layer",)) -> pd.DataFrame:
    """`columns` of `name.csv` or `name.csv.gz`; all of them numbers but `texts`.

    Raises:
        HarnessError: no such file or column, or a cell that is no number, or none of at least 0 where it must be.
    """
    path = next((file for end in (".csv", ".csv.gz") if (file := folder / (name + end)).is_file()), None)
    if path is None:
        raise HarnessError(f"{folder}: these are no kernel tables: there is no {name}.csv or {name}.csv.gz")
    try:
        table = pd.read_csv(path)
    except (OSError, EOFError, ValueError) as error:
        raise HarnessError(f"{path} can't be read: {error}") from error
    missing = [column for column in columns if column not in table]
    if missing:
        raise HarnessError(f"{path} lacks the column {', '.join(missing)}; it has {', '.join(map(str, table.columns))}")
    numbers = [column for column in columns if column not in texts]
    for column in numbers:
        values = pd.to_numeric(table[column], errors="coerce")
        if values.isna().any():
            line = int(values.isna().to_numpy().argmax())
            raise HarnessError(f"{path}:{line + 2}: {column} is no number, but {table[column].iloc[line]!r}")
        wrong = ~np.isfinite(values) | ((values < 0) & (column not in SIGNED))
        if wrong.any():
            line = int(wrong.to_numpy().argmax())
            raise HarnessError(f"{path}:{line + 2}: {column} is {values.iloc[line]}, and must be at least 0 and finite")
        table[column] = values
    return table[list(columns)]


def read_meta(folder: Path) -> Mapping[str, Any]:
    """`meta.yaml` of the folder, or of the one above; empty without one.

    Raises:
        HarnessError: it is not YAML, or no mapping.
    """
    path = next((at / "meta.yaml" for at in (folder, folder.parent) if (at / "meta.yaml").is_file()), None)
    if path is None:
        return {}
    try:
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise HarnessError(f"{path} can't be read: {' '.join(str(error).split())}") from error
    if not isinstance(meta, Mapping):
        raise HarnessError(f"{path} must be a mapping")
    return meta
