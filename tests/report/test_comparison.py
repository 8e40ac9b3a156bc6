"""The comparison table: columns and their order, what is absent, what did not run, repeats, sweeps and the baseline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from harness.errors import HarnessError
from harness.report.comparison import AFTER_SWEPT, FIRST, comparison, read_jobs, swept_columns
from harness.report.repeats import aggregate
from harness.report.table import print_table


def write(folder: Path, name: str, **summary: Any) -> None:
    """A summary without a replay behind it."""
    row = {"system": "vLLM", "allocator": "paged", "reservation": "on_demand", "scheduler": "continuous",
           "status": "finished", "error": None, "overrides": [], "repeat": 0, "finished": 5, "rejected": 0,
           "output_throughput": 10.0, "e2e_mean_ms": 100.0, "warnings": [], "banner": None} | summary  # fmt: skip
    (folder / name).mkdir(parents=True)
    (folder / name / "summary.json").write_text(json.dumps(row, allow_nan=False))


def printed(table: pd.DataFrame) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_table(table, console)
    return console.export_text()


def test_columns_come_in_the_documented_order(seven: Path) -> None:
    table = comparison(read_jobs(seven))
    assert list(table.columns[: len(FIRST)]) == FIRST
    assert list(table.columns[len(FIRST) : len(FIRST) + 4]) == AFTER_SWEPT
    assert len(table.columns) == len(set(table.columns))
    books = table[[name for name in FIRST if name.startswith("kv_")]].sum(axis=1)
    assert books.tolist() == pytest.approx([100.0] * 7)
    assert table["output_throughput_x"].iloc[0] == 1
    assert table["finished"].dtype == "Int64"


def test_absent_is_empty_in_the_file_never_zero(tmp_path: Path) -> None:
    write(tmp_path, "0", tpot_p50_ms=None)
    write(tmp_path, "1", status="failed", error="OutOfMemory: all gone", finished=None, output_throughput=None)
    comparison(read_jobs(tmp_path)).to_csv(tmp_path / "comparison.csv", index=False)
    text = pd.read_csv(tmp_path / "comparison.csv", dtype=str, keep_default_na=False)
    assert text["tpot_p50_ms"].tolist() == ["", ""]
    assert text["finished"].tolist() == ["5", ""]  # whole, though another row has none
    assert text["output_throughput_x"].tolist() == ["1.0", ""]
    assert text["error"].tolist() == ["", "OutOfMemory: all gone"]


def test_a_planned_job_that_never_ran_is_a_row_named_like_its_repeats(tmp_path: Path) -> None:
    plan = [{"dir": str(i), "overrides": ["system=vllm", f"repeat={i}"]} for i in range(2)]
    plan.append({"dir": "2", "overrides": ["system=orca_max"]})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    write(tmp_path, "0", overrides=plan[0]["overrides"])
    table = comparison(read_jobs(tmp_path))
    assert table["status"].tolist() == ["finished", "not run", "not run"]
    assert table["system"].tolist() == ["vLLM", "vLLM", "orca_max"]
    text = printed(table)
    assert "1 of 2" in text
    assert "orca_max: not run" in text


def test_a_half_written_summary_is_an_interrupted_job(tmp_path: Path) -> None:
    write(tmp_path, "0")
    write(tmp_path, "1")
    (tmp_path / "1" / "summary.json").write_text('{"system": "vL')
    table = comparison(read_jobs(tmp_path))
    assert table["status"].tolist() == ["finished", "interrupted"]
    assert "summary.json" in table["error"].iloc[1]


def test_planned_order_then_numbers_in_their_order(tmp_path: Path) -> None:
    for name in ("10", "9", "b", "a"):
        write(tmp_path, name, system=name)
    assert read_jobs(tmp_path)["dir"].tolist() == ["9", "10", "a", "b"]
    (tmp_path / "plan.json").write_text(json.dumps([{"dir": "b"}, {"dir": "10"}]))
    assert read_jobs(tmp_path)["dir"].tolist() == ["b", "10"]  # the others are none of this sweep's


def test_swept_overrides_are_columns_and_ratios_compare_equal_points(tmp_path: Path) -> None:
    for i, (system, rate, tokens) in enumerate((("A", 1, 10.0), ("A", 2, 20.0), ("B", 1, 30.0), ("B", 2, 30.0))):
        overrides = [f"system={system}", f"workload.rate={rate}", "model=opt", f"seed={i}"]
        write(tmp_path, str(i), system=system, overrides=overrides, output_throughput=tokens)
    table = comparison(read_jobs(tmp_path))
    assert swept_columns(table) == ["workload.rate"]
    assert table["workload.rate"].tolist() == [1, 2, 1, 2]
    assert table["output_throughput_x"].tolist() == [1, 1, 3, 1.5]


def test_a_sweep_of_one_system_compares_with_its_first_point(tmp_path: Path) -> None:
    for i, size in enumerate((16, 32)):
        write(tmp_path, str(i), overrides=[f"allocator.block_size={size}"], output_throughput=10.0 * (i + 1))
    assert comparison(read_jobs(tmp_path))["output_throughput_x"].tolist() == [1, 2]


def test_a_baseline_is_named_by_label_or_by_group_name(tmp_path: Path) -> None:
    write(tmp_path, "0", overrides=["system=vllm"])
    write(tmp_path, "1", system="Orca (Max)", overrides=["system=orca_max"], output_throughput=5.0)
    jobs = read_jobs(tmp_path)
    for name in ("Orca (Max)", "orca (max)", "orca_max"):
        assert comparison(jobs, name)["output_throughput_x"].tolist() == [2, 1]
    with pytest.raises(HarnessError, match=r"no system 'orca'.*vLLM, Orca \(Max\)"):
        comparison(jobs, "orca")


def test_repeats_stay_rows_and_are_printed_as_their_mean(tmp_path: Path) -> None:
    for i, tokens in enumerate((10.0, 40.0, 20.0)):
        write(tmp_path, str(i), repeat=i, overrides=[f"repeat={i}"], output_throughput=tokens)
    write(tmp_path, "3", repeat=3, overrides=["repeat=3"], status="interrupted", output_throughput=999.0)
    table = comparison(read_jobs(tmp_path))
    assert len(table) == 4
    (group,) = aggregate(table).to_dict("records")
    mean, sd = 70 / 3, (700 / 3) ** 0.5  # of 10, 40 and 20
    assert group["output_throughput"] == pytest.approx(mean)
    assert group["output_throughput_sd"] == pytest.approx(sd)
    half = 4.302652729911275 * sd / 3**0.5  # t of two degrees of freedom, 97.5 %
    assert group["output_throughput_low"] == pytest.approx(mean - half)
    assert group["output_throughput_high"] == pytest.approx(mean + half)
    assert "23.3 ± 37.9" in printed(table)
    assert "sd 15.3" in printed(table)
    assert group["status"] == "3 of 4 finished"
    assert table["output_throughput_x"].iloc[:3].tolist() == [0.5, 2, 1]


def test_the_printed_table_fits_100_columns_and_tells_what_matters(seven: Path, sweep: Callable[..., Path]) -> None:
    text = printed(comparison(read_jobs(seven)))
    assert max(map(len, text.splitlines())) <= 100
    assert "Fig. 2" in text  # ShareGPT lengths, known systems: the paper's value stands beside
    folder = sweep(["vLLM"], n=4, workload="fixed", rejected=3, warnings=["max_num_seqs binds"], banner="a made-up run")
    text = printed(comparison(read_jobs(folder)))
    for expected in ("3 rejected", "max_num_seqs binds", "a made-up run"):
        assert expected in text
    assert "Fig. 2" not in text


def test_an_empty_sweep_is_a_table_without_rows(tmp_path: Path) -> None:
    table = comparison(read_jobs(tmp_path))
    assert len(table) == 0
    assert list(table.columns[: len(FIRST)]) == FIRST
    assert "no jobs" in printed(table)
