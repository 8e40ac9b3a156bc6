"""Runs of several devices: engines in lockstep, shared experts, by hand and written down and predicted back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.runner.latency.experts import Experts
from harness.runner.latency.table import TableLatency
from tests.validate.made_up import META, ROWS, changed, validate, write, write_lines, write_profile, write_run

HIDDEN, LINK, MEMORY = 64, 16 * 2**30 / 1e6, 1597e3  # bytes a µs
SHAPE = {"model_config": {"hf_overrides": {"num_hidden_layers": 2, "hidden_size": HIDDEN}}}
WIDE: dict[str, Any] = {**META, "resolved_config": {**META["resolved_config"], **SHAPE}}
LONG = [{**ROWS[0], "output_toks": 3, "last_token_ts": 5.000463}, ROWS[1]]
PROFILES = Path(__file__).parents[3] / "shared" / "profiles" / "RTXPRO6000"


def requests(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "requests.csv").set_index("request_id")


def write_experts(folder: Path) -> Path:
    """Tables without a dense MLP: 8 experts, 2 for a token, a µs a token and one an expert."""
    write_profile(folder)
    dense = folder.joinpath("dense.csv").read_text().splitlines()
    write(folder / "dense.csv", "\n".join(row for row in dense if row.split(",")[0] not in MLP) + "\n")
    rows = [f"{tokens},{experts},{tokens + experts}" for tokens in (1, 4096) for experts in (2, 8)]
    write(folder / "moe.csv", "\n".join(["tokens,activated_experts,time_us", *rows]) + "\n")
    return folder


MLP = ("gate_up_proj", "act_fn", "down_proj")


def test_engines_in_lockstep_are_padded_and_end_together(tmp_path: Path) -> None:
    """B goes to the engine without A. Their common step is of 32 tokens and of B's attention, for A too: 20 + 15 + 2
    (22 + 32 + 32) = 207 after 143 and 113.
    """
    meta = changed(META, "engine_kwargs.data_parallel_size", 2)
    row = validate(tmp_path / "out", write_run(tmp_path, LONG, meta), write_profile(tmp_path / "profile"))
    assert row["status"] == "finished", row["error"]
    assert row["mean_error_pct"] < 0.001
    found = requests(tmp_path / "out")
    assert found["predicted_ttft_ms"].tolist() == pytest.approx([0.143, 0.320])
    assert found.loc["a", "predicted_tpot_ms"] == pytest.approx((0.113 + 0.207) / 2)
    assert row["settings"]["data_parallel"] == [2, "meta file: engine_kwargs.data_parallel_size"]
    assert any("2 engines in lockstep" in note for note in row["notes"])


def test_synchronous_engines_in_lockstep(tmp_path: Path) -> None:
    """B's prompt runs beside A's first decode."""
    row = validate(tmp_path / "out", write_run(tmp_path, LONG), write_profile(tmp_path / "profile"),
                   "validate.data_parallel=2", "validate.async_scheduling=false")  # fmt: skip
    assert row["status"] == "finished", row["error"]
    found = requests(tmp_path / "out")
    assert found["predicted_ttft_ms"].tolist() == pytest.approx([0.143, 0.207])


def test_shared_experts_exchange_the_tokens_of_all_engines(tmp_path: Path) -> None:
    """16 tokens of each of two engines: a device computes 16, and half of the experts that 32 tokens draw."""
    tables = write_experts(tmp_path / "profile")
    meta = changed(changed(WIDE, "engine_kwargs.data_parallel_size", 2), "engine_kwargs.enable_expert_parallel", True)
    row = validate(tmp_path / "out", write_run(tmp_path, meta=meta), tables, "validate.collectives=ring")
    assert row["status"] == "finished", row["error"]
    assert row["variant"].endswith("ring, all tokens")
    sent = 2 * 32 * (HIDDEN + 8), 2 * 32 * HIDDEN  # bytes
    exchange = 2 * 20 + sent[0] / 2 / LINK + sent[1] / 2 / LINK + 3 * sent[1] / 2 / MEMORY
    block = 16 + 8 * (1 - 0.75**32) / 2 + exchange
    first = 20 + 15 + 2 * (2 + 2 + 3 + 16 + 16 + block)
    assert requests(tmp_path / "out").loc["a", "predicted_ttft_ms"] == pytest.approx(first / 1e3, abs=1e-6)
    assert any(label.endswith("LLMServingSim's sizes") for label in row["mean_error_pct_by_variant"])


def test_experts_of_tensor_parallel_devices_end_with_an_all_reduce(tmp_path: Path) -> None:
    """No gather: every device has every token, and computes half of what they ask for."""
    row = validate(tmp_path / "out", write_run(tmp_path, meta=WIDE), write_experts(tmp_path / "profile"),
                   "validate.tensor_parallel=2", "validate.expert_parallel=2", "validate.collectives=ring")  # fmt: skip
    assert row["status"] == "finished", row["error"]
    assert row["settings"]["expert_parallel"] == [True, "validate.expert_parallel"]
    reduce = 2 * 20 + 2 * 16 * HIDDEN / LINK + 1.5 * 2 * 16 * HIDDEN / MEMORY
    first = 20 + 15 + 2 * (2 + 2 + 3 + 16 + 16 + 8 + 8 * (1 - 0.75**16) / 2 + 2 * reduce)
    assert requests(tmp_path / "out").loc["a", "predicted_ttft_ms"] == pytest.approx(first / 1e3, abs=2e-6)


@pytest.mark.parametrize("degrees", [
    pytest.param({"tensor_parallel": 2}, marks=pytest.mark.slow),
    pytest.param({"data_parallel": 2}, marks=pytest.mark.slow), {"data_parallel": 2, "expert_parallel": 2},
])  # fmt: skip
def test_a_run_that_was_simulated_is_predicted_back(tmp_path: Path, degrees: dict[str, int]) -> None:
    """Requests of many lengths, written down with the stamps that they got; each variant but the run's own is off."""
    tables = write_experts(tmp_path / "tables") if "expert_parallel" in degrees else write_profile(tmp_path / "tables")
    given = [*(f"validate.{name}={degree}" for name, degree in degrees.items()), "validate.collectives=ring"]
    rows = [{**ROWS[0], "request_id": f"r{i}", "input_toks": 5 + 7 * i % 60, "output_toks": 2 + 3 * i % 17,
             "arrival_time": 1e9 + 1e-4 * i, "queued_ts": 5.0 + 1e-4 * i, "first_token_ts": 9.0, "last_token_ts": 9.0}
            for i in range(40)]  # fmt: skip
    meta = {**WIDE, "kv_cache": {"num_gpu_blocks": 2000, "block_size": 4}}
    first = validate(tmp_path / "first", write_run(tmp_path / "one", rows, meta), tables, *given)
    assert first["status"] == "finished", first["error"]
    told = requests(tmp_path / "first")
    for row in rows:
        one = told.loc[row["request_id"]]
        row["first_token_ts"] = row["queued_ts"] + one["predicted_ttft_ms"] / 1e3
        row["last_token_ts"] = row["queued_ts"] + one["predicted_e2e_ms"] / 1e3
    kwargs = {"tensor_parallel": "tensor_parallel_size", "data_parallel": "data_parallel_size",
              "expert_parallel": "enable_expert_parallel"}  # fmt: skip
    for name, degree in degrees.items():
        meta = changed(meta, f"engine_kwargs.{kwargs[name]}", degree > 1 if name == "expert_parallel" else degree)
    (tmp_path / "run").mkdir()
    path = write_lines(tmp_path / "run" / "requests.jsonl", rows)
    write(tmp_path / "run" / "meta.json", json.dumps(meta))
    again = validate(tmp_path / "again", path, tables, "validate.collectives=ring")
    assert again["status"] == "finished", again["error"]
    assert again["mean_error_pct"] < 0.01
    synchronous = next(error for label, error in again["mean_error_pct_by_variant"].items() if " synchronous" in label)
    assert synchronous > 1


@pytest.mark.parametrize(("given", "said"), [
    (["validate.data_parallel=2", "validate.expert_parallel=3"], "among all 2 devices"),
    (["validate.data_parallel=2", "validate.expert_parallel=2"], "has no moe.csv"),
    (["validate.data_parallel=0"], "data_parallel"),
])  # fmt: skip
def test_what_no_run_can_be(tmp_path: Path, given: list[str], said: str) -> None:
    try:
        error = validate(tmp_path / "out", write_run(tmp_path), write_profile(tmp_path / "profile"), *given)["error"]
    except ValueError as mistake:
        error = str(mistake)
    assert said in error


@pytest.fixture(scope="module")
def shared() -> Path:
    if not PROFILES.is_dir():
        pytest.skip("the kernel tables are not here")
    return PROFILES


def test_measured_experts(shared: Path) -> None:
    """The tables of two devices find the experts of one; a decode step of 128 is far above what its bytes take."""
    experts = Experts.load(shared / "Qwen3-30B-A3B-Instruct-2507-bf16-tp2")
    assert experts is not None
    assert (experts.number, experts.top_k) == (128, 8)
    assert experts.us(128, 64) == pytest.approx(457, abs=1)
    assert experts.drawn(1) == pytest.approx(8)
    layer = 64 * 3 * 2048 * 768 * 2 / MEMORY
    assert layer < experts.us(128, 64) < 2 * layer


def test_step_times_beside_the_memory_of_two_devices(shared: Path) -> None:
    """Weights of 32 billion parameters on two devices are read in 20 ms: a decode takes that and some more."""
    tables = TableLatency.load(shared / "Qwen3-32B-bf16-tp2", 64, tensor_parallel=2)
    read = 32.8e9 * 2 / 2 / MEMORY / 1e3  # ms
    assert read < (tables.tokens_us(1) + tables.sequences_us(1)) / 1e3 < 1.25 * read
