"""References under `results/reference` are what the code makes today."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import references

LONG = {"beam_search", "capacity", "chatbot", "claims", "parallel_sampling", "shared_prefix"}  # minutes each


def test_a_digit_a_row_and_a_lost_column_are_told(tmp_path: Path) -> None:
    name = "memory_saved"
    for path in (references.REFERENCE / name).glob("*.csv"):
        shutil.copy(path, tmp_path)
    assert references.compare(name, tmp_path) == ([], [])
    path = tmp_path / "comparison.csv"
    table = references._read(path)
    was = table.at[3, "duration_s"]
    table.at[3, "duration_s"] = was[:-1] + str((int(was[-1]) + 1) % 10)
    table.rename(columns={"steps": "stops"}).to_csv(path, index=False)
    wrong, new = references.compare(name, tmp_path)
    assert [line.partition(",")[0] for line in wrong] == ["comparison.csv: duration_s", "comparison.csv: steps is gone"]
    assert f"row 3: {was}, now " in wrong[0]
    assert new == ["comparison.csv: stops"]
    table.head(2).to_csv(path, index=False)
    assert references.compare(name, tmp_path).wrong == [f"comparison.csv: {len(table)} rows, now 2"]


def test_a_reference_that_is_taken_names_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "comparison.csv").write_text(f"path\n{references.REPOSITORY}/experiments/data/chat_rounds.jsonl\n")
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(references, "REFERENCE", tmp_path)
    references.take("here", made)
    assert (tmp_path / "here" / "comparison.csv").read_text() == "path\nexperiments/data/chat_rounds.jsonl\n"


def test_every_reference_has_a_command_of_its_own() -> None:
    commands = {name: (references.REFERENCE / name / references.COMMAND).read_text() for name in references.names()}
    assert len(commands) == len(set(commands.values())) > 20
    assert all(" -m harness experiment=" in text for text in commands.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", references.names())
def test_it_is_what_the_code_makes(name: str, tmp_path: Path) -> None:
    if name in LONG or name.startswith("request_rate"):
        pytest.skip(f"takes minutes: python -m tests.references {name}")
    references.make(name, tmp_path / "made")
    assert references.compare(name, tmp_path / "made").wrong == []
