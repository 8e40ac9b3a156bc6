"""`repeats=N`: jobs in turn, each with seeds of its own, and what a report says of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from harness.metrics.spread import half_width
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


def test_seeds_are_not_swept_besides(sweep: Path) -> None:
    done = command(sweep, *FAST, "repeats=3", "seed=1,2", "hydra.sweep.dir=none")
    assert (done.code, "leave out seed=1" in done.err) == (2, True), done.err
