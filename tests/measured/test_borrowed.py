"""Experts whose kernel was measured with another shape only."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.operators.experts import SHAPE, expert_ns
from harness.operators.folder import Tables
from tests.measured.made_up import write_tables

TOKENS = np.array([1.0, 64.0, 4096.0])
OWN, OTHER = (200, 100, 2, 8), (512, 256, 4, 32)  # hidden, inner, top k, experts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Own shape by Triton, 10 µs and 10 ns a token; the other by Marlin, 16 µs and 640 ns a token."""
    write_tables(tmp_path, engines=("vllm",))
    rows = [{"moe_dtype": "w4a16_mxfp4", "num_tokens": n, "hidden_size": shape[0], "inter_size": shape[1],
             "topk": shape[2], "num_experts": shape[3], "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced",
             "kernel_source": name, "latency": fixed + n * slope}
            for (shape, name, fixed, slope), n in product(
                ((OWN, "triton", 1e-2, 1e-5), (OTHER, "marlin", 1.6e-2, 6.4e-4)), (1, 4096, 16384))]  # fmt: skip
    pd.DataFrame(rows).to_parquet(tmp_path / "made_up" / "vllm" / "0.24.0" / "moe_perf.parquet")
    return tmp_path


def test_products_are_those_of_the_engines_kernel(folder: Path) -> None:
    """A sixteenth of the other's weights, as Marlin pads 200 and 100 to 256 and 128, and twice its tokens: 2 of 8
    experts for one, where it has 4 of 32.
    """
    tables = Tables(folder, "made_up", "vllm")
    found = expert_ns(tables, "mxfp4", TOKENS, *OWN, 1, 1, "marlin")
    own = 10_000 + 10 * TOKENS
    marlin = (16_000 + 640 * 2 * TOKENS) / 16
    assert found == pytest.approx(np.maximum(own, marlin))
    assert found[0] == pytest.approx(own[0])
    assert found[2] == pytest.approx(marlin[2])
    assert any("no less than by marlin" in note for note in tables.notes)


@pytest.mark.parametrize(("kernel", "borrow"), [("marlin", False), ("cutlass", True), ("", True)])
def test_nothing_is_borrowed_unasked(folder: Path, kernel: str, borrow: bool) -> None:
    tables = Tables(folder, "made_up", "vllm")
    assert expert_ns(tables, "mxfp4", TOKENS, *OWN, 1, 1, kernel, borrow) == pytest.approx(10_000 + 10 * TOKENS)
    assert not tables.notes


def test_a_kernel_that_another_engine_was_measured_with(tmp_path: Path) -> None:
    """TensorRT-LLM's own is in SGLang's table only, half as long."""
    write_tables(tmp_path, engines=("trtllm", "sglang"))
    for engine, kernel, slope in (("trtllm", "deepgemm", 2e-5), ("sglang", "sglang_flashinfer_trtllm_moe", 1e-5)):
        rows = [{"moe_dtype": "fp8_block", "num_tokens": n, **dict(zip(SHAPE, OWN, strict=True)), "moe_tp_size": 1,
                 "moe_ep_size": 1, "distribution": "balanced", "kernel_source": kernel, "latency": n * slope}
                for n in (1, 16384)]  # fmt: skip
        pd.DataFrame(rows).to_parquet(tmp_path / "made_up" / engine / "0.24.0" / "moe_perf.parquet")
    tables = Tables(tmp_path, "made_up", "trtllm")
    for borrow, ns in ((True, 10), (False, 20)):
        assert expert_ns(tables, "fp8_block", TOKENS, *OWN, 1, 1, "flashinfer_trtllm", borrow) == pytest.approx(
            ns * TOKENS)  # fmt: skip
    assert any("those of sglang 0.24.0" in note for note in tables.notes)
