"""Files that other tools read, made from the tables of a run: at its end, or later by `python -m harness report DIR`.

To add one: a module with `write(folder) -> list of notices`, and its name in `EXPORTS` of the schema.

guidellm's report is read (`workload.path`) but not written. Its package (0.8.1, version 2 of the report) reads a whole
report or none, and refuses any other version. Beside its requests a report must have what no run of ours has: a
scenario (the target of a server, a data set, a profile), and eighteen distributions, some of rates and concurrency over
time by the package's own weighing. It takes them empty, but then says nothing of the run.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path

from harness.schema.keys.run import EXPORTS


def export(folder: Path, exports: Collection[str], tables: Collection[str]) -> list[str]:
    """Write the files asked for into the folder of a run.

    Args:
        folder: with `config.yaml`, `requests.csv` and what else the run has written.
        exports: names in `EXPORTS`.
        tables: formats of the tables.

    Returns:
        What a reader of those files should know, a sentence each.

    Raises:
        HarnessError: the folder lacks what a file is made from.
        OSError: one can't be written; it names it.
    """
    if not exports and "parquet" not in tables:
        return []
    notices = []
    for name in EXPORTS:
        if name in exports:
            notices += import_module(f"harness.exports.{name}").write(folder)
    if "parquet" in tables:
        from harness.exports.parquet import write

        write(folder)
    return notices
