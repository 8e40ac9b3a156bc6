"""Files for other tools: a run's trace, its tables as Parquet, and its results as `vllm bench serve` writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.exports import trace
from harness.exports.benchmark import FILE
from harness.workload.inspect import inspect_file
from tests.command import command

# A pool so small that requests are preempted, and one request that can never be served.
SMALL = ("device=simulated", "workload.num_requests=24", "kv_slots=2048", "max_model_len=1024", "workload.fit=scale",
         "scheduler.watermark=0")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    done = command(folder, *SMALL, "exports=[trace,benchmark]", "tables=[csv,parquet]", "hydra.run.dir=job")
    assert done.code == 0, done.err
    return folder / "job"


@pytest.fixture(scope="module")
def events(run: Path) -> list[dict[str, Any]]:
    content = json.loads((run / "trace.json").read_text(), parse_constant=pytest.fail)
    return content["traceEvents"]


def test_slices_of_a_track_are_pairs_that_nest(events: list[dict[str, Any]]) -> None:
    stacks: dict[Any, list[str]] = defaultdict(list)
    for event in events:
        stack = stacks[event["pid"], event["tid"]]
        if event["ph"] == "B":
            stack.append(event["name"])
        if event["ph"] == "E":
            assert stack.pop() == event["name"]
    assert not any(stacks.values())
    assert sum(event["ph"] == "B" for event in events) >= 4 * 24


def test_times_are_whole_in_order_and_never_negative(events: list[dict[str, Any]]) -> None:
    timed = [event for event in events if event["ph"] != "M"]
    numbers = [event[key] for event in timed for key in ("ts", "dur", "pid", "tid") if key in event]
    assert all(type(number) is int and number >= 0 for number in numbers)
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    steps = [event for event in timed if event["ph"] == "X"]
    assert all(one["ts"] + one["dur"] <= two["ts"] for one, two in pairwise(steps))


def test_every_process_and_track_has_a_name(events: list[dict[str, Any]]) -> None:
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    for event in events:
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named


def test_it_tells_what_the_tables_tell(run: Path, events: list[dict[str, Any]]) -> None:
    steps, requests = pd.read_csv(run / "steps.csv"), pd.read_csv(run / "requests.csv")
    slices = [event for event in events if event["ph"] == "X"]
    assert sum(event["args"]["steps"] for event in slices) == (steps["num_seqs"] > 0).sum()
    assert sum(event["args"]["produced"] for event in slices) == steps["produced"].sum()
    assert slices[-1]["ts"] + slices[-1]["dur"] == round(requests["last_token_s"].max() * 1e6)
    pool = [event["args"] for event in events if event["name"] == "KV pool"]
    assert {sum(args.values()) for args in pool} == {2048}
    whole = {event["tid"]: event for event in events if event["ph"] == "B" and event["name"].startswith("request")}
    for row in requests.itertuples():
        assert whole[row.id]["ts"] == round(row.arrival_s * 1e6)
        assert whole[row.id]["args"]["output_tokens"] == row.output_tokens
    gone = sum(event["ph"] == "i" and event["name"] == "preempted" for event in events)
    assert gone == requests["preemptions"].sum() > 0


def test_of_many_requests_and_steps_some_are_shown_and_that_is_said(
    run: Path, events: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("requests.csv", "steps.csv", "config.yaml"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    monkeypatch.setattr(trace, "MOST_REQUESTS", 5)
    monkeypatch.setattr(trace, "MOST_SLICES", 50)
    said = trace.write(tmp_path)
    assert "5 of 24 requests" in said[1]
    assert "rows of steps.csv" in said[0]
    some = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len({event["tid"] for event in some if event["pid"] == trace.REQUESTS and event["ph"] == "B"}) == 5
    few, all_ = ([event["args"] for event in one if event["ph"] == "X"] for one in (some, events))
    assert len(few) <= 50 < len(all_)
    for name in ("steps", "produced", "prefill_tokens", "preempted"):
        assert sum(args[name] for args in few) == sum(args[name] for args in all_)


def test_a_request_that_is_sent_away_or_not_over_has_no_open_slice() -> None:
    row = {"id": 3, "status": "rejected", "reason": "too long", "arrival_s": 0.5, "first_scheduled_s": np.nan,
           "first_token_s": np.nan, "last_token_s": np.nan}  # fmt: skip
    assert [(event["ph"], event["ts"]) for event in trace._request(row, [], 9)] == [("i", 500_000)]
    row |= {"status": "unfinished", "first_scheduled_s": 1.0, "first_token_s": 2.0, "last_token_s": 4.0}
    found = trace._request(row, [], 5_000_000)
    assert [event["ph"] for event in found] == ["B", "B", "E", "B", "E", "B", "E", "E"]
    assert found[-1]["ts"] == 5_000_000


def test_parquet_holds_what_csv_holds(run: Path) -> None:
    for name in ("requests", "steps"):
        mine, theirs = pd.read_parquet(run / f"{name}.parquet"), pd.read_csv(run / f"{name}.csv")
        assert list(mine) == list(theirs)
        for column in theirs:
            assert mine[column].isna().equals(theirs[column].isna())
            there = theirs[column].notna()
            assert (mine[column][there] == theirs[column][there]).all(), column


def test_a_benchmark_has_the_shape_and_numbers_of_the_run(run: Path) -> None:
    result = json.loads((run / FILE).read_text(), parse_constant=pytest.fail)
    table = pd.read_csv(run / "requests.csv")
    summary = json.loads((run / "summary.json").read_text())
    assert (result["completed"], result["failed"], result["request_rate"]) == (24, 0, "inf")
    assert result["output_throughput"] == pytest.approx(summary["output_throughput"])
    for name, ours in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2el", "e2e")):
        assert result[f"mean_{name}_ms"] == pytest.approx(summary[f"{ours}_mean_ms"])
        assert result[f"p99_{name}_ms"] == pytest.approx(summary[f"{ours}_p99_ms"])
    for gaps, ttft, row in zip(result["itls"], result["ttfts"], table.itertuples(), strict=True):
        assert len(gaps) == row.output_tokens - 1
        assert ttft + sum(gaps) == pytest.approx(row.e2e_ms / 1e3)


def test_a_benchmark_is_a_trace_that_our_own_reader_takes(run: Path, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    inspect_file(str(run / FILE))
    assert "vllm bench serve" in capsys.readouterr().out
    done = command(tmp_path, "device=simulated", "workload=trace", f"workload.path={run / FILE}", "hydra.run.dir=again",
                   *SMALL[2:3], *SMALL[5:])  # fmt: skip
    assert done.code == 0, done.err
    again, before = pd.read_csv(tmp_path / "again/requests.csv"), pd.read_csv(run / "requests.csv")
    assert again["prompt_tokens"].tolist() == before["prompt_tokens"].tolist()
    assert again["output_tokens"].tolist() == before["output_tokens"].tolist()


def test_the_shape_is_that_of_vllm(run: Path) -> None:
    shape = Path(__file__).resolve().parents[3] / "shared/faults_small/formats/vllm_serve_result.json"
    if not shape.exists():
        pytest.skip("../shared/faults_small is not there")
    theirs, ours = json.loads(shape.read_text()), json.loads((run / FILE).read_text())
    assert theirs.keys() <= ours.keys()
    for name, value in theirs.items():
        if isinstance(value, list):
            assert len(ours[name]) == 24
            assert type(ours[name][0]) is type(value[0])


def test_of_a_finished_run_they_are_made_later_as_far_as_its_tables_tell(run: Path, tmp_path: Path) -> None:
    assert command(tmp_path, *SMALL, "hydra.run.dir=job").code == 0
    job = tmp_path / "job"
    assert not any((job / name).exists() for name in (FILE, "trace.json", "requests.parquet", "pieces.parquet"))
    done = command(tmp_path, "report", "job", "exports=[trace,benchmark]", "tables=[csv,parquet]")
    assert done.code == 0, done.err
    same = json.loads((run / "trace.json").read_text()), json.loads((job / "trace.json").read_text())
    assert same[0]["traceEvents"] == same[1]["traceEvents"]
    assert (job / "requests.csv").read_bytes() == (run / "requests.csv").read_bytes()
    assert (job / "steps.parquet").read_bytes() == (run / "steps.parquet").read_bytes()
    told, found = (json.loads((folder / FILE).read_text()) for folder in (run, job))
    preempted = pd.read_csv(job / "requests.csv")["preemptions"] > 0
    assert 0 < preempted.sum() < 24
    for gaps, mine, was in zip(told["itls"], found["itls"], preempted, strict=True):
        assert mine == ([] if was else pytest.approx(gaps))
    assert f"{preempted.sum()} of 24 requests can't be told" in " ".join(done.err.split())
    assert found["mean_itl_ms"] is None
    assert found["mean_ttft_ms"] == told["mean_ttft_ms"]


@pytest.mark.slow
def test_perfettos_own_messages_hold_it(run: Path, events: list[dict[str, Any]], tmp_path: Path) -> None:
    """In an environment of its own, with the package `perfetto`."""
    subprocess.run((sys.executable, "-m", "venv", tmp_path / "venv"), check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run((python, "-m", "pip", "install", "-q", "perfetto>=0.16"), check=True)
    script = Path(__file__).with_name("as_protobuf.py")
    done = subprocess.run((python, script, run / "trace.json"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, kinds = json.loads(done.stdout), Counter(event["ph"] for event in events)
    assert found["TYPE_SLICE_BEGIN"] == found["TYPE_SLICE_END"] == kinds["B"] + kinds["X"]
    assert found["TYPE_INSTANT"] == kinds["i"]
    assert found["TYPE_COUNTER"] == sum(len(event["args"]) for event in events if event["ph"] == "C")
    assert found["tracks"] >= 25


@pytest.mark.parametrize(("word", "said"), [
    ("exports=trase", "must be a list"), ("exports=[trase]", "did you mean trace?"), ("tables=[parquet]", "csv"),
])  # fmt: skip
def test_a_mistake_is_told(tmp_path: Path, word: str, said: str) -> None:
    done = command(tmp_path, *SMALL, word)
    assert (done.code, said in done.err) == (2, True), done.err
    assert len(done.err.strip().splitlines()) == 1
