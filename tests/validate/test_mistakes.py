"""What is missing or does not fit is named, with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.tasks.claims import composed
from tests.validate.made_up import META, ROWS, changed, validate, write, write_lines, write_profile, write_run


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "profile")


def error(folder: Path, *arguments: Any) -> str:
    row = validate(folder / "out", *arguments)
    assert row["status"] == "failed"
    assert not row["error"].startswith(("KeyError", "TypeError", "ValueError", "AttributeError", "IndexError"))
    return str(row["error"])


def test_files_that_are_not_named_or_not_there(tmp_path: Path, profile: Path) -> None:
    run = write_run(tmp_path)
    assert "needs validate.profile=DIR" in error(tmp_path, run, None)
    assert "needs validate.measured=FILE" in error(tmp_path, None, profile)
    assert "/no.jsonl: there is no such file" in error(tmp_path, tmp_path / "no.jsonl", profile)
    assert "/no: there is no such folder" in error(tmp_path, run, tmp_path / "no")
    assert "validate.meta=" in error(tmp_path, run, profile, f"validate.meta={tmp_path}/no.json")
    assert "validate.prompts=" in error(tmp_path, run, profile, f"validate.prompts={tmp_path}/no.jsonl")


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ROWS[1].items() if name != key}


@pytest.mark.parametrize(("row", "said"), [
    ({**ROWS[1], "input_toks": None}, ":2: input_toks must be a whole number of tokens >= 1, not None"),
    ({**ROWS[1], "output_toks": 10**20}, ":2: output_toks must be below 2**31 tokens, not 1"),
    ({**ROWS[1], "output_toks": 0}, ":2: output_toks must be a whole number of tokens >= 1, not 0"),
    (without("output_toks"), ":2: output_toks must be a whole number of tokens >= 1, is missing"),
    (without("queued_ts"), ":2: queued_ts, the engine's stamp (s) of the arrival, is missing"),
    ({**ROWS[1], "queued_ts": "soon"}, ":2: queued_ts, the engine's stamp (s) of the arrival, not 'soon'"),
    ({**ROWS[1], "arrival_time": "2026-01-01"}, ":2: arrival_time must be seconds, not '2026-01-01'"),
    ({**ROWS[1], "first_token_ts": 4.0}, ":2: queued_ts, first_token_ts, last_token_ts must be in this order"),
])  # fmt: skip
def test_faulty_rows(tmp_path: Path, profile: Path, row: dict[str, Any], said: str) -> None:
    assert said in error(tmp_path, write_run(tmp_path, [ROWS[0], row]), profile)


def test_several_tables(tmp_path: Path, profile: Path) -> None:
    """The only ones below a folder are taken; with more of them there is no telling."""
    (tmp_path / "all").mkdir()
    profile.rename(tmp_path / "all/one")
    run = write_run(tmp_path)
    assert validate(tmp_path / "out", run, tmp_path / "all")["mean_error_pct"] < 0.001
    write_profile(tmp_path / "all/other")
    assert "there are several tables in it, in one, other; name one" in error(tmp_path, run, tmp_path / "all")


def test_a_misspelt_key_is_answered_with_the_nearest() -> None:
    from harness.__main__ import EXPERIMENTS
    from harness.console.mistakes import explained

    with pytest.raises(HarnessError, match=r"no config key 'validate.layer'; did you mean validate\.layers"), \
            explained(EXPERIMENTS):  # fmt: skip
        composed(["experiment=validate", "validate.layer=3"])


def test_faulty_files(tmp_path: Path, profile: Path) -> None:
    run = write_run(tmp_path)
    for text, said in (
        ("", "the file has no request"),
        ("{\n", ":1: not JSON"),
        ("[1]\n", ":1: must be a JSON object"),
    ):
        write(run, text)
        assert said in error(tmp_path, run, profile)
    run.write_bytes(b"\x1f\x8b broken")
    assert "can't be read" in error(tmp_path, run, profile)
    never = [{**row, "first_token_ts": None} for row in ROWS]
    assert "no request has both" in error(tmp_path, write_run(tmp_path, never), profile)
    write(write_run(tmp_path).with_name("run.meta.json"), "[]")
    assert "run.meta.json must be a JSON object" in error(tmp_path, run, profile)


@pytest.mark.parametrize(("key", "value", "said"), [
    ("kv_cache.num_gpu_blocks", "many", "kv_cache.num_gpu_blocks must be a whole number, not 'many'"),
    ("kv_cache.num_gpu_blocks", 1, "num_gpu_blocks = 1 (meta file: kv_cache.num_gpu_blocks) is no size"),
    ("kv_cache.num_gpu_blocks", 6, "request b, which the engine served, can't be served under these settings"),
    ("kv_cache.enable_prefix_caching", 1, "kv_cache.enable_prefix_caching must be true or false, not 1"),
    ("kv_cache.block_size", 5, "block_size must be a power of two"),
    ("vllm_version", "newest", "meta file: vllm_version: 'newest' is no version such as 0.19.0"),
    ("engine_kwargs.data_parallel_size", 0, "data_parallel = 0 (meta file: engine_kwargs.data_parallel_size) is no"),
    ("engine_kwargs.enable_expert_parallel", True, "the run shared its experts, and"),
    ("resolved_config.parallel_config.pipeline_parallel_size", 4, "the run had 4 pipeline stages"),
    ("resolved_config.speculative_config", {"num_speculative_tokens": 3}, "decoded speculatively"),
    ("resolved_config.model_config", {}, "how many decoder layers has Tiny-1B?"),
    ("engine_kwargs.scheduling_policy", "random", "scheduler.policy must be one of fcfs"),
])  # fmt: skip
def test_runs_that_are_not_described(tmp_path: Path, profile: Path, key: str, value: Any, said: str) -> None:
    assert said in error(tmp_path, write_run(tmp_path, meta=changed(META, key, value)), profile)


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: write(folder / name, (folder / name).read_text().replace(old, new))


@pytest.mark.parametrize(("spoil", "said"), [
    (drop("attention.csv"), "there is no attention.csv or attention.csv.gz"),
    (replace("dense.csv", "time_us", "time_ms"), "dense.csv lacks the column time_us; it has layer, tokens, time_ms"),
    (replace("dense.csv", "o_proj,1,1\n", "o_proj,1,fast\n"), "time_us is no number, but 'fast'"),
    (replace("dense.csv", "act_fn", "act"), "the kernel tables lack act_fn"),
    (replace("meta.yaml", "model", "skew_fit: {enabled: true}\nmodel"), "there is no skew_fit.csv"),
    (replace("meta.yaml", "model", "- model"), "meta.yaml"),
    (replace("attention.csv", "2048,0,0,0,", "2048,0,0,0,x"), "attention.csv:4: time_us is no number"),
])  # fmt: skip
def test_tables_that_are_not_whole(tmp_path: Path, profile: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoil(profile)
    assert said in error(tmp_path, write_run(tmp_path), profile)


def test_prompts_that_do_not_fit(tmp_path: Path, profile: Path) -> None:
    run = write_run(tmp_path)
    good = {"request_id": "a", "input_length": 16, "block_size": 4, "hash_ids": [1, 2, 3, 4]}
    for row, said in (
        (good, "there is no prompt of request b"),
        ({**good, "hash_ids": [1]}, ":1: 16 tokens in pieces of block_size=4 have not 1 hash_ids"),
        ({**good, "hash_ids": ["x"] * 4}, ":1: hash_ids must be whole numbers"),
        ({**good, "block_size": None}, ":1: 16 tokens in pieces of block_size=None"),
        ({"timestamp": 1}, ":1: prompts need request_id, input_length, block_size and hash_ids"),
    ):
        path = write_lines(tmp_path / "p.jsonl", [row])
        assert said in error(tmp_path, run, profile, f"validate.prompts={path}")


def test_settings_of_other_experiments_are_sent_to_the_right_key(tmp_path: Path, profile: Path) -> None:
    said = error(tmp_path, write_run(tmp_path), profile, "scheduler.max_num_seqs=4")
    assert "scheduler.max_num_seqs: experiment=validate takes" in said
    assert "validate.max_num_seqs" in said
    assert "validate.layers must be a whole number" in error(
        tmp_path, write_run(tmp_path), profile, "validate.layers=x"
    )
