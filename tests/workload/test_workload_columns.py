"""Keys of a trace (workload.columns, time_unit, skip_s) and the fields of a request, which are declared once."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness.workload import Workload, WorkloadError, build_workload, export
from harness.workload.fields import FIELDS, LIMITS
from schedulers.request import Request

Write = Callable[..., str]
MINE = "sent,in,out,who,cap\n10,100,20,a,30\n12,120,25,b,\n"


def build(path: str | Path, **settings: Any) -> Workload:
    return build_workload({"path": str(path), **settings}, 4096, 0)


def test_every_field_of_a_request_is_declared() -> None:
    assert {field.name for field in FIELDS} == {item.name for item in fields(Request)} - {"id"}


def test_columns_of_any_name_can_be_named(write: Write) -> None:
    path = write(MINE)
    with pytest.raises(WorkloadError, match=r"(?s)not a trace: .*workload\.columns=\{prompt_len: NAME"):
        build(path)
    names = {"arrival_s": "sent", "prompt_len": "in", "output_len": "out", "session": "who", "max_tokens": "cap"}
    one, other = build(path, columns=names).requests
    assert (one.arrival_ns, one.prompt_len, one.output_len, one.session, one.max_tokens) == (0, 100, 20, "a", 30)
    assert (other.arrival_ns, other.max_tokens) == (2 * 10**9, 25)
    assert build(path, columns=names | {"arrival_ms": "sent", "arrival_s": None}).requests[1].arrival_ns == 2 * 10**6


def test_a_named_column_wins_over_the_format(write: Write) -> None:
    path = write("timestamp,input_length,output_length,priority,real_output\n0,10,20,3,7\n1000,10,20,4,8\n")
    assert [r.output_len for r in build(path, columns={"output_len": "real_output"}).requests] == [7, 8]
    assert [r.priority for r in build(path, columns={"priority": "priority"}).requests] == [3, 4]
    assert [r.priority for r in build(path).requests] == [0, 0]
    texts = write(
        [{"prompt": "Why?", "output_tokens": 3, "at": 2.5}, {"prompt": "Why not?", "output_tokens": 4, "at": 3}]
    )
    assert [r.arrival_ns for r in build(texts, columns={"arrival_s": "at"}).requests] == [0, 500_000_000]


def test_a_unit_is_named_or_asked_for(write: Write) -> None:
    path = write(MINE)
    names = {"arrival": "sent", "prompt_len": "in", "output_len": "out"}
    with pytest.raises(
        WorkloadError, match=r"workload\.columns\.arrival=sent: in which unit\? workload\.time_unit=s, ms"
    ):
        build(path, columns=names)
    assert build(path, columns=names, time_unit="us").requests[1].arrival_ns == 2000
    named = write("sent_ms,in,out\n0,1,2\n5,1,2\n")
    assert build(named, columns=names | {"arrival": "sent_ms"}).requests[1].arrival_ns == 5_000_000
    dates = write("sent,in,out\n2023-11-16 18:15:46,1,2\n2023-11-16 18:15:46.25,1,2\n")
    assert build(dates, columns=names).requests[1].arrival_ns == 250_000_000


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"columns": {"promt_len": "in"}}, r"workload\.columns\.promt_len: no such field; did you mean prompt_len\?"),
    ({"columns": {"arival": "in"}}, r"workload\.columns\.arival: no such field; did you mean arrival\?"),
    ({"columns": {"zzz": "in"}}, r"workload\.columns\.zzz: no such field; the fields are arrival, arrival_s"),
    (
        {"columns": {"prompt_len": "inn"}},
        r"workload\.columns\.prompt_len=inn: .* has no such column; did you mean in\?",
    ),
    ({"columns": {"prompt_len": "in", "output_len": "in"}}, "the column 'in' is named for more than one field"),
    ({"columns": {"arrival": "sent", "arrival_s": "in"}}, "arrival and arrival_s name the arrival twice"),
    ({"columns": "in"}, r"workload\.columns=in: workload.columns must be a mapping"),
    ({"columns": {"prompt_len": "in"}}, "not a trace"),
    ({"time_unit": "minutes"}, r"workload\.time_unit=minutes: workload.time_unit must be one of s, ms, us, ns"),
    ({"skip_s": -1}, r"workload\.skip_s=-1: workload.skip_s must be a finite number above 0"),
]


@pytest.mark.parametrize(("keys", "said"), WRONG, ids=[str(keys) for keys, _ in WRONG])
def test_a_wrong_key_is_answered(write: Write, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        build(write(MINE), **keys)


def test_a_key_that_no_row_of_json_has_is_answered(write: Write) -> None:
    path = write([{"input_length": 5, "output_length": 6, "timestamp": 0, "prio": 3}])
    for name, column in (("priority", "prioo"), ("arrival_s", "timestam"), ("prompt_len", "input_lenght")):
        with pytest.raises(WorkloadError, match=rf"{column}.*(has no such column; did you mean|is missing)"):
            build(path, columns={name: column})
    assert build(path, columns={"priority": "prio"}).requests[0].priority == 3


def test_dates_in_our_own_columns_begin_at_the_first(write: Write) -> None:
    dates = write("arrival_s,prompt_len,output_len\n2023-11-16 18:15:46,1,2\n2023-11-16 18:15:47.5,1,2\n")
    assert [r.arrival_ns for r in build(dates).requests] == [0, 1_500_000_000]
    epoch = write("arrival_s,prompt_len,output_len\n1700158546,1,2\n1700158547.5,1,2\n")
    assert [r.arrival_ns for r in build(epoch).requests] == [0, 1_500_000_000]
    own = write("arrival_s,prompt_len,output_len\n5,1,2\n")
    assert [r.arrival_ns for r in build(own).requests] == [5_000_000_000]


def test_several_columns_that_could_be_the_same_are_asked_about(write: Write) -> None:
    path = write("arrival_time,prompt_tokens,input_len,output_len\n0,1,2,3\n")
    with pytest.raises(WorkloadError, match=r"prompt_tokens and input_len could each be prompt_len: workload"):
        build(path)
    assert build(path, columns={"prompt_len": "input_len"}).requests[0].prompt_len == 2


def test_the_first_seconds_are_skipped(write: Write) -> None:
    path = write("arrival_s,prompt_len,output_len\n" + "".join(f"{row},{row + 1},5\n" for row in (3, 0, 1, 2, 4)))
    workload = build(path, skip_s=2)
    assert [(r.arrival_ns, r.prompt_len) for r in workload.requests] == [(0, 3), (10**9, 4), (2 * 10**9, 5)]
    assert workload.notes["skipped"] == 2
    assert [r.prompt_len for r in build(path, skip_s=2, limit=2).requests] == [3, 4]  # lines 2 and 5 of the file
    assert [r.prompt_len for r in build(path, skip_s=2.5, num_requests=1).requests] == [4]
    assert build(path, skip_s=2.5).requests[0].arrival_ns == 500_000_000
    assert [r.prompt_len for r in build(path, skip_s=2, duration_s=1).requests] == [3]
    assert [r.prompt_len for r in build(path, skip_s=3, arrival="burst").requests] == [4, 5]
    with pytest.raises(WorkloadError, match=r"workload\.skip_s=9: the last request of .* arrives at 4\.000 s"):
        build(path, skip_s=9)
    with pytest.raises(WorkloadError, match=r"workload\.skip_s=9: .* has no arrival times"):
        build(write("prompt_len,output_len\n1,2\n"), skip_s=9)


def test_fewer_requests_than_asked_for_are_said(write: Write) -> None:
    path = write("arrival_s,prompt_len,output_len\n0,4,5\n1,4,5\n")
    workload = build(path, num_requests=100)
    assert len(workload.requests) == 2
    assert workload.notes["notices"] == [f"workload.num_requests=100, but there are 2 requests: {path} has no more"]
    assert build(path, num_requests=2).notes["notices"] == build(path, limit=100).notes["notices"] == []
    said = "workload.num_requests=9, but there are 1 requests: workload.limit=1"
    assert build(path, num_requests=9, limit=1).notes["notices"] == [said]
    assert build(path, num_requests=9, duration_s=5).notes["notices"] == []  # the schema says that it does not count


def test_a_factor_on_times_that_are_not_there_is_said(write: Write) -> None:
    notices = build(write("prompt_len,output_len\n4,5\n"), time_scale=2).notes["notices"]
    assert "workload.time_scale=2 has no effect on requests that all arrive at once" in notices


@pytest.mark.parametrize("name", ["workload.jsonl", "workload.csv.gz"])
def test_everything_a_request_says_survives_an_export(tmp_path: Path, name: str) -> None:
    requests = [
        Request(0, 0, 33, 7, 9, hash_ids=array("Q", [1, 2**64 - 1, 5]), hash_block=16, session='a,b"c\nd', n=3),
        Request(1, 5, 2, 1, 1, token_ids=array("i", [3, 4]), priority=-2, n=2, use_beam_search=True),
        Request(2, 9, 4, 1, 1, ttft_slo_ms=0.1, tpot_slo_ms=200.0),
        Request(3, 9, 4, 1, 1, deadline_ms=1e9 + 0.25),
        Request(4, 9, 4, 1, 1),
    ]
    export(requests, tmp_path / name)
    assert build(tmp_path / name).requests == requests
    assert build(tmp_path / name).requests[3].deadline_ns == 9 + 10**15 + 250_000


def test_what_no_request_says_is_not_written(tmp_path: Path) -> None:
    export([Request(0, 0, 33, 7, 9)], tmp_path / "one.jsonl")
    assert (tmp_path / "one.jsonl").read_text() == '{"arrival_ns":0,"prompt_len":33,"output_len":7,"max_tokens":9}\n'
    export([Request(0, 0, 33, 7)], tmp_path / "one.csv")
    assert (tmp_path / "one.csv").read_text() == "arrival_ns,prompt_len,output_len\n0,33,7\n"


def test_limits_come_from_the_trace_or_else_from_the_key(write: Write) -> None:
    path = write("input_len,output_len,ttft_slo_ms,deadline_ms\n1,2,100,\n1,2,,5.5\n")
    assert [[getattr(r, name) for name in LIMITS] for r in build(path).requests] == [
        [100, None, None],
        [None, None, 5.5],
    ]
    keyed = build(path, ttft_slo_ms=7, tpot_slo_ms=8).requests
    assert [[getattr(r, name) for name in LIMITS] for r in keyed] == [[100, 8, None], [7, 8, 5.5]]
    for value in ("-1", "0", "soon", "inf"):
        with pytest.raises(WorkloadError, match=":2: ttft_slo_ms is not"):
            build(write(f"input_len,output_len,ttft_slo_ms\n1,2,{value}\n"))


def test_answers_wanted_are_read_and_checked(write: Write) -> None:
    path = write("prompt_len,output_len,n,use_beam_search\n1,2,4,yes\n1,2,,\n1,2,2,false\n")
    assert [(r.n, r.use_beam_search) for r in build(path).requests] == [(4, True), (1, False), (2, False)]
    for row, said in (
        ("0,no", "n is below 1"),
        ("2,maybe", "use_beam_search is neither"),
        ("1,true", "needs n of at l"),
    ):
        with pytest.raises(WorkloadError, match=f":2: .*{said}"):
            build(write(f"prompt_len,output_len,n,use_beam_search\n1,2,{row}\n"))
