"""The step table against a plain reading of its definitions, wherever its chunks begin and end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from allocators.base import Books
from allocators.paged import Paged
from harness.metrics import steps as module
from harness.metrics.recorder import Recorder
from harness.metrics.steps import INTEGERS, WEIGHTED, StepLog, Totals
from harness.runner.latency.fitted import FittedLatency
from schedulers.request import Request
from schedulers.reservation import on_demand
from schedulers.static import Static
from tests.conformance.play import play

SPENT = ["schedule", "execute", "complete", "idle"]


def random_steps(seed: int, count: int) -> pd.DataFrame:
    """A table of `count` steps; waiting and refused steps come in runs of random length."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame(random.integers(0, 1000, (count, len(INTEGERS))), columns=list(INTEGERS))
    waiting = np.repeat(random.random(count) < random.random(), random.integers(1, 9, count))[:count]
    table["waiting"] *= waiting
    table["num_seqs"] = random.integers(0, 4, count)
    table["head_blocked"] = (random.random(count) < 0.2) & (table["waiting"] > 0)
    return table.astype(np.int64)


def saturated(table: pd.DataFrame) -> pd.DataFrame:
    """From the first step whose head was refused for lack of memory to the last step with anything waiting."""
    blocked = table.index[table["head_blocked"] > 0]
    return table.iloc[0:0] if blocked.empty else table.loc[blocked[0] : table.index[table["waiting"] > 0][-1]]


def steady(table: pd.DataFrame) -> pd.DataFrame:
    """From the first step in which somebody waits and the batch has not grown to the last with anything waiting."""
    before = 0
    for at, (lanes, waiting) in enumerate(zip(table["num_seqs"], table["waiting"], strict=True)):
        if waiting and 0 < lanes <= before:
            return table.loc[at : table.index[table["waiting"] > 0][-1]]
        before = lanes
    return table.iloc[0:0]


def assert_sums(totals: Totals, table: pd.DataFrame) -> None:
    durations = table[SPENT].sum(axis=1)
    assert (totals.steps, totals.ns) == (len(table), durations.sum())
    for name in INTEGERS:
        assert totals.sum(name) == table[name].sum()
        if name not in INTEGERS[WEIGHTED]:
            continue
        mean = np.average(table[name], weights=durations) if durations.sum() else None
        assert totals.mean(name) == (mean if mean is None else pytest.approx(mean))


def logged(table: pd.DataFrame, path: Path | None = None) -> StepLog:
    log = StepLog(path)
    for row in table.itertuples(index=False):
        log.append(tuple(row))
    log.flush()
    return log


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
@pytest.mark.parametrize("seed", range(15))
def test_sums_follow_their_definition_whatever_the_chunks(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "MOST", max(chunk // 2, 1))
    table = random_steps(seed, count=10 * seed)
    log = logged(table)
    assert_sums(log.whole, table)
    assert_sums(log.saturated, saturated(table))
    inside, pace = steady(table), log.steady
    spent = inside[SPENT].sum(axis=1)
    assert (pace.ns, pace.produced, pace.finished) == (spent.sum(), inside["produced"].sum(), inside["finished"].sum())
    assert pace.lanes_ns == (inside["num_seqs"] * spent).sum()


def test_a_run_that_was_never_refused_memory_has_no_saturated_span() -> None:
    table = random_steps(1, 50).assign(head_blocked=0)
    totals = logged(table).saturated
    assert (totals.steps, totals.mean("used")) == (0, None)


@pytest.mark.parametrize("chunk", [3, 1000])
def test_the_file_holds_every_step_once(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    table = random_steps(2, 20)
    logged(table, tmp_path / "steps.csv")
    written = pd.read_csv(tmp_path / "steps.csv")
    assert written["step"].tolist() == list(range(20))
    assert written["used"].tolist() == table["used"].tolist()
    assert written["start_s"].tolist() == pytest.approx((table["start"] / 1e9).tolist())
    assert written["execute_ms"].tolist() == pytest.approx((table["execute"] / 1e6).tolist())


def test_the_file_grows_while_the_replay_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 5)
    log = StepLog(tmp_path / "steps.csv")
    for row in random_steps(2, 7).itertuples(index=False):
        log.append(tuple(row))
    assert len(pd.read_csv(tmp_path / "steps.csv")) == 5


def test_the_file_holds_all_that_a_latency_model_computes_from(tmp_path: Path) -> None:
    """What was predicted batch by batch is predicted again from the rows: chunks, decodes and idle lanes."""
    latency = FittedLatency((1000, 100, 10, 500, 7, 3))
    scheduler = Static(
        Paged(640, 64), on_demand, max_model_len=64, chunked_prefill=True, max_num_batched_tokens=16, max_num_seqs=4
    )
    requests = [Request(i, 5000 * i, 1 + 7 * i % 40, 1 + 5 * i % 13) for i in range(20)]
    play(requests, scheduler, latency, recorder=Recorder(tmp_path / "steps.csv"))
    steps = pd.read_csv(tmp_path / "steps.csv")
    steps = steps[steps["num_seqs"] > 0]
    assert (steps["idle_lanes"] > 0).any()
    assert latency.predict(steps).tolist() == pytest.approx((steps["execute_ms"] * 1e6).tolist())


def test_an_idle_gap_has_its_books_in_their_columns() -> None:
    recorder = Recorder()
    recorder.idle(100, 350, 2, Books(1, 2, 3, 4, 5, 6, 7, 8, 9))
    recorder.steps.flush()
    totals = recorder.steps.whole
    assert [totals.mean(column) for column in Books._fields] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (totals.sum("idle"), totals.sum("waiting"), totals.sum("execute")) == (250, 2, 0)
