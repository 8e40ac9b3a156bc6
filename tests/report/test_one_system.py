"""What a report says of one system alone, and of goodput and cost: on the console and in REPORT.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from harness.report.markdown import findings, report_text
from harness.report.one_run import print_job
from harness.report.sweep import Sweep
from harness.report.table import print_table

from .conftest import trace, write_job

LIMITS = "TTFT within 2 s"
MONEY = {"goodput": 0.375, "goodput_limits": LIMITS, "cost_per_million_output_tokens": 12.5}


def printed(say: Callable[..., None], table: pd.DataFrame) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    say(table, console)
    return console.export_text()


def report(sweep: Sweep) -> str:
    return report_text(sweep, sweep.table.head(0), None, [], [])


def swept(folder: Path, rates: tuple[float, ...], **more: Any) -> Sweep:
    for i, rate in enumerate(rates):
        write_job(folder / str(i), "vLLM", trace(12, rate=rate), overrides=[f"workload.rate={rate}"], **more)
    return Sweep.read(folder)


def test_a_sweep_over_one_system_has_findings(tmp_path: Path) -> None:
    sweep = swept(tmp_path, (0.5, 4.0))
    said = findings(sweep, sweep.table.head(0), None)
    best = sweep.done.loc[sweep.done["output_throughput"].idxmax()]
    assert said[0] == (f"{best['label']} produces {best['output_throughput_x']:.2f} times the output tokens per second "
                       f"of {sweep.baseline}.")  # fmt: skip
    assert "nothing to say" not in report(sweep)


def test_a_system_alone_has_findings(tmp_path: Path) -> None:
    write_job(tmp_path / "0", "vLLM", trace(12))
    sweep = Sweep.read(tmp_path)
    (row,) = sweep.done.to_dict("records")
    said = findings(sweep, sweep.table.head(0), None)[0]
    assert said.startswith(f"vLLM produces {row['output_throughput']:,.1f} output tokens per second")
    assert "the median time to the first token is" in said
    assert said in report(sweep)


def test_where_nothing_finished_nothing_is_said(tmp_path: Path) -> None:
    write_job(tmp_path / "0", "vLLM", trace(4), status="failed", error="broken")
    assert "No job finished, so there is nothing to say." in report(Sweep.read(tmp_path))


def test_goodput_and_cost_are_printed_and_reported(tmp_path: Path) -> None:
    sweep = swept(tmp_path, (0.5, 4.0), **MONEY)
    text = printed(print_table, sweep.table)
    assert max(map(len, text.splitlines())) <= 100
    for word in ("goodput", "$ per", "0.375", "12.5", LIMITS):
        assert word in text, word
    header, _, row, *_ = (line for line in report(sweep).splitlines() if line.startswith("|"))
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert (cells["goodput req/s"], cells["$ per M tokens"]) == ("0.375", "12.5")
    assert f"those with {LIMITS}" in report(sweep)


def test_a_run_tells_goodput_and_cost(tmp_path: Path) -> None:
    write_job(tmp_path / "0", "vLLM", trace(4), **MONEY)
    lines = printed(print_job, Sweep.read(tmp_path).table).splitlines()
    told = {line.split("  ")[0].strip(): line for line in lines}
    assert "0.375 requests/s" in told["goodput"]
    assert "12.5 dollars per million output tokens" in told["cost"]
    assert any(LIMITS in line for line in lines)


@pytest.mark.parametrize("column", ["goodput", "$ per"])
def test_where_no_limit_and_no_price_is_set_nothing_is_printed(tmp_path: Path, column: str) -> None:
    assert column not in printed(print_table, swept(tmp_path, (1.0,)).table)
