"""`python -m harness compare`: differences with intervals, what differs otherwise, and what can't be compared."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from harness.metrics.spread import difference, half_width
from tests.command import FAST, command


def test_an_interval_is_students_and_needs_three() -> None:
    assert half_width([1.0, 2.0]) is None
    values = [1.0, 2.0, 4.0, 4.5]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert half_width(values) == pytest.approx((high - low) / 2)


def test_shared_seeds_are_paired_and_others_are_welchs() -> None:
    one, two = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}, {0: 11.0, 1: 21.5, 2: 31.0, 3: 41.2}
    found = difference(one, two)
    exact = stats.ttest_rel(list(two.values()), list(one.values())).confidence_interval(0.95)
    assert (found.value - found.half, found.value + found.half) == pytest.approx(tuple(exact))
    assert (found.pairs, found.verdict) == (4, "told apart")
    apart = difference(one, {seed + 9: value for seed, value in two.items()})
    exact = stats.ttest_ind(list(two.values()), list(one.values()), equal_var=False).confidence_interval(0.95)
    assert (apart.value - apart.half, apart.value + apart.half) == pytest.approx(tuple(exact))
    assert (apart.pairs, apart.verdict) == (0, "not told apart")


def test_few_runs_have_no_interval_and_no_verdict() -> None:
    assert difference({0: 1.0, 1: 2.0}, {0: 2.0, 1: 4.0}) == (1.5, None, 2, False)
    assert difference({0: 1.0}, {5: 2.0}).verdict == ""
    assert difference({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}).verdict == "the same"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a`: four seeds; `b`: three of them with a batch of two at most; `c`: one run of a trace of its own."""
    place = tmp_path_factory.mktemp("runs")
    for name, words in (("a", ("-m", "seed=0,1,2,3")), ("b", ("-m", "seed=1,2,3", "scheduler.max_num_seqs=2"))):
        done = command(place, *words, *FAST, "memory_map=false", f"hydra.sweep.dir={name}")
        assert done.code == 0, done.err
    done = command(place, *FAST, "workload=fixed", "kv_slots=9000", "hydra.run.dir=c")
    assert done.code == 0, done.err
    return place


def test_two_sweeps_side_by_side(folders: Path) -> None:
    done = command(folders, "compare", "a", "b", "csv=out.csv")
    assert done.code == 0, done.err
    table = pd.read_csv(folders / "out.csv").set_index("metric")
    assert table.index.is_unique
    row = table.loc["output_throughput"]
    values = [pd.read_csv(folders / name / "comparison.csv").set_index("seed")["output_throughput"] for name in "ab"]
    apart = (values[1] - values[0]).dropna()
    assert (row["pairs"], row["first_runs"], row["second_runs"]) == (3, 4, 3)
    assert row["difference"] == pytest.approx(apart.mean())
    assert row["half_width"] == pytest.approx(stats.t.ppf(0.975, 2) * apart.std() / math.sqrt(3))
    assert row["first_mean"] == pytest.approx(values[0].mean())
    assert {"tpot_total_ms", "kv_held_pct", "steady_output_throughput", "request_throughput"} <= set(table.index)
    said = " ".join(done.out.split())
    assert "scheduler.max_num_seqs 256 → 2" in said
    assert "environment: the same" in said
    assert "other requests" not in said


def test_what_cannot_be_compared_is_said_and_all_else_is(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "c", tmp_path / "c")
    facts = json.loads((tmp_path / "c/environment.json").read_text()) | {"commit": "0123abc", "cpu_count": 4096}
    (tmp_path / "c/environment.json").write_text(json.dumps(facts))
    summary = json.loads((tmp_path / "c/summary.json").read_text()) | {"device": "cuda: a GPU", "tpot_mean_ms": None}
    (tmp_path / "c/summary.json").write_text(json.dumps(summary))
    done = command(tmp_path, "compare", str(folders / "a"), "c")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert re.search(r"warning: c: [^,]* was measured, \S*/a: [^,]* is simulated", said)
    for text in ( "other requests were served", "15728 and 9000 slots", "only one side has tpot_mean_ms",
                 "commits", "0123abc", "cpu_count", "throughput output, tokens/s"):  # fmt: skip
        assert text in said, text


def test_a_table_says_not_told_apart_where_it_must(folders: Path) -> None:
    done = command(folders, "compare", "a", "a")
    assert done.code == 0
    assert re.search(
        r"^the same: requests finished; makespan, s; throughput output, tokens/s; ", done.out, re.MULTILINE
    )
    command(folders, "compare", "a", "b", "csv=verdicts.csv")
    table = pd.read_csv(folders / "verdicts.csv", keep_default_na=False, na_values=[""])
    within = table["difference"].abs() <= table["half_width"]
    same = table["verdict"] == "the same"
    assert (table["verdict"].isin(["not told apart"]) == within & ~same).all()
    assert set(table["verdict"]) >= {"not told apart", "told apart"}


@pytest.mark.parametrize(("words", "said"), [
    (("a",), "usage"), (("a", "none"), "none is not there"), (("a", "."), "nothing"),
])  # fmt: skip
def test_a_mistake_is_told(folders: Path, words: tuple[str, ...], said: str) -> None:
    (folders / "empty").mkdir(exist_ok=True)
    done = command(folders, "compare", *[word.replace(".", "empty") for word in words])
    assert (done.code, said in done.err) == (2, True), done.err
