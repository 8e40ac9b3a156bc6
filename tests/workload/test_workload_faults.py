"""Faults that users met in comparable software (traces, seeds) and bad rows: each answered with file, line and rule."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.workload import WorkloadError, build_workload, prompt_tokens, stream
from schedulers.request import Request

Write = Callable[..., str]
GOOD = {"timestamp": 5, "input_length": 20, "output_length": 3, "hash_ids": [7]}


def build(path: str, **settings: Any) -> Any:
    return build_workload({"path": path, **settings}, max_model_len=4096, seed=0)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"hash_ids": [0, 1]}, "hash_ids must have ceil(input_length / block size 512) entries"),
    ({"hash_ids": []}, "hash_ids must have"),
    ({"hash_ids": [0, 1], "block_size": 16, "input_length": 33}, "hash_ids must have"),
    ({"hash_ids": "zero"}, "hash_ids is not a list of whole numbers"),
    ({"hash_ids": [1.5]}, "hash_ids is not a list of whole numbers"),
    ({"hash_ids": [True]}, "hash_ids is not a list of whole numbers"),
    ({"hash_ids": [2**64]}, "hash_ids has an entry outside"),
    ({"timestamp": None}, "timestamp is missing"),
    ({"timestamp": float("nan")}, "timestamp is not finite"),
    ({"timestamp": float("inf")}, "timestamp is not finite"),
    ({"timestamp": 1e300}, "timestamp is later than any clock"),
    ({"timestamp": 10**400}, "timestamp is not finite"),
    ({"timestamp": -1}, "timestamp is negative"),
    ({"timestamp": "soon"}, "timestamp is not a time"),
    ({"timestamp": [1]}, "timestamp is not a number"),
    ({"input_length": 0}, "input_length is below 1"),
    ({"input_length": -4}, "input_length is below 1"),
    ({"input_length": 2.5}, "input_length is not a whole number"),
    ({"input_length": float("nan")}, "input_length is not finite"),
    ({"input_length": True}, "input_length is not a number"),
    ({"input_length": 2**40}, "input_length is above"),
    ({"input_length": 10**30}, "input_length is above"),
    ({"output_length": 0}, "output_length is below 1"),
    ({"output_length": None}, "output_length is missing"),
    ({"output_length": "many"}, "output_length is not a number"),
]


@pytest.mark.parametrize(("change", "rule"), FAULTS, ids=[rule[:40] + str(i) for i, (_, rule) in enumerate(FAULTS)])
def test_a_bad_row_names_file_line_rule_and_switch(write: Write, change: dict[str, Any], rule: str) -> None:
    path = write([GOOD, GOOD | change, GOOD])
    with pytest.raises(WorkloadError) as caught:
        build(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2: "), message
    assert rule in message
    assert "workload.invalid=drop" in message
    workload = build(path, invalid="drop")
    assert len(workload.requests) == 2
    assert sum(workload.notes["dropped_invalid"].values()) == 1
    assert any(rule.split(" / ")[0] in said for said in workload.notes["dropped_invalid"])


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length"])
def test_a_missing_key_is_an_error_and_never_zero(write: Write, key: str) -> None:
    lacking = {name: value for name, value in GOOD.items() if name != key}
    with pytest.raises(WorkloadError, match=f":2: {key} is missing"):
        build(write([GOOD, lacking, GOOD]))


def test_a_file_whose_rows_all_lack_the_time_is_an_error_too(write: Write) -> None:
    path = write([{"input_length": 20, "output_length": 3, "hash_ids": [0]}])
    with pytest.raises(WorkloadError, match=":1: timestamp is missing"):
        build(path)
    assert len(build(path, arrival="burst").requests) == 1  # times that are replaced need not be there


def test_the_rows_before_the_fault_do_not_come_through_and_those_after_a_limit_do_not_matter(write: Write) -> None:
    path = write([GOOD, GOOD, GOOD | {"input_length": 0}])
    with pytest.raises(WorkloadError, match=":3: "):
        build(path)
    assert len(build(path, limit=2).requests) == 2
    with pytest.raises(WorkloadError, match=":3: "):
        build(path, limit=3)
    limited = build(write([GOOD | {"input_length": 0}, GOOD, GOOD, GOOD]), limit=2, invalid="drop")
    assert len(limited.requests) == 2
    assert limited.notes["rows_read"] == 3


def test_times_out_of_order_are_sorted_with_a_notice(write: Write) -> None:
    rows = [GOOD | {"timestamp": time, "output_length": time} for time in (30, 10, 20)]
    workload = build(write(rows))
    assert [request.output_len for request in workload.requests] == [10, 20, 30]
    assert [request.arrival_ns for request in workload.requests] == [0, 10_000_000, 20_000_000]
    assert [request.id for request in workload.requests] == [0, 1, 2]
    assert workload.notes["sorted"] == 2
    assert "out of order" in workload.notes["notices"][0]


def test_placeholders_in_the_time_column(write: Write) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    workload = build(write(header + "XXX,5,6\nXXX,7,8\n"))
    assert workload.notes["arrival"] == "burst"
    assert "no arrivals" in workload.notes["notices"][0]
    with pytest.raises(WorkloadError, match=r"no arrival times; choose workload\.arrival=burst"):
        build(write(header + "XXX,5,6\n"), arrival="trace")
    for time in ("9999-01-01 00:00:00", "0001-01-01 00:00:00", "2023-02-30 00:00:00"):
        with pytest.raises(WorkloadError, match=":3: TIMESTAMP is not a time"):
            build(write(header + f"2023-11-16 18:15:46.6805900,7,8\n{time},5,6\n"))
    mixed = write(header + "XXX,5,6\n2023-11-16 18:15:46.6805900,7,8\n")
    with pytest.raises(WorkloadError, match=":2: TIMESTAMP is not a time"):
        build(mixed)
    assert len(build(mixed, invalid="drop").requests) == 1


def test_placeholders_before_a_time_that_comes_chunks_later(write: Write) -> None:
    path = write("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "XXX,5,6\n" * 40_000 + "3.5,5,6\n")
    with pytest.raises(WorkloadError, match=":2: TIMESTAMP is not a time"):
        build(path)
    workload = build(path, invalid="drop")
    assert len(workload.requests) == 1
    assert workload.notes["dropped_invalid"] == {"TIMESTAMP is not a time": 40_000}
    assert workload.banner is not None


def test_rows_that_are_no_rows(write: Write) -> None:
    with pytest.raises(WorkloadError, match=":2: the row is not JSON"):
        build(write(json.dumps(GOOD) + "\n{broken\n"))
    with pytest.raises(WorkloadError, match=":3: the row is 17, not an object"):
        build(write(json.dumps(GOOD) + "\n\n17\n"))
    with pytest.raises(WorkloadError, match=":2: the row is not JSON"):
        build(write(json.dumps(GOOD) + "\n" + "[" * 100_000 + "\n"))
    header = "num_prefill_tokens,num_decode_tokens\n"
    with pytest.raises(WorkloadError, match=":4: the row has 3 fields, the header 2"):
        build(write(header + "1,2\n\n1,2,3\n"))
    with pytest.raises(WorkloadError, match=":3: num_decode_tokens is not a number"):
        build(write(header.encode() + b"1,2\n1,\xff\xfe\n"))
    assert len(build(write(header + "1,2\n\n1,2,3\n4,5\n"), invalid="drop").requests) == 2


def test_line_numbers_count_line_breaks_within_quotes(write: Write) -> None:
    text = 'client,req_time,prompt_len,output_len\n"a\nb",0,5,6\n\nc,1,0,6\n'
    with pytest.raises(WorkloadError, match=":5: prompt_len is below 1"):
        build(write(text))


def test_nothing_left_is_an_error(write: Write) -> None:
    path = write([GOOD | {"input_length": 0}])
    with pytest.raises(WorkloadError, match="as a whole has no valid row; 1 rows: input_length is below 1"):
        build(path, invalid="drop")
    with pytest.raises(WorkloadError, match="as a whole has no row whose prompt"):
        build(write([GOOD | {"output_length": 5000}]))


def test_64_bit_hash_ids_are_not_cut_to_32() -> None:
    for one, other in ((1, 1 + 2**32), (0, 2**63), (5, 5 + 2**48)):
        left, right = (Request(0, 0, 512, 1, hash_ids=array("Q", [ids]), hash_block=512) for ids in (one, other))
        assert (prompt_tokens(left, 50_000, 3) == prompt_tokens(right, 50_000, 3)).mean() < 0.01


def test_signed_hash_ids_are_the_same_64_bits(write: Write) -> None:
    requests = build(write([GOOD | {"hash_ids": [-1]}, GOOD | {"hash_ids": [2**64 - 1]}, GOOD])).requests
    assert requests[0].hash_ids == requests[1].hash_ids != requests[2].hash_ids


def test_equal_ids_are_equal_tokens_whoever_asks_and_a_partial_piece_is_its_beginning() -> None:
    whole = prompt_tokens(Request(0, 0, 1024, 1, hash_ids=[9, 4], hash_block=512), 1000, seed=1)
    partial = prompt_tokens(Request(77, 5, 700, 9, hash_ids=[9, 4], hash_block=512), 1000, seed=1)
    assert np.array_equal(whole[:700], partial)
    assert whole.dtype == np.int64
    assert whole.min() >= 0
    assert whole.max() < 1000


def test_the_seed_matters_and_no_two_prompts_share_a_prefix_by_chance() -> None:
    prompts = [prompt_tokens(Request(ids, 0, 64, 1), 50_000, seed) for seed in (0, 1, 2**40) for ids in range(200)]
    beginnings = {tuple(prompt[:4].tolist()) for prompt in prompts}
    assert len(beginnings) == len(prompts)
    assert np.array_equal(prompt_tokens(Request(3, 0, 64, 1), 50_000, 0), prompts[3])


def test_own_token_ids_are_kept_modulo_the_vocabulary() -> None:
    request = Request(0, 0, 3, 1, token_ids=array("i", [5, 105, 7]))
    assert prompt_tokens(request, 100, 0).tolist() == [5, 5, 7]
    with pytest.raises(WorkloadError, match="request 0"):
        prompt_tokens(Request(0, 0, 4, 1, token_ids=array("i", [5])), 100, 0)
    with pytest.raises(WorkloadError, match="vocabulary"):
        prompt_tokens(request, 0, 0)


def test_streams_do_not_run_into_each_other() -> None:
    keys = [(), (1,), (1, 1), (1 + 2**32,), (2**32, 1), (1, 2**32), (0,), (0, 0)]
    draws = {stream(0, name, *key).integers(2**63) for name in ("arrivals", "tokens") for key in keys}
    assert len(draws) == 2 * len(keys)
    for seed in (-1, 2**64, 1.5, True):
        with pytest.raises(WorkloadError, match="seed"):
            stream(seed, "arrivals")  # type: ignore[arg-type]
