"""What each rule brings, on made-up rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.measured.ablation import ALL, ablate, wide
from tests.measured.made_up import CONFIG, rows, write_tables


@pytest.mark.slow
def test_every_rule_has_a_line(tmp_path: Path) -> None:
    tables = write_tables(tmp_path)
    (tmp_path / "models/made").mkdir(parents=True)
    (tmp_path / "models/made/Up.json").write_text(json.dumps(CONFIG))
    given = rows(20).iloc[::5]
    first = given.iloc[0]
    fitted = {(first["model_path"], first["system"], first["backend"])}
    table = ablate(given.assign(origin="inferencex"), tables, fitted, tmp_path / "models")
    assert set(table["groups"]) == {"fitted", "test"}
    lines = wide(table).set_index("without")
    assert next(iter(lines.index)) == ALL
    assert {"history", "host", "pointwise", "borrowed_kernels"} <= set(lines.index)
    own = f"fitted, {first['backend']}"
    assert lines.loc["pointwise", own] != lines.loc[ALL, own]
    assert lines.loc["borrowed_kernels", own] == lines.loc[ALL, own]
