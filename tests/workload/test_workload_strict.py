"""Strict reading: nothing like a time is passed over in silence, and what is no trace is called by its name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.workload import Workload, WorkloadError, build_workload
from harness.workload.inspect import inspect_file

Write = Callable[..., str]
OWN = "arrival_s,prompt_len,output_len\n"
PLAIN = "arrival_time,input_len,output_len\n"
MOONCAKE = '{"timestamp": 0.0, "input_length": 100, "output_length": 20}\n' \
           '{"timestamp": 0.5, "input_length": 100, "output_length": 20}\n' \
           '{"timestamp": 1.5, "input_length": 100, "output_length": 20}\n'  # fmt: skip


def build(path: str | Path, **settings: Any) -> Workload:
    return build_workload({"path": str(path), **settings}, 4096, 0)


def inspected(path: str, **keys: Any) -> str:
    output = StringIO()
    inspect_file(path, Console(file=output, width=200), keys)
    return output.getvalue()


def triples(workload: Workload) -> list[tuple[float, int, int]]:
    return [(request.arrival_ns / 1e9, request.prompt_len, request.output_len) for request in workload.requests]


REFUSED = [  # what is in the file, and what the answer says
    ("0,1,2\n", "1: .*no line of column names; put one above it"),
    ("0,10,10\n1,10,10\n", "1: .*no line of column names"),
    ("# by hand\n" + OWN + "0,1,2\n", "1: .*a comment; the first line must be the column names"),
    ("arrival_s prompt_len output_len\n0 1 2\n", "1: .*separated by spaces"),
    ("arrival_s,prompt_len,prompt_len,output_len\n0,10,20,5\n", "1: the column 'prompt_len' is named twice"),
    ("arrival_s;prompt_len;output_len\n0,5;10;5\n1,25;10;5\n", "2: arrival_s is not a number: it has a comma .*'0,5'"),
    (OWN + '"0,5",10,5\n', "2: arrival_s is not a number: it has a comma"),
    (OWN + '0,"1,234",5\n', "2: prompt_len is not a number: it has a comma .*'1,234'"),
    (OWN + '"1,234,567.5",10,5\n', "2: arrival_s is not a number: it has a comma"),
    (OWN + "0,5,10,5\n", r"2: the row has 4 fields, the header 3 \(a decimal comma"),
    (OWN + "0,10\n", "2: the row has 2 fields, the header 3"),
    (OWN + "\n0,1,2\n\n1,0,2\n", "5: prompt_len is below 1"),
    (OWN + "0,1\0,2\n", "2: prompt_len is not a number"),
    (OWN + ",1,2\n", "2: arrival_s is missing"),
    (OWN + "-1,1,2\n", "2: arrival_s is negative"),
    (OWN + "nan,1,2\n", "2: arrival_s is not finite"),
    (OWN + "1e30,1,2\n", r"2: arrival_s is later than any clock \(workload.time_unit"),
    (OWN + "11/16/2023 6:15 PM,1,2\n", "2: arrival_s is not a time: a number, or a date such as"),
    (OWN + "2023-11-16,1,2\n", "2: arrival_s is not a time"),
    (OWN + "12 o'clock,1,2\n", "2: arrival_s is not a time"),
    (OWN + "2023-11-16 18:15:46,1,2\n2023-11-16T18:15:47Z,1,2\n", "3: arrival_s has no time zone where others have"),
    (OWN + "2023-11-16 18:15:46,1,2\n7,1,2\n", "3: arrival_s is a number where others are dates"),
    (OWN + "7,1,2\n2023-11-16 18:15:46,1,2\n", "3: arrival_s is a number where others are dates, or the reverse"),
    (OWN + "7,1,2\n" * 16_384 + "2023-11-16 18:15:46,1,2\n", "the file as a whole has both numbers and dates"),
    ("arrival_s,prompt_len,output_len,session\n0,10,5,\"abc\n" + "1,10,5,a\n" * 5, "2: .*a quote is opened there"),
    ("session,prompt_len,output_len\n" + "a,1,2\n" * 20_000 + '"b,1,2\n', "20002: .*a quote is opened there and not"),
    ('session,prompt_len,output_len\n"a"b,1,2\n', "2: .*goes on behind its closing quote"),
    ('session,prompt_len,output_len\na,1,2\n"b\nc,1,2\n"d,1,2\n', "3: .*goes on behind its closing quote, in line 5"),
    ('arrival_s,prompt_len,output_len,session\n0,10,5,"abc\n1,10,5,a\n2,10,5,"\n', "2: .*around what looks like a row"),
    ('arrival_s,prompt_len,output_len,session\n0,10,5,"abc\n1,10,5,"\n', "2: .*around what looks like a row"),
    ('session,prompt_len,output_len\nZo\u00eb,1,2\n'.encode("latin-1"), "2: session has a byte that is no UTF-8"),
    ('{"prompt_len": 1, "prompt_len": 2, "output_len": 3}\n', "1: .*the key 'prompt_len' stands twice"),
    ('{"prompt_len": 1, "output_len": 3}\n{"prompt_len": 1, "output_len": 3, "output_len": 4}\n', "2: .*stands twice"),
    ('{"prompt_len":100,"output_len":5}\n{"arrival_s":1,"prompt_len":100,"output_len":5}\n', "1: arrival_s is missing"),
    ('{"arrival_s":1,"prompt_len":1,"output_len":5}\n{"arrival_ns":1,"prompt_len":1,"output_len":5}\n', "1: arrival"),
    (json.dumps({"prompt_len": 1, "output_len": 2}, indent=1) + '\n{"a": oops}', "5: not JSON"),
    ('{"requests": [{"prompt_len": 1, "output_len": 2}]}', r"1: .*'requests' holds a list of objects: `jq"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "a Git LFS pointer.*git lfs pull"),
    (b"/annex/objects/SHA256E-s1--0.csv\n", "a git-annex pointer"),
    (b"PK\x03\x04...", "a zip archive"),
    (b"\x28\xb5\x2f\xfd...", "compressed with zstd"),
    (b"\x80\x04\x95...", "a Python pickle, which is not read"),
    (b"<!DOCTYPE html><html>...", "a web page.*download the raw file"),
    (b"PAR1...", "damaged Parquet"),
    (b"BZh9...", "damaged bzip2"),
    (gzip.compress((OWN + "0,1,2\n" * 99).encode())[:-9], "damaged gzip"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "said"), REFUSED, ids=[f"{number}" for number in range(len(REFUSED))])
def test_a_fault_is_told_with_its_place(write: Write, content: str | bytes, said: str) -> None:
    path = write(content)
    with pytest.raises(WorkloadError, match=said) as caught:
        build(path)
    assert str(caught.value).startswith(f"{path}:")


ROWS = [{"arrival_s": at, "prompt_len": prompt, "output_len": output} for at, prompt, output in ((0, 1, 2), (1, 3, 4))]
READ = [
    ("\ufeff" + OWN + "0,1,2\n1,3,4\n").encode(),
    (OWN + "0,1,2\n1,3,4\n").encode("utf-16"),
    (OWN + "0,1,2\n1,3,4\n").encode("utf-16-le"),
    (OWN + "0,1,2\n1,3,4\n").encode("utf-16-be"),
    (OWN + "0,1,2\n1,3,4\n").encode("utf-32"),
    OWN.replace("\n", "\r\n") + "0,1,2\r1,3,4\n\n",
    OWN.replace(",", ";") + "0;1;2\n1;3;4\n",
    OWN.replace(",", "\t") + "0\t1\t2\n1\t3\t4\n",
    OWN.replace(",", "|") + "0|1|2\n1|3|4\n",
    '"arrival_s" , "prompt_len","output_len"\n0,1,2\n1,3,4\n'.replace('" ,', '",'),
    OWN + "1e0,3,4.0\n0,1,2\n",
    "".join(json.dumps(row) + "\n" for row in ROWS),
    "\n".join(json.dumps(row, indent=2) for row in ROWS),
    json.dumps(ROWS, indent=2),
    json.dumps(ROWS),
]  # fmt: skip


@pytest.mark.parametrize("content", READ, ids=[f"{number}" for number in range(len(READ))])
def test_the_same_two_rows_however_they_are_written(write: Write, content: str | bytes) -> None:
    assert triples(build(write(content))) == [(0, 1, 2), (1, 3, 4)]


@pytest.mark.parametrize("pack", ["bz2", "lzma", "gzip"])
def test_packing_is_told_by_content(write: Write, pack: str) -> None:
    module = __import__(pack)
    assert triples(build(write(module.compress((OWN + "0,1,2\n").encode()), "trace.csv"))) == [(0, 1, 2)]
    assert triples(build(write(OWN + "0,1,2\n", "trace.csv.gz"))) == [(0, 1, 2)]


UNKNOWN_TIMES = [
    ("arrival_ms,prompt_len,output_len\n0,100,20\n10500,120,20\n", "arrival_ms", "arrival_ms: arrival_ms"),
    ("sent_at,prompt_len,output_len\n0,100,20\n", "sent_at", "arrival_s: sent_at"),
    ("when,num_prefill_tokens,num_decode_tokens\n0,100,20\n", "when", "arrival_s: when"),
    ("created,input_tokens,output_tokens\n0,100,20\n", "created", "arrival_s: created"),
    ("x,prompt_len,output_len\n2023-11-16T18:15:46,100,20\n", "x", "arrival_s: x"),
    ("x,prompt_len,output_len\n1700000000.5,100,20\n", "x", "arrival_s: x"),
    ("wann,prompt_len,output_len\n0,1,2\n700,1,2\n1500,1,2\n", "wann", "arrival_s: wann"),
    ('{"prompt_len": 1, "output_len": 2}\n{"prompt_len": 1, "output_len": 2, "requestTime": 5}\n', "requestTime", ""),
    ("input_size,output_0,issued_us\n1,2,5\n", "issued_us", "arrival_us: issued_us"),
    ('{"prompt": "Why?", "output_tokens": 3, "start_ms": 5}\n', "start_ms", "arrival_ms: start_ms"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "column", "key"), UNKNOWN_TIMES)
def test_an_unknown_column_of_times_is_never_dropped_in_silence(
    write: Write, content: str, column: str, key: str
) -> None:
    path = write(content)
    with pytest.raises(WorkloadError, match=f"has no arrival time .*{column} looks like one: .*{key}") as caught:
        build(path)
    assert "workload.arrival=burst" in str(caught.value)
    with pytest.raises(WorkloadError, match="looks like one"):
        inspected(path)
    assert build(path, arrival="burst").notes["arrival"] == "burst"
    assert len(build(path, columns={"arrival_ms": column}, invalid="drop").requests) >= 1


@pytest.mark.parametrize(
    "column",
    ["total_tokens", "model", "ttft_ms", "latency_s", "request_id", "id", "Unnamed: 0", "", "duration_s", "temperature",
     "e2e_ms", "time_to_first_token", "tokens_per_s_rate"],
)  # fmt: skip
def test_columns_that_are_no_times_are_let_be(write: Write, column: str) -> None:
    path = write(f"prompt_len,output_len,{column}\n10,20,3\n10,20,30\n10,20,500\n")
    workload = build(path)
    assert workload.notes["notices"] == []
    assert workload.notes["arrival"] == "burst"


def test_a_second_column_of_times_is_mentioned(write: Write) -> None:
    notices = build(write("arrival_s,timestamp,prompt_len,output_len\n5,1,1,2\n")).notes["notices"]
    assert notices == ["timestamp looks like a time too and is not read: arrivals are arrival_s"]
    notices = build(write("arrival_s,arrival_ns,prompt_len,output_len\n5,1,1,2\n")).notes["notices"]
    assert notices == ["arrival_s looks like a time too and is not read: arrivals are arrival_ns"]


def test_the_first_row_does_not_decide_for_all(write: Write) -> None:
    path = write('{"prompt_len":100,"output_len":5}\n{"arrival_s":1,"prompt_len":100,"output_len":5}\n')
    workload = build(path, invalid="drop")
    assert triples(workload) == [(1, 100, 5)]
    assert workload.notes["dropped_invalid"] == {"arrival_s is missing": 1}
    assert "the first of them: " in inspected(path)
    late = '{"prompt_len":100,"output_len":5}\n' * 5000 + '{"arrival_s":1,"prompt_len":100,"output_len":5}\n'
    with pytest.raises(WorkloadError, match=":1: arrival_s is not a time"):
        build(write(late))


def test_milliseconds_that_look_like_seconds_are_doubted(write: Write) -> None:
    path = write(MOONCAKE)
    said = inspected(path)
    assert "1,333 requests a second: that looks like seconds; workload.time_unit=s" in said
    assert build(path).requests[-1].arrival_ns == 1_500_000
    assert any("time_unit=s" in notice for notice in build(path).notes["notices"])
    assert build(path, time_unit="s").requests[-1].arrival_ns == 1_500_000_000
    assert not any("looks like" in notice for notice in build(path, time_unit="s").notes["notices"])
    assert not any("looks like" in notice for notice in build(path, time_unit="ms").notes["notices"])
    assert "in seconds" in inspected(path, time_unit="s")


def test_seconds_that_look_like_milliseconds_are_doubted(write: Write) -> None:
    path = write(PLAIN + "".join(f"{700 * row},10,20\n" for row in range(9)))
    assert any("looks like milliseconds; workload.time_unit=ms" in said for said in build(path).notes["notices"])
    assert build(path, time_unit="ms").requests[1].arrival_ns == 700_000_000


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
def test_seconds_since_1970_tell_their_unit(write: Write, unit: str, factor: int) -> None:
    path = write(PLAIN + "".join(f"{(1_700_000_000 + row) * factor},10,20\n" for row in range(3)))
    assert [request.arrival_ns for request in build(path).requests] == [0, 10**9, 2 * 10**9]
    assert build(path, time_unit=unit).requests == build(path).requests
    named = write(f"arrival_{unit},input_len,output_len\n0,1,2\n5,1,2\n")
    assert build(named).requests[1].arrival_ns == 5 * 10**9 // factor


def test_inspect_says_what_was_taken_for_what_and_which_value_is_no_time(write: Write) -> None:
    said = inspected(write("Arrival Time,Input Length,Output Length,user,model\n0,10,20,a,m\n1,10,20,b,m\n"))
    assert "Arrival Time → arrival in seconds (assumed), Input Length → prompt_len, Output Length → output_len" in said
    assert "user → session" in said
    assert "not read │ model" in said.replace("  ", " ")
    commas = write("arrival_s;prompt_len;output_len\n0,5;10;5\n1,25;10;5\n")
    with pytest.raises(WorkloadError, match=r"no valid row; 2 rows: .*; the first is .*:2: .*arrival_s is '0,5'"):
        inspected(commas)


def test_folders_and_files_that_are_not_there(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(OWN + "0,1,2\n", "my trace, final=2 (1).csv")
    with pytest.raises(WorkloadError, match="it is a folder; name a file; in it are my trace"):
        build(tmp_path)
    with pytest.raises(WorkloadError, match=r"there is no such file; did you mean .*my trace, final=2"):
        build(tmp_path / "my trace, final=2.csv")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert triples(build("~/my trace, final=2 (1).csv")) == [(0, 1, 2)]
