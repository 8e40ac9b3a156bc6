"""The simulated experiments at a reduced size give, to the byte, what they gave when this was recorded.

Whoever means to change a result, or adds a column, records anew and says why:

    python -m tests.simulation.test_byte_equal [NAME ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest

from tests.simulation.byte_equal import NAMES, QUICK, digests, play

RECORDED = Path(__file__).with_name("byte_equal.json")
AGAIN = "meant so? then python -m tests.simulation.test_byte_equal"


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_it_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    play(name, tmp_path / name)
    table = pd.read_csv(tmp_path / name / "comparison.csv")
    assert set(table["status"]) == {"finished"}, table["error"].dropna().tolist()
    recorded, found = read()[name], digests(tmp_path / name)
    assert recorded.keys() == found.keys()
    wrong = {
        file: [column for column in {**columns, **found[file]} if columns.get(column) != found[file].get(column)]
        for file, columns in recorded.items()
    }
    assert not any(wrong.values()), f"other, new or lost columns: {wrong}; {AGAIN} {name}"


def read() -> dict[str, dict[str, dict[str, str]]]:
    """The digests of each column, by name and file. Written, the columns stand once, in order; - = has none."""
    told = json.loads(RECORDED.read_text())
    return {
        name: {
            file: {c: d for c, d in zip(told["columns"][file], text.split(), strict=True) if d != "-"}
            for file, text in files.items()
        }
        for name, files in told["digests"].items()
    }


def record(names: list[str]) -> None:
    """Play these and write down their digests."""
    known = read() if RECORDED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            play(name, Path(folder) / name)
            known[name] = digests(Path(folder) / name)
    columns: dict[str, dict[str, None]] = {}
    for files in known.values():
        for file, found in files.items():
            columns.setdefault(file, {}).update(dict.fromkeys(found))
    lines = {
        name: {file: " ".join(found.get(c, "-") for c in columns[file]) for file, found in known[name].items()}
        for name in sorted(known)
    }
    told = {"columns": {file: list(found) for file, found in columns.items()}, "digests": lines}
    RECORDED.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1:] or list(NAMES))
