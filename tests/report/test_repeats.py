"""`repeats=N`: jobs in turn, each with seeds of its own, and what a report says of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.metrics.spread import half_width
from harness.report.columns import COLUMNS
from harness.report.comparison import comparison, read_jobs
from harness.report.repeats import aggregate
from harness.report.style import whisker
from tests.command import FAST, command


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repeats")
    done = command(folder, *FAST, "repeats=3", "seed=7", "memory_map=false", "scheduler.max_num_seqs=255,256",
                   "hydra.sweep.dir=sweep")  # fmt: skip
    assert done.code == 0, done.err
    (folder / "said").write_text(" ".join(done.out.split()))
    return folder


def test_they_take_turns_with_seeds_that_follow(sweep: Path) -> None:
    table = pd.read_csv(sweep / "sweep/comparison.csv")
    assert table["seed"].tolist() == [7, 7, 8, 8, 9, 9]
    assert table["repeat"].tolist() == [0, 0, 1, 1, 2, 2]
    assert table["scheduler.max_num_seqs"].tolist() == [255, 256] * 3
    assert table["identity"].nunique() == 2
    assert table["output_throughput"].nunique() == 3  # by seed: the bound of the batch is never met


def test_the_report_says_mean_interval_and_who_is_not_told_apart(sweep: Path) -> None:
    table = pd.read_csv(sweep / "sweep/comparison.csv")
    values = table["output_throughput"][table["scheduler.max_num_seqs"] == 256].tolist()
    said = (sweep / "said").read_text()
    assert f"{sum(values) / 3:,.1f} ± {half_width(values):,.1f}" in said
    assert "Not told apart by output throughput" in said
    assert "×1.00 ± 0.00 not told apart" in said or "the same" in said  # of the baseline, by pairs
    assert "mean of 3 repeats (seeds 7 – 9), ±, whiskers: 95 % interval" in said
    assert "warning: figure" not in said


def test_page_and_report_say_it_too(sweep: Path) -> None:
    page, text = (sweep / "sweep/report.html").read_text(), (sweep / "sweep/REPORT.md").read_text()
    for place in (page, text):
        assert "Not told apart by output throughput" in place
        assert "mean of 3 repeats (seeds 7 – 9)" in place
        assert f"± {half_width(throughputs(sweep)):,.1f}" in place
    assert '"error_x":{' in page


def throughputs(sweep: Path) -> list[float]:
    table = pd.read_csv(sweep / "sweep/comparison.csv")
    return table["output_throughput"][table["scheduler.max_num_seqs"] == 256].tolist()


def group(folder: Path, *values: tuple[str, int, float]) -> list[dict[str, Any]]:
    """Groups of made-up jobs: (system, seed, output throughput)."""
    for number, (system, seed, tokens) in enumerate(values):
        row = {"system": system, "allocator": "a", "reservation": "r", "scheduler": "s", "status": "finished",
               "overrides": [f"system={system}", f"seed={seed}"], "repeat": 0, "seed": seed, "finished": 1,
               "output_throughput": tokens, "e2e_mean_ms": 1000 / tokens}  # fmt: skip
        (folder / str(number)).mkdir()
        (folder / str(number) / "summary.json").write_text(json.dumps(row))
    return aggregate(comparison(read_jobs(folder))).to_dict("records")


def test_ratios_are_of_pairs_so_that_what_seeds_share_drops_out(tmp_path: Path) -> None:
    runs = [("A", seed, 10.0 * seed) for seed in (1, 2, 3)] + [("B", seed, 11.0 * seed) for seed in (3, 2, 1)]
    one, two = group(tmp_path, *runs)
    assert (one["output_throughput_x"], one["told_apart"]) == (1.0, "")
    assert two["output_throughput_x"] == pytest.approx(1.1)
    assert two["output_throughput_x_high"] == pytest.approx(1.1)  # each pair has the same
    assert two["output_throughput_high"] - two["output_throughput"] == pytest.approx(half_width([11, 22, 33]))
    assert two["told_apart"] == "not told apart"  # by 1, 2 and 3 tokens/s: t = 3.46, short of 4.30
    assert cell(two, "output_throughput_x") == "×1.10 ± 0.00\nnot told apart"


def test_where_no_seed_is_shared_a_ratio_has_no_interval(tmp_path: Path) -> None:
    runs = [("A", seed, 10.0 + seed) for seed in (1, 2, 3)] + [("B", seed, 20.0 + seed) for seed in (4, 5, 6)]
    _, two = group(tmp_path, *runs)
    assert two["output_throughput_x"] == pytest.approx(25 / 12)
    assert math.isnan(two["output_throughput_x_high"])
    assert two["told_apart"] == "told apart"
    assert cell(two, "output_throughput_x") == "×2.08"


def test_of_two_repeats_there_is_the_mean_and_no_interval(tmp_path: Path) -> None:
    (one,) = group(tmp_path, ("A", 1, 10.0), ("A", 2, 30.0))
    assert cell(one, "output_throughput") == "20.0"
    assert math.isnan(one["output_throughput_low"])


def test_whiskers_span_the_interval(tmp_path: Path) -> None:
    (one,) = group(tmp_path, ("A", 1, 10.0), ("A", 2, 20.0), ("A", 3, 30.0))
    ax = Figure().subplots()
    end = whisker(ax, one, "output_throughput", 0.0, scale=2, across=True)
    assert end == pytest.approx(2 * (20 + half_width([10.0, 20.0, 30.0])))
    assert ax.get_lines()[0].get_xdata()[0] == pytest.approx(40 - (end - 40))
    (tmp_path / "alone").mkdir()
    (alone,) = group(tmp_path / "alone", ("A", 1, 10.0))
    assert whisker(ax, alone, "output_throughput", 0.0) == 10.0
    assert len(ax.get_lines()) == 1


def cell(row: dict[str, Any], name: str) -> str:
    return next(column for column in COLUMNS if column.name == name).cell(row)


def test_seeds_are_not_swept_besides(sweep: Path) -> None:
    done = command(sweep, *FAST, "repeats=3", "seed=1,2", "hydra.sweep.dir=none")
    assert (done.code, "leave out seed=1" in done.err) == (2, True), done.err
