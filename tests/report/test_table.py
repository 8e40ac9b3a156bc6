"""The table on a terminal: it fits, says once what all rows have, and prints names and paths as they are."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from harness.report import report_job
from harness.report.columns import COLUMNS
from harness.report.comparison import comparison, read_jobs
from harness.report.repeats import aggregate
from harness.report.table import merge_constant_columns, print_table, table_cells

from .conftest import trace, write_job


def printed(table: pd.DataFrame, width: int, what_ran: str = "") -> list[str]:
    file = io.StringIO()
    print_table(table, Console(file=file, width=width, markup=False), what_ran)
    return file.getvalue().splitlines()


@pytest.fixture(scope="module")
def table(seven: Path) -> pd.DataFrame:
    return comparison(read_jobs(seven))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_number_is_cut_at_any_width(table: pd.DataFrame, width: int) -> None:
    full = table.assign(
        goodput=1234.5, cost_per_million_output_tokens=0.0123456, capacity_rate=123.4, pct_of_ideal=99.9
    )
    full.loc[3, ["goodput", "capacity_rate", "pct_of_ideal"]] = 7.0
    lines = printed(full, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    _, rows = table_cells(aggregate(full))
    for row in rows:
        assert all(cell in text for cell in row[1:]), row
    assert "…" not in text
    if width == 200:  # in one table, no name broken
        assert sum(line.startswith("system") for line in lines) == 1
        assert all(any(line.startswith(row[0] + " ") for line in lines) for row in rows)


def test_what_all_rows_have_stands_once_above_them(tmp_path: Path) -> None:
    for i, rate in enumerate((1, 4)):
        write_job(tmp_path / str(i), "vLLM", trace(12, rate=rate), overrides=[f"workload.rate={rate}"])
    lines = printed(comparison(read_jobs(tmp_path)), 100, "opt-small  ·  12 requests")
    assert lines[0].strip() == "opt-small  ·  12 requests"
    assert lines[1].startswith("In all rows: vLLM, ")
    assert "status finished" in lines[1]
    body = "\n".join(lines[2:])
    assert "finished" not in body
    assert "rate 4" in body
    assert "vLLM" not in body


def test_a_failed_row_keeps_its_status_and_a_row_alone_keeps_all() -> None:
    headers = ["system", "output\ntok/s", "ratio", "status"]
    rows = [["a · x 1", "5", "×1.00", "finished"], ["b · x 1", "5", "×1.00", "failed"]]
    assert merge_constant_columns(headers, rows) == (
        ["system", "ratio", "status"], [["a", "×1.00", "finished"], ["b", "×1.00", "failed"]], "x 1, output tok/s 5"
    )  # fmt: skip
    assert merge_constant_columns(headers, rows[:1]) == (headers, rows[:1], "")
    assert merge_constant_columns(["system"], [["a"], ["a"]]) == (["system"], [["a"], ["a"]], "")
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_brackets_in_a_path_and_a_name_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "[x] and [bold]" / "0"
    write_job(folder, "vLLM", trace(8))
    text = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text(text.replace('"system": "vLLM"', '"system": "my [x]"'))
    report_job(folder)
    out = capsys.readouterr().out
    assert f"report: {folder / 'report.html'}" in out
    assert "my [x]" in out
