"""A run replayed from its own export gives the same answer, byte for byte."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.tasks.claims import composed
from harness.workload import build_workload, export
from harness.workload.errors import WorkloadError

RUNS = {
    "samples": ["workload.n=4"],
    "beams": ["workload.n=3", "workload.use_beam_search=true"],
    "copied answers": ["workload.n=2", "system=orca_max"],
    "closed loop": ["workload.arrival=closed_loop", "workload.concurrency=6", "workload.n=2"],
    "common beginning": ["system=paged_cached+on_demand", "workload.shared_prefix=80", "workload.rate=3"],
    "declared": ["workload.max_tokens=times:2", "reservation=max_tokens", "allocator=buddy", "workload.rate=3"],
    "sessions": ["workload=trace", "workload.path=${repository:}/experiments/data/chat_rounds.jsonl",
                 "workload.limit=60", "scheduler=priority", "system=paged_cached+on_demand", "workload.n=2"],
}  # fmt: skip
COMMON = ["device=simulated", "workload.num_requests=24", "kv_slots=6000", "seed=3"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_same_from_its_export(name: str, tmp_path: Path) -> None:
    keys = [*COMMON, *RUNS[name]]
    row = run_job(composed(keys), tmp_path / "run")
    ours = [key for key in keys if not key.startswith("workload")]
    again = [*ours, "workload=trace", f"workload.path={tmp_path / 'run' / 'workload.jsonl'}"]
    assert run_job(composed(again), tmp_path / "again")["output_throughput"] == row["output_throughput"]
    for table in ("requests.csv", "steps.csv", "workload.jsonl"):
        assert (tmp_path / "again" / table).read_bytes() == (tmp_path / "run" / table).read_bytes()


@pytest.mark.parametrize("name", ["requests.jsonl", "requests.csv"])
def test_every_row_keeps_its_own_number_of_answers(name: str, tmp_path: Path) -> None:
    text = '{"prompt_len":5,"output_len":3,"n":3}\n{"prompt_len":6,"output_len":2,"n":2,"use_beam_search":true}\n'
    path = tmp_path / "mixed.jsonl"
    path.write_text(text + '{"prompt_len":7,"output_len":2}\n{"prompt_len":7,"output_len":2,"n":null}\n')
    requests = build_workload({"path": str(path)}, 100, 0).requests
    assert [request.n for request in requests] == [3, 2, 1, 1]
    assert [request.use_beam_search for request in requests] == [False, True, False, False]
    export(requests, tmp_path / name)
    assert build_workload({"path": str(tmp_path / name)}, 100, 0).requests == requests


def test_a_table_says_only_what_there_is(tmp_path: Path) -> None:
    export(build_workload({"prompt": {"kind": "fixed", "value": 3}, "output": {"kind": "fixed", "value": 3},
                           "num_requests": 2}, 100, 0).requests, tmp_path / "plain.csv")  # fmt: skip
    assert "n" not in next(csv.reader(open(tmp_path / "plain.csv")))  # noqa: SIM115


def test_the_key_wins_over_the_rows_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt_len":5,"output_len":3,"n":3}\n{"prompt_len":5,"output_len":3}\n')
    workload = build_workload({"path": str(path), "n": 2}, 100, 0)
    assert [request.n for request in workload.requests] == [2, 2]
    assert any("workload.n=2" in notice for notice in workload.notes["notices"])


@pytest.mark.parametrize(
    ("value", "rule"),
    [('"n":0', "is below 1"), ('"n":"two"', "not a number"), ('"n":2,"use_beam_search":"maybe"', "true nor false"),
     ('"use_beam_search":true', "needs n of at least 2"), ('"n":2,"use_beam_search":2.5', "true nor false")],
)  # fmt: skip
def test_what_is_no_number_of_answers_is_a_fault_with_its_line(value: str, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt_len":5,"output_len":3,"n":2}\n{"prompt_len":5,"output_len":3,' + value + "}\n")
    with pytest.raises(WorkloadError, match=f"trace.jsonl:2.*{rule}"):
        build_workload({"path": str(path)}, 100, 0)
