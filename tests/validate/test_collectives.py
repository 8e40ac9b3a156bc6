"""All-reduces of tensor-parallel devices, from a file of measured ones and from the ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.operators.collectives import ring_ns
from tests.validate.made_up import META, validate, write, write_profile, write_run

HEADER = "source,op,backend,gpus,elements,bytes,time_us\n"
SHAPE = {"model_config": {"hf_overrides": {"num_hidden_layers": 2, "hidden_size": 64}}}
WIDE: dict[str, Any] = {**META, "resolved_config": {**META["resolved_config"], **SHAPE}}


def curves(folder: Path, *rows: tuple[str, str, int, float]) -> Path:
    lines = [f"{source},all_reduce,{backend},{gpus},{size},{2 * size},{time}"
             for source, backend, gpus, time in rows for size in (64, 4096)]  # fmt: skip
    write(folder / "curves.csv", HEADER + "\n".join(lines) + "\n")
    return folder / "curves.csv"


def first_tokens(folder: Path) -> list[float]:
    return pd.read_csv(folder / "requests.csv")["predicted_ttft_ms"].tolist()


def test_two_a_layer_of_the_engines_own_version(tmp_path: Path) -> None:
    path = curves(tmp_path, ("vllm 0.24.0", "vllm_graph", 2, 90.0), ("vllm 0.19.0", "vllm_graph", 2, 50.0),
                  ("vllm 0.19.0", "vllm_eager", 2, 70.0), ("nccl 2.29.2", "nccl", 2, 10.0))  # fmt: skip
    row = validate(tmp_path / "out", write_run(tmp_path, meta=WIDE), write_profile(tmp_path / "profile"),
                   "validate.tensor_parallel=2", f"validate.collectives={path}")  # fmt: skip
    assert row["status"] == "finished", row["error"]
    assert row["incomplete"] is None
    assert row["variant"].endswith(", vllm 0.19.0")
    assert first_tokens(tmp_path / "out")[0] == pytest.approx(0.143 + 2 * 2 * 0.050)
    assert any("ring" in label for label in row["mean_error_pct_by_variant"])
    said = "2 devices: all_reduce of vllm 0.19.0, vllm_graph"
    assert row["settings"]["collectives, vllm 0.19.0"] == [said, f"validate.collectives={path}"]
    assert said in (tmp_path / "out" / "REPORT.md").read_text()


def test_the_ring_is_its_formula(tmp_path: Path) -> None:
    row = validate(tmp_path / "out", write_run(tmp_path, meta=WIDE), write_profile(tmp_path / "profile"),
                   "validate.tensor_parallel=2", "validate.collectives=ring")  # fmt: skip
    assert row["status"] == "finished", row["error"]
    one = 2 * 20.0 + 16 * 64 * 2 / (16 * 2**30 / 1e6) + 1.5 * 16 * 64 * 2 / 1597e3  # µs, of 16 tokens
    assert first_tokens(tmp_path / "out")[0] == pytest.approx(0.143 + 4 * one / 1e3, abs=2e-6)
    assert ring_ns(1.31e6, 2, 16 * 2**30 / 1e9, 20e3, 1597.0) == pytest.approx(
        117.5e3, rel=1e-3
    )  # the rules' own example


@pytest.mark.parametrize(("given", "said"), [
    ("nowhere.csv", "can't be read"), ("{tmp}/curves.csv", "has no all_reduce of 2 devices"),
])  # fmt: skip
def test_what_is_no_curve_is_refused(tmp_path: Path, given: str, said: str) -> None:
    curves(tmp_path, ("vllm 0.19.0", "vllm_graph", 4, 50.0))
    row = validate(tmp_path / "out", write_run(tmp_path, meta=WIDE), write_profile(tmp_path / "profile"),
                   "validate.tensor_parallel=2", f"validate.collectives={given.format(tmp=tmp_path)}")  # fmt: skip
    assert row["status"] == "failed"
    assert said in row["error"]


def test_a_width_that_nobody_says_is_asked_for(tmp_path: Path) -> None:
    row = validate(tmp_path / "out", write_run(tmp_path), write_profile(tmp_path / "profile"),
                   "validate.tensor_parallel=2", "validate.collectives=ring")  # fmt: skip
    assert row["status"] == "failed"
    assert "how wide is Tiny-1B?" in row["error"]
