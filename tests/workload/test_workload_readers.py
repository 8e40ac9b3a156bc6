"""Every format: detected by what is in the file, read as its authors mean it; the published files as a whole."""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.workload import Workload, WorkloadError, build_workload, export, prompt_tokens, unbounded_hit_rate
from harness.workload.inspect import inspect_file
from harness.workload.readers import KNOWN
from schedulers.request import Request

Write = Callable[..., str]


def build(path: str | Path, max_model_len: int = 10**6, seed: int = 0, **settings: Any) -> Workload:
    return build_workload({"path": str(path), **settings}, max_model_len, seed)


def triples(workload: Workload) -> list[tuple[float, int, int]]:
    return [(request.arrival_ns / 1e9, request.prompt_len, request.output_len) for request in workload.requests]


SAMPLES: list[tuple[str, str, list[tuple[float, int, int]]]] = [
    ("kvlab", "arrival_s,prompt_len,output_len\n0.5,10,20\n1,30,40\n", [(0.5, 10, 20), (1, 30, 40)]),
    ("kvlab", "prompt_len;output_len\n10;20\n", [(0, 10, 20)]),
    ("kvlab", '{"prompt_len": 10, "output_len": 20, "arrival_ns": 7}\n', [(7e-9, 10, 20)]),
    (
        "Azure LLM inference",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:50.9951690,396,9",
        [(0, 374, 44), (4.314579, 396, 9)],
    ),
    (
        "Azure LLM inference",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,6\n"
        "2024-05-10 00:00:01+00:00,7,8\n",
        [(0, 5, 6), (0.99007, 7, 8)],
    ),
    (
        "Mooncake",
        '{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 30535, "input_length": 12, "output_length": 1, "hash_ids": [46], "session_id": "a"}\n',
        [(0, 600, 52), (3.053, 12, 1)],
    ),
    (
        "Bailian",
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 9, '
        '"type": "text", "turn": 1, "hash_ids": [1, 2, 3]}\n',
        [(0, 33, 9)],
    ),
    (
        "BurstGPT",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,1087,230,1317,API log\n",
        [(0, 472, 18), (40, 1087, 230)],
    ),
    (
        "BurstGPT",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.5,,2,ChatGPT,472,18,490,API log\n6,s1,3,GPT-4,10,20,30,Conversation log\n",
        [(0, 472, 18), (0.5, 10, 20)],
    ),
    (
        "Vidur",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.25,396,109\n",
        [(0, 374, 44), (4.25, 396, 109)],
    ),
    ("Vidur", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n", [(0, 74, 918)]),
    (
        "LLMServingSim",
        '{"input_toks": 3, "output_toks": 70, "arrival_time_ns": 100, "input_tok_ids": [1, 2, 3]}\n'
        '{"input_toks": 4, "output_toks": 71, "arrival_time_ns": 250}\n',
        [(0, 3, 70), (150e-9, 4, 71)],
    ),
    (
        "LLMServingSim",
        '{"request_id": "b-0", "input_toks": 3, "output_toks": 7, "arrival_time": 1787267980.5, "queued_ts": 1.5}\n'
        '{"request_id": "b-1", "input_toks": 3, "output_toks": 7, "arrival_time": 1787267981.75, "queued_ts": 2.5}\n',
        [(0, 3, 7), (1.25, 3, 7)],
    ),
    (
        "ShareGPT",
        '[\n {"id": "a", "conversations": [{"from": "human", "value": "12345"}, {"from": "gpt", "value": "1234"}]},\n'
        ' {"conversations": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good day"}]}\n]\n',
        [(0, 2, 1), (0, 1, 2)],
    ),
    ("vllm bench custom", '{"prompt": "What is this?", "output_tokens": 10}\n', [(0, 4, 10)]),
    ("vllm bench custom", '{"prompt": "What is this?", "expected_output_len": 11}\n', [(0, 4, 11)]),
    (
        "VTC",
        "req_id,client,req_time,prompt_len,output_len\n0,13,1.5,13,199\n1,2,1.75,36,137\n",
        [(0, 13, 199), (0.25, 36, 137)],
    ),
    ("ServeGen", "timestamp_s,client_id,input_tokens,output_tokens\n0.5,31,247,38\n", [(0, 247, 38)]),
    (
        "APEX",
        '{"ContextTokens": 304, "GeneratedTokens": 8, "StartTimeOffset": 500, "RequestID": "x", "TotalTokens": 312}\n',
        [(0, 304, 8)],
    ),
    (
        "SplitwiseSim",
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,10.5,1,2048,64\n1,2,0,11.25,1,512,16\n",
        [(0, 2048, 64), (0.75, 512, 16)],
    ),
    ("plain columns", "arrival_time,input_len,output_len\n0.0,100,20\n0.7,120,20\n", [(0, 100, 20), (0.7, 120, 20)]),
    (
        "vllm bench serve",
        '{"backend": "vllm", "completed": 2, "total_output_tokens": 20, "input_lens": [10, 20], '
        '"output_lens": [8, 12], "start_times": [100.0, 100.5], "generated_texts": ["a", "b"], "errors": ["", ""], '
        '"itls": [[0.1], [0.2]]}\n',
        [(0, 10, 8), (0.5, 20, 12)],
    ),
    (
        "SGLang bench_serving",
        '{"dataset_name": "random", "input_lens": [10, 20], "output_lens": [8, 12], "ttfts": [0.1, 0.2]}\n',
        [(0, 10, 8), (0, 20, 12)],
    ),
    (
        "AIPerf",
        '{"metadata": {"session_num": 0, "request_start_ns": 1000000000000000000, "benchmark_phase": "profiling"}, '
        '"metrics": {"input_sequence_length": {"value": 100, "unit": "tokens"}, '
        '"output_sequence_length": {"value": 20, "unit": "tokens"}}, "error": null}\n'
        '{"metadata": {"session_num": 1, "timestamp_ns": 1000000000250000000, "credit_phase": "profiling"}, '
        '"metrics": {"input_sequence_length": 101, "output_token_count": 20, "reasoning_token_count": 3}}\n',
        [(0, 100, 20), (0.25, 101, 23)],
    ),
    (
        "guidellm",
        '{"metadata": {"version": 1},\n "benchmarks": [{"config": {"strategy": {"type_": "constant"}}, "requests": '
        '{"successful": [{"request_start_time": 1.0, "prompt_tokens": 128, "output_tokens": 64},\n'
        '{"info": {"timings": {"request_start": 2.5}}, "input_metrics": {"text_tokens": 100}, '
        '"output_metrics": {"text_tokens": 60}}]}}]}\n',
        [(0, 128, 64), (1.5, 100, 60)],
    ),
    (
        "LMSYS-Chat",
        '{"conversation_id": "c1", "model": "vicuna", "conversation": [{"role": "user", "content": "Hi there"}, '
        '{"role": "assistant", "content": "Hello! How can I help?"}], "turn": 1, "language": "English"}\n',
        [(0, 2, 6)],
    ),
    (
        "LMSYS-Chat",  # WildChat, whose conversations have a time
        '{"conversation_hash": "c1", "timestamp": "2023-04-09T00:02:53+00:00", "conversation": [{"role": "user", '
        '"content": "Hi there"}, {"role": "assistant", "content": "Hello!"}]}\n'
        '{"conversation_hash": "c2", "timestamp": "2023-04-09T00:02:55.5+00:00", "conversation": [{"role": "user", '
        '"content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}\n',
        [(0, 2, 2), (2.5, 1, 2)],
    ),
    (
        "Chatbot Arena",
        '{"question_id": "q", "conversation_a": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": '
        '"Because"}], "conversation_b": [], "winner": "a", "tstamp": 1682351591.13}\n',
        [(0, 1, 2)],
    ),
    (
        "messages",
        '{"messages": [{"role": "system", "content": "be nice"}, {"role": "user", "content": [{"type": "text", "text": '
        '"Hi there"}]}, {"role": "assistant", "content": "Hello! How can I help?"}, {"role": "user", "content": '
        '"Bye"}]}\n{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}], '
        '"output_length": 9}\n',
        [(0, 4, 6), (0, 1, 9)],
    ),
    (
        "prompts and answers",
        '{"instruction": "Add them.", "input": "1 and 2", "output": "3"}\n'
        '{"instruction": "Sing", "input": "", "output": "La la la"}\n',
        [(0, 4, 1), (0, 1, 2)],
    ),
    (
        "LMCache agent calls",
        '{"timestamp": 1760428436442742, "input": "You are an agent", "output": "I see", "session_id": "a"}\n'
        '{"timestamp": 1760428437442742, "input": "You are an agent", "output": "I saw", "session_id": "a"}\n',
        [(0, 4, 2), (1, 4, 2)],
    ),
    (
        "LMCache agent calls",
        '{"session_id": "a", "model": "m", "input": [{"role": "user", "content": "Fix"}, {"role": "assistant", '
        '"content": null, "tool_calls": [{"id": 1}]}], "output_length": 17, "pre_gap": 1.5}\n',
        [(0, 4, 17)],
    ),
    (
        "agent rounds",
        '{"session_id": "s", "round_index": 0, "input_tokens_total": 300, "prefix_tokens": 200, "newly_append_tokens": '
        '100, "output_tokens": 30, "timing_events": [{"event_type": "user_message", "timestamp": '
        '"2026-01-01T00:00:00.000Z"}, {"event_type": "text", "timestamp": "2026-01-01T00:00:02.000Z"}]}\n'
        '{"session_id": "s", "round_index": 1, "input_tokens_total": 420, "prefix_tokens": 330, "newly_append_tokens": '
        '90, "output_tokens": 20, "timing_events": [{"event_type": "tool_result", "timestamp": '
        '"2026-01-01T00:00:09.000Z"}]}\n',
        [(0, 300, 30), (9, 420, 20)],
    ),
    ("castillo", "input_size,output_0,output_1\n129,57,57\n", [(0, 129, 57)]),
    ("castillo JSON", '[{"input_size": 129, "output_sizes": [57, 57, 57], "model": "m"}]', [(0, 129, 57)]),
]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(("kind", "text", "expected"), SAMPLES, ids=[f"{s[0]}-{i}" for i, s in enumerate(SAMPLES)])
def test_every_format_is_told_by_its_content(
    write: Write, kind: str, text: str, expected: list[tuple[float, int, int]], packed: bool
) -> None:
    workload = build(write(text, "misleading.bin", packed))
    assert workload.notes["format"] == kind
    assert len(workload.requests) == len(expected)
    for found, wanted in zip(triples(workload), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-12)
    marked = build(write("\ufeff" + text.replace("\r\n", "\n").replace("\n", "\r\n"), "marked.txt", packed))
    assert marked.requests == workload.requests  # a byte order mark and Windows line ends change nothing


def test_every_known_format_has_a_sample() -> None:
    known = {layout.name for layout in KNOWN if not layout.instead} | {"plain columns"}
    assert known == {kind for kind, _, _ in SAMPLES}


def test_columns_are_found_by_name_in_any_order(write: Write) -> None:
    path = write('"Response tokens","x","Request tokens","Timestamp"\n18,a,472,5\n')
    assert triples(build(path)) == [(0, 472, 18)]


def test_what_is_not_a_trace_is_said_with_the_known_kinds(write: Write) -> None:
    cases = {
        "FROM fairest creatures we desire increase,\nThat\n": "'FROM fairest creatures we desire increase,'",
        '{\n  "schema_version": 1\n}\n': "'{'",
        "t,running,waiting,kv_cache_pct\n1.0,5,2,13.2\n": "'t,running,waiting,kv_cache_pct'",
        "12,30,40\n": "no line of column names",
        "[1, 2, 3]": "not a trace",
        "\x00\x01\x02": "not a trace",
    }
    for text, said in cases.items():
        path = write(text)
        with pytest.raises(WorkloadError) as caught:
            build(path)
        assert str(caught.value).startswith(f"{path}:1: not a trace: it begins with ")
        assert said in str(caught.value)
        assert "Mooncake: input_length, output_length" in str(caught.value)
    with pytest.raises(WorkloadError, match="the nearest kind is Vidur, for which it lacks num_decode_tokens"):
        build(write("arrived_at,num_prefill_tokens,num_decode_token\n0,1,2\n"))


def test_files_that_cannot_be_read_at_all(write: Write, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="as a whole is empty"):
        build(write(""))
    with pytest.raises(WorkloadError, match="as a whole is empty"):
        build(write(" \n\n"))
    with pytest.raises(WorkloadError, match="as a whole has no rows"):
        build(write("[]"))
    with pytest.raises(WorkloadError, match="no valid row"):
        build(write("prompt_len,output_len\n"))
    with pytest.raises(WorkloadError, match="there is no such file"):
        build(tmp_path / "nowhere.csv")
    with pytest.raises(WorkloadError, match="as a whole cannot be read"):
        build(tmp_path)
    whole = gzip.compress(b"prompt_len,output_len\n" + b"12,34\n" * 5000)
    for cut in (whole[:-20], whole[:-8] + bytes(8), b"\x1f\x8bnonsense"):
        with pytest.raises(WorkloadError, match="damaged gzip"):
            build(write(cut))
    with pytest.raises(WorkloadError, match=r":3: not a JSON array"):
        build(write('[{"conversations": [{"value": "a"}, {"value": "b"}]},\n\n {"conversations": oops}]'))
    with pytest.raises(WorkloadError, match=r":2: not a JSON array: a comma is missing"):
        build(write('[{"conversations": [{"value": "a"}, {"value": "b"}]}\n {"conversations": []}]'))


def test_texts_that_begin_alike_share_their_prefix(write: Write) -> None:
    system = "You are a helpful assistant. " * 20
    rows = [{"prompt": system + question, "output_tokens": 5} for question in ("Why?", "How come?")]
    one, other = build(write(rows)).requests
    same = prompt_tokens(one, 10_000, 0)[:144] == prompt_tokens(other, 10_000, 0)[:144]
    assert same.all()
    assert "characters / 4" in build(write(rows)).notes["notices"][0]


def test_castillo_takes_one_recorded_output_by_seed_or_by_number(write: Write) -> None:
    path = write("input_size," + ",".join(f"output_{i}" for i in range(10)) + "\n" + "9,1,2,3,4,5,6,7,8,9,10\n" * 300)
    by_seed = [[request.output_len for request in build(path, seed=seed).requests] for seed in (0, 0, 1)]
    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert set(by_seed[0]) == set(range(1, 11))
    assert {request.output_len for request in build(path, sample=3).requests} == {4}
    with pytest.raises(WorkloadError, match=r"workload\.sample=10"):
        build(path, sample=10)


def test_large_json_arrays_are_decoded_piece_by_piece(write: Write) -> None:
    turns = [{"value": "x" * 3000}, {"value": "y" * 400}]
    text = json.dumps([{"conversations": turns, "id": index} for index in range(1000)])
    workload = build(write(text))
    assert len(workload.requests) == 1000
    assert triples(workload)[-1] == (0, 750, 100)


@pytest.mark.parametrize("name", ["workload.jsonl", "workload.csv", "workload.jsonl.gz", "workload.csv.gz"])
def test_export_reads_back_to_the_same_requests(tmp_path: Path, name: str) -> None:
    requests = [
        Request(0, 0, 33, 7, max_tokens=9, hash_ids=array("Q", [1, 2**64 - 1, 5]), hash_block=16, session='a,b"c\nd'),
        Request(1, 5, 2, 1, max_tokens=1, token_ids=array("i", [3, 4]), priority=-2),
        Request(2, 2**60 + 1, 4, 1, max_tokens=1),
    ]
    export(requests, tmp_path / name)
    assert build(tmp_path / name).requests == requests


def test_export_of_a_read_trace_is_exact(tmp_path: Path, traces: Path) -> None:
    for name in ("agent_magagent_b512.jsonl.gz", "llmservingsim_example_trace.jsonl.gz", "azure2023_conv.csv.gz"):
        requests = build(traces / name, 4096, fit="clip", invalid="drop", max_tokens="times:1.5").requests
        export(requests, tmp_path / "workload.jsonl")
        assert build(tmp_path / "workload.jsonl", 4096).requests == requests
    with pytest.raises(WorkloadError, match="cannot be written"):
        export(requests, tmp_path / "no" / "folder.jsonl")


NOT_TRACES = ("meta.json.gz", "timeseries.csv.gz", "sonnet.txt.gz")


def test_every_published_trace_is_read_and_inspected(traces: Path) -> None:
    rows = {"azure2023_conv.csv.gz": 19366, "etalon_bwb.csv.gz": 33768, "nanoflow_sharegpt.csv.gz": 58787}
    for path in sorted(traces.glob("*.gz")):
        if path.name.endswith(NOT_TRACES):
            with pytest.raises(WorkloadError, match="not a trace: it begins with"):
                build(path)
            continue
        workload = build(path, 2048, fit="scale", limit=64, invalid="drop")
        assert len(workload.requests) == min(64, workload.notes["rows_read"]), path.name
        assert all(request.prompt_len + request.output_len <= 2048 for request in workload.requests)
        json.dumps(workload.notes, allow_nan=False)
        if path.name in rows:
            assert len(build(path).requests) == rows[path.name]
        output = StringIO()
        inspect_file(path, Console(file=output, width=100))
        assert workload.notes["format"] in output.getvalue()
        assert "prompt" in output.getvalue()


def test_the_agent_trace_has_53_empty_prompts(traces: Path) -> None:
    path = traces / "agent_magagent_b512.jsonl.gz"
    with pytest.raises(
        WorkloadError, match=r":4: input_length is below 1 \(input_length is 0\); workload.invalid=drop"
    ):
        build(path)
    workload = build(path, invalid="drop")
    assert workload.notes["dropped_invalid"] == {"input_length is below 1": 53}
    assert len(workload.requests) == 693
    assert len({request.session for request in workload.requests}) == 25


def test_an_unbounded_prefix_cache_hits_37_percent_of_the_mooncake_conversations(traces: Path) -> None:
    rate = unbounded_hit_rate(build(traces / "mooncake_conversation.jsonl.gz").requests)
    assert rate == pytest.approx(0.37, abs=0.01)


def test_hit_rate_by_hand() -> None:
    def request(length: int, ids: list[int] | None, tokens: list[int] | None = None) -> Request:
        return Request(0, 0, length, 1, hash_ids=ids, hash_block=4 if ids else 0, token_ids=tokens)

    assert unbounded_hit_rate([request(8, None)]) is None
    assert unbounded_hit_rate([request(8, [1, 2]), request(8, [1, 3]), request(4, None)]) == pytest.approx(4 / 20)
    assert unbounded_hit_rate([request(8, [1, 2]), request(8, [3, 2])]) == 0  # the same piece elsewhere is no prefix
    assert unbounded_hit_rate([request(7, [1, 2]), request(7, [1, 2])]) == pytest.approx(0.5)
    assert unbounded_hit_rate([request(3, None, [1, 2, 3]), request(3, None, [1, 2, 9])]) == pytest.approx(2 / 6)
