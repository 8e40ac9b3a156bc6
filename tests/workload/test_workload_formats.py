"""What benchmarks, chat logs, agents and Parquet files hold beyond one good row of each."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from rich.console import Console

from harness.workload import Workload, WorkloadError, build_workload, unbounded_hit_rate
from harness.workload.inspect import inspect_file
from harness.workload.readers.chats import exchange

Write = Callable[..., str]
RUN = {"backend": "vllm", "request_rate": 2.0, "completed": 3, "total_output_tokens": 30, "input_lens": [10, 20, 30],
       "output_lens": [8, 12, 10], "errors": ["", "", ""]}  # fmt: skip


def build(path: str | Path, **settings: Any) -> Workload:
    return build_workload({"path": str(path), **settings}, 10**6, 0)


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return [(request.prompt_len, request.output_len) for request in workload.requests]


def test_a_benchmark_without_details_is_told_how_to_get_them(write: Write) -> None:
    sums = {key: value for key, value in RUN.items() if not isinstance(value, list)}
    for text in (json.dumps(sums), json.dumps(sums, indent=1), json.dumps(sums) + "\n" + json.dumps(sums)):
        with pytest.raises(
            WorkloadError, match=r"sums of a benchmark without its requests: .*--save-detailed .*--output-d"
        ):
            build(write(text))


def test_a_benchmark_without_start_times_has_no_arrivals(write: Write) -> None:
    path = write(json.dumps(RUN))
    workload = build(path)
    assert lengths(workload) == [(10, 8), (20, 12), (30, 10)]
    assert "workload.arrival=poisson with the run's request_rate" in workload.notes["notices"][0]
    assert build(path, arrival="poisson", rate=2.0).requests[-1].arrival_ns > 0
    with pytest.raises(WorkloadError, match="no arrival times"):
        build(path, arrival="trace")


def test_requests_that_failed_when_measured_are_faults(write: Write) -> None:
    path = write(json.dumps(RUN | {"errors": ["", "Timeout", ""], "output_lens": [8, 0, 10]}, indent=1))
    with pytest.raises(WorkloadError, match=r":request 2: the request failed: 'Timeout'; workload\.invalid=drop"):
        build(path)
    assert lengths(build(path, invalid="drop")) == [(10, 8), (30, 10)]
    with pytest.raises(WorkloadError, match=r"damaged: it has 3 input_lens, 2 output_lens"):
        build(write(json.dumps(RUN | {"output_lens": [1, 2]})))


def test_of_several_runs_one_is_chosen(write: Write) -> None:
    runs = [RUN | {"request_rate": rate, "input_lens": [rate, 1, 2]} for rate in (1, 4, 16)]
    path = write("".join(json.dumps(run) + "\n" for run in runs))
    with pytest.raises(WorkloadError, match=r"holds 3 runs; workload\.sample=N says which .*1: request_rate=4"):
        build(path)
    assert build(path, sample=1).requests[0].prompt_len == 4
    with pytest.raises(WorkloadError, match=r"workload\.sample=3: .* holds 3 runs, counted from 0"):
        build(path, sample=3)


def test_guidellm_reports(write: Write) -> None:
    def benchmark(kind: str, start: float) -> dict[str, Any]:
        good = {"request_start_time": start, "prompt_tokens": 128, "output_tokens": 64}
        return {
            "config": {"strategy": {"type_": kind}},
            "requests": {"successful": [good], "incomplete": [good], "errored": []},
        }

    one = write(json.dumps({"benchmarks": [benchmark("constant", 1.0)]}))
    with pytest.raises(WorkloadError, match=":request 2: the request did not finish when it was measured"):
        build(one)
    assert lengths(build(one, invalid="drop")) == [(128, 64)]
    several = write(json.dumps({"benchmarks": [benchmark("constant", 1.0), benchmark("poisson", 2.0)]}, indent=1))
    with pytest.raises(
        WorkloadError, match=r"holds 2 runs; workload\.sample=N says which \(0: type_=constant, 1: type_=poi"
    ):
        build(several)
    assert len(build(several, sample=1, invalid="drop").requests) == 1
    with pytest.raises(WorkloadError, match="guidellm report without benchmarks"):
        build(write('{"benchmarks": []}'))


def test_aiperf_leaves_the_warm_up_out_and_tells_failures(write: Write) -> None:
    def record(phase: str, **more: Any) -> dict[str, Any]:
        about = {"request_start_ns": 10**18, "benchmark_phase": phase, "conversation_id": "c"}
        values = {"input_sequence_length": {"value": 100}, "output_sequence_length": {"value": 20}}
        return {"metadata": about, "metrics": values, "error": None, **more}

    path = write([record("warmup"), record("profiling"), record("profiling", error={"code": 503, "message": "busy"})])
    with pytest.raises(WorkloadError, match=":3: the request failed or was cancelled: 'busy'"):
        build(path)
    workload = build(path, invalid="drop")
    assert lengths(workload) == [(100, 20)]
    assert workload.requests[0].session == "c"
    assert "1 rows were left out: of the warm-up" in workload.notes["notices"]
    with pytest.raises(WorkloadError, match=r"a summary of AIPerf: its requests are in profile_export\.jsonl"):
        build(write([{"request_latency": {}, "request_throughput": {}}]))


def test_our_own_tables_are_known(write: Write) -> None:
    with pytest.raises(WorkloadError, match=r"a run of ours: its requests are in workload\.jsonl"):
        build(write('{"system": "vLLM", "status": "finished", "workload_notes": {}}'))
    table = "id,status,arrival_s,first_token_s,prompt_tokens,output_tokens\n0,finished,0.5,1.5,10,20\n"
    workload = build(write(table))
    assert lengths(workload) == [(10, 20)]
    assert any("first_token_s" in said for said in workload.notes["notices"])


CONVERSATIONS: list[tuple[list[Any], tuple[str | None, str | None]]] = [
    ([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}], ("a", "b")),
    ([{"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], ("sa", "b")),
    ([{"from": "gpt", "value": "hi"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], ("hia", "b")),
    ([{"value": "a"}, {"value": "b"}], ("a", "b")),
    ([{"from": "one", "value": "a"}, {"from": "two", "value": "b"}], ("a", "b")),
    ([{"role": "user", "content": "a"}], ("a", None)),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c"}], ("ab", "c")),
    ([], (None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("turns", "expected"), CONVERSATIONS, ids=[f"{i}" for i in range(len(CONVERSATIONS))])
def test_the_first_exchange_of_a_conversation(turns: list[Any], expected: tuple[str | None, str | None]) -> None:
    assert tuple(text if isinstance(text, str) else None for text in exchange(turns)) == expected


def test_a_conversation_without_an_answer_is_a_fault(write: Write) -> None:
    with pytest.raises(WorkloadError, match=":1: the answer is missing"):
        build(write([{"messages": [{"role": "user", "content": "a"}]}]))
    with pytest.raises(WorkloadError, match=":1: the prompt is missing"):
        build(write([{"messages": "hello"}]))


def test_a_conversation_may_be_json_in_a_cell(write: Write) -> None:
    turns = json.dumps([{"role": "user", "content": "Why, o why?"}, {"role": "assistant", "content": "So"}])
    cell = turns.replace('"', '""')
    assert lengths(build(write(f'id,conversation\n1,"{cell}"\n'))) == [(3, 1)]


def test_our_fields_are_read_from_plain_tables_too(write: Write) -> None:
    [request] = build(write("Prompt Len,Output Len,Max Tokens,Priority,n\n10,20,30,-1,2\n")).requests
    assert (request.prompt_len, request.output_len, request.max_tokens, request.priority, request.n) == (
        10,
        20,
        30,
        -1,
        2,
    )


def test_a_table_of_input_and_output_may_hold_lengths(write: Write) -> None:
    assert lengths(build(write("input,output\n100,20\n7,8\n"))) == [(100, 20), (7, 8)]
    assert lengths(build(write("input,output\nWhat is it?,Nothing\n"))) == [(3, 2)]


def test_rounds_of_an_agent_share_what_they_say_they_share(write: Write) -> None:
    def turn(session: str, index: int, total: int, prefix: int) -> dict[str, Any]:
        events = [{"event_type": "user_message", "timestamp": f"2026-01-01T00:00:0{index}Z"}]
        return {"session_id": session, "round_index": index, "input_tokens_total": total, "prefix_tokens": prefix,
                "output_tokens": 5, "timing_events": events}  # fmt: skip

    workload = build(write([turn("a", 0, 320, 160), turn("a", 1, 480, 320), turn("b", 2, 320, 160)]))
    first, second, other = workload.requests
    assert list(second.hash_ids)[:20] == list(first.hash_ids)
    assert list(other.hash_ids)[:10] == list(first.hash_ids)[:10]
    assert set(other.hash_ids[10:]).isdisjoint(first.hash_ids)
    assert unbounded_hit_rate(workload.requests) == pytest.approx((320 + 160) / 1120)
    assert {request.session for request in workload.requests} == {"a", "b"}
    with pytest.raises(WorkloadError, match=":1: prefix_tokens is 9 of 8 input_tokens_total"):
        build(write([turn("a", 0, 8, 9)]))
    with pytest.raises(WorkloadError, match=":1: input_tokens_total is 1000000000000000, more than 10000000"):
        build(write([turn("a", 0, 10**15, 9)]))


def table(tmp_path: Path, columns: dict[str, Any]) -> Path:
    path = tmp_path / "trace.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet(tmp_path: Path) -> None:
    stamps = [datetime.datetime(2023, 11, 16, 18, 15, 46), datetime.datetime(2023, 11, 16, 18, 15, 47, 500_000)]
    short = pyarrow.array([44, 9], pyarrow.int16())
    path = table(tmp_path, {"TIMESTAMP": pyarrow.array(stamps, pyarrow.timestamp("ns")), "ContextTokens": [374, 396],
                            "GeneratedTokens": short, "model": ["a", "b"]})  # fmt: skip
    workload = build(path)
    assert [(r.arrival_ns, r.prompt_len, r.output_len) for r in workload.requests] == [
        (0, 374, 44),
        (1_500_000_000, 396, 9),
    ]
    output = StringIO()
    inspect_file(path, Console(file=output, width=120))
    assert "TIMESTAMP → arrival dates" in output.getvalue()
    assert "model" in output.getvalue()


def test_parquet_of_a_chat_log_and_of_faulty_rows(tmp_path: Path) -> None:
    turns = [[{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Hello!"}]]
    stamp = pyarrow.array([datetime.datetime(2023, 4, 9)], pyarrow.timestamp("us", tz="UTC"))
    assert lengths(build(table(tmp_path, {"conversation": turns, "timestamp": stamp}))) == [(2, 2)]
    faulty = table(tmp_path, {"input_len": [1, 2, None], "output_len": [1, 2, 3]})
    with pytest.raises(WorkloadError, match=r":row 3: input_len is missing \(input_len is None\)"):
        build(faulty)
    with pytest.raises(WorkloadError, match=r"no arrival time that kvlab knows .* sent looks like one"):
        build(table(tmp_path, {"sent": [0.0, 1.5], "prompt_len": [1, 2], "output_len": [3, 4]}))
    with pytest.raises(WorkloadError, match="not a trace: it begins with 'a, b'"):
        build(table(tmp_path, {"a": [1], "b": [2]}))
    whole = faulty.read_bytes()
    faulty.write_bytes(whole[:-20])
    with pytest.raises(WorkloadError, match="damaged Parquet"):
        build(faulty)


def test_parquet_of_benchmark_like_rows_is_unfolded(tmp_path: Path) -> None:
    events = [[{"event_type": "user_message", "timestamp": "2026-01-01T00:00:00Z"}]]
    path = table(tmp_path, {"session_id": ["s"], "input_tokens_total": [64], "prefix_tokens": [0], "output_tokens": [4],
                            "timing_events": events})  # fmt: skip
    assert lengths(build(path)) == [(64, 4)]
