"""Whatever bytes and rows a reader is given: requests that keep the rules, or the one declared error with its place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.workload import WorkloadError, build_workload, export, prompt_tokens
from harness.workload.readers import KNOWN
from harness.workload.readers.format import Format
from schedulers.request import Request
from tests.conformance.effort import cases

QUICK = settings(max_examples=cases(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
PLACE = re.compile(r"(:((row|request) )?\d+: )|(: the file as a whole )|(^workload\.)|( could each be )")

whole = st.integers(1, 5000)
odd = st.one_of(
    whole,
    st.integers(),
    st.floats(),
    st.none(),
    st.booleans(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "",
            " ",
            "XXX",
            "nan",
            "-inf",
            "1e400",
            "0",
            "-1",
            "1_0",
            "٣",
            "2023-11-16 18:15:46.68059001",
            "9999-01-01 0:0",
        ]
    ),
    st.lists(st.integers(-(2**65), 2**65), max_size=4),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)
turn = {"value": odd, "content": odd, "role": st.sampled_from(["user", "assistant", "system", 3]), "tool_calls": odd}
turns = st.lists(st.one_of(odd, st.fixed_dictionaries({}, optional=turn)), max_size=3)
number = st.one_of(odd, st.fixed_dictionaries({"value": odd}))
metrics = {"input_sequence_length": number, "output_sequence_length": number, "output_token_count": number}
about = {"request_start_ns": odd, "benchmark_phase": st.sampled_from(["warmup", "profiling"]), "was_cancelled": odd}
request = {"request_start_time": odd, "prompt_tokens": odd, "output_tokens": odd, "info": odd}
benchmark = {
    "requests": st.one_of(
        odd,
        st.fixed_dictionaries(
            {},
            optional={
                "successful": st.lists(st.fixed_dictionaries({}, optional=request), max_size=3),
                "errored": st.lists(odd),
            },
        ),
    )
}
nested = st.one_of(
    *(st.fixed_dictionaries({}, optional=keys) for keys in (metrics, about)),
    st.lists(st.fixed_dictionaries({}, optional=benchmark), max_size=2),
    st.lists(odd, max_size=3),
)
NESTED = {"conversations", "conversation", "messages", "input", "metadata", "metrics", "benchmarks", "input_lens",
          "output_lens", "start_times", "errors", "timing_events", "prompt", "output"}  # fmt: skip
LAYOUTS = [layout for layout in KNOWN if not layout.instead]


def columns(layout: Format) -> list[str]:
    inputs = layout.inputs(list(layout.required)) if layout.inputs else []
    return list(dict.fromkeys([*layout.required, *inputs, *layout.names([]), "output_1", "extra", "sent_ms"]))


def rows_of(layout: Format) -> st.SearchStrategy[list[dict[str, Any]]]:
    def value(name: str) -> st.SearchStrategy[Any]:
        return st.one_of(whole, odd, turns, nested) if name in NESTED else st.one_of(whole, odd)

    required = {name: value(name) for name in layout.required}
    optional = {name: value(name) for name in columns(layout) if name not in layout.required}
    first = st.fixed_dictionaries(required, optional=optional)
    later = st.fixed_dictionaries({}, optional=required | optional)
    return st.builds(lambda head, rest: [head, *rest], first, st.lists(later, max_size=5))


def check(data: bytes, **config: Any) -> list[Request] | None:
    """Builds a workload from these bytes; only WorkloadError may come out, and it says where."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(data)
        refusal = None
        try:
            requests = build_workload({"path": str(path), **config}, 3000, 1).requests
        except WorkloadError as error:
            refusal = str(error)
        if refusal is not None:
            assert PLACE.search(refusal), refusal
            assert str(path) in refusal or refusal.startswith("workload."), refusal
            return None
        assert requests
        for position, request in enumerate(requests):
            assert request.id == position
            assert request.prompt_len >= 1
            assert request.output_len >= 1
            assert request.prompt_len + request.output_len <= 3000
            assert request.max_tokens is not None
            assert request.output_len <= request.max_tokens <= 3000
            assert 0 <= request.arrival_ns < 2**63
            assert type(request.arrival_ns) is int
            assert len(prompt_tokens(request, 100, 0)) == request.prompt_len
        assert [request.arrival_ns for request in requests] == sorted(request.arrival_ns for request in requests)
        export(requests, path)
        again = build_workload({"path": str(path)}, 3000, 1).requests
        assert again == requests
        return requests


def as_csv(rows: list[dict[str, Any]], names: list[str]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.name} {layout.required[-1]}")
@QUICK
@given(data=st.data())
def test_rows(layout: Format, data: st.DataObject) -> None:
    rows = data.draw(rows_of(layout))
    config = {
        "invalid": data.draw(st.sampled_from(["error", "drop"])),
        "fit": data.draw(st.sampled_from(["drop", "clip", "scale", "error"])),
        "limit": data.draw(st.one_of(st.none(), st.integers(1, 3))),
        "max_tokens": data.draw(st.sampled_from(["auto", "true", "times:1.5", "fixed:7", "model_max"])),
    }
    kind = data.draw(st.sampled_from(["csv", "jsonl", "json", "indented"]))
    if kind == "csv":
        names = [n for n in columns(layout) if n in layout.required or data.draw(st.booleans())]
        content = as_csv(rows, names)
    elif kind == "jsonl":
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    elif kind == "indented":
        content = "\n".join(json.dumps(row, indent=1) for row in rows).encode()
    else:
        content = json.dumps(rows).encode()
    check(gzip.compress(content) if data.draw(st.booleans()) else content, **config)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.name} {layout.required[-1]}")
@QUICK
@given(data=st.data())
def test_good_rows_with_bytes_changed(layout: Format, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["csv", "jsonl", "json"]))
    rows: list[dict[str, Any]] = [
        {key: 5 for key in columns(layout) if key not in layout.columns.values() or "ids" not in key}
    ] * 3
    if "conversations" in layout.required:
        rows = [{"conversations": [{"value": "why?"}, {"value": "because"}]}] * 3
    if name == "csv":
        content = bytearray(as_csv(rows, list(rows[0])))
    else:
        text = json.dumps(rows) if name == "json" else "".join(json.dumps(row) + "\n" for row in rows)
        content = bytearray(text.encode())
    if data.draw(st.booleans()):
        content = bytearray(gzip.compress(bytes(content)))
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not content:
            break
    check(bytes(content), invalid=data.draw(st.sampled_from(["error", "drop"])))


@settings(max_examples=cases(150), deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\x1f\x8b", b"{", b"[", b"\xef\xbb\xbf", b"\xff\xfe", b"prompt_len,output_len\n"]),
)
def test_any_bytes(data: bytes, start: bytes) -> None:
    check(start + data)


@settings(max_examples=cases(50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**62), whole, whole, st.text(max_size=5)), min_size=1, max_size=20))
def test_what_is_exported_is_read_back(rows: list[tuple[int, int, int, str]]) -> None:
    text = "".join(
        json.dumps({"arrival_ns": time, "prompt_len": prompt, "output_len": output, "session": session}) + "\n"
        for time, prompt, output, session in rows
    )
    check(text.encode(), fit="scale")
