"""Operator tables of a GPU that never was, read, refused and put together."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.errors import HarnessError
from harness.operators.collectives import FUSED, fused_reduce_ns
from harness.operators.compose import Rules, compose
from harness.operators.costs import Costs, step_ns
from harness.operators.folder import Tables, engine_and_version, versions
from harness.operators.gemm import Gemm, Gemms
from harness.operators.health import health, print_health
from harness.operators.machines import Machine
from harness.operators.model import Model, Parallel, Precision
from harness.schema.keys.run import RULES
from tests.measured.made_up import CONFIG, decode_ms, gemm_ms, prompt_ms, tables, write_tables

BARE = Rules(smooth=False, padded_graphs=False, power_cap=False, eager_prompts=False, host=False, pointwise=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("tables"))


def composed(folder: Path, devices: int = 1, machine: Machine | None = None, rules: Rules = BARE) -> Costs:
    return compose(Model.of(CONFIG), Tables(folder, "made_up", "vllm"), Parallel(devices), Precision(),
                   machine or Machine(), rules)  # fmt: skip


def products_ms(tokens: int, share: int = 1) -> float:
    """The four products of a layer, by hand."""
    shapes = ((1536 // share, 1024), (1024, 1024 // share), (8192 // share, 1024), (1024, 4096 // share))
    return sum(gemm_ms(tokens, n, k) for n, k in shapes)


def test_a_decode_step_is_its_operators(folder: Path) -> None:
    told = step_ns(composed(folder), 64, 64 * 1024.0, 0, 0, 0, 0.0) / 1e6
    by_hand = 8 * (products_ms(64) + decode_ms(64, 1024, 2)) + gemm_ms(64, 32000, 1024)
    assert told == pytest.approx(by_hand, rel=0.03)  # two widths lie between measured ones


def test_a_prompt_pays_for_its_pairs_and_a_chunk_for_those_with_its_history(folder: Path) -> None:
    costs = composed(folder)
    alone = step_ns(costs, 0, 0.0, 1, 1024, 1024, 1024**2 / 2)
    by_hand = 8 * (products_ms(1024) + prompt_ms(1, 1024, 8)) + gemm_ms(1, 32000, 1024)
    assert alone / 1e6 == pytest.approx(by_hand, rel=0.03)
    late = step_ns(costs, 0, 0.0, 1, 1024, 4096, 1024 * (4096 - 512.0))
    share = 1 - (3072 / 4096) ** 2
    assert (late - alone) / 1e6 == pytest.approx(8 * (share * prompt_ms(1, 4096, 8) - prompt_ms(1, 1024, 8)), rel=0.02)
    whole = composed(folder, rules=Rules(**{**BARE.__dict__, "history": False}))
    assert step_ns(whole, 0, 0.0, 1, 1024, 4096, 1024 * (4096 - 512.0)) == pytest.approx(alone)


def test_two_devices_reduce_twice_a_layer(folder: Path) -> None:
    told = step_ns(composed(folder, 2), 16, 16 * 64.0, 0, 0, 0, 0.0) / 1e6
    reduced = 0.004 + 16 * 1024 * 1e-8
    by_hand = 8 * (products_ms(16, 2) + decode_ms(16, 64, 1) + 2 * reduced) + reduced + gemm_ms(16, 16000, 1024)
    assert told == pytest.approx(by_hand, rel=0.05)


def test_each_constant_of_a_machine_does_what_it_says(folder: Path) -> None:
    prompt = (0, 0.0, 1, 1024, 1024, 1024**2 / 2)
    decode = (8, 8 * 64.0, 0, 0, 0, 0.0)
    bare = composed(folder, rules=Rules(pointwise=False, power_cap=False, host=False, eager_prompts=False))
    slow = composed(folder, machine=Machine(host_ms=0.5), rules=Rules(pointwise=False, power_cap=False))
    assert step_ns(slow, *prompt) == pytest.approx(step_ns(bare, *prompt) + 5e5)
    assert step_ns(slow, *decode) == pytest.approx(step_ns(bare, *decode) + 5e5)
    eager = composed(folder, machine=Machine(eager_kernel_us=300.0), rules=Rules())
    assert step_ns(eager, *prompt) == pytest.approx(8 * (5 + 4) * 3e5)


def test_no_product_is_faster_than_the_gpu_keeps_up(tmp_path: Path) -> None:
    """The largest products take twice as long as they could, and so do all that were faster; fp8's by a constant."""
    write_tables(tmp_path)
    path = tmp_path / "made_up/vllm/0.24.0/gemm_perf.parquet"
    frame = pd.read_parquet(path)
    frame.loc[frame["m"] == 16384, "latency"] *= 1.4
    pd.concat([frame, frame.assign(gemm_dtype="fp8", latency=frame["latency"] / 2)]).to_parquet(path)
    vllm, tokens = Tables(tmp_path, "made_up", "vllm"), np.array([4096.0])
    products = 2 * tokens * 4096 * 4096 / vllm.gpu.flops("bfloat16")
    assert Gemms(vllm).ns("bfloat16", tokens, 4096, 4096) == pytest.approx(products / 0.7 + 2e3)
    assert Gemms(vllm, sustained=1.0).ns("bfloat16", tokens, 4096, 4096) == pytest.approx(products / 0.5, rel=0.01)
    assert Gemms(vllm, sustained=0.4).ns("fp8", tokens, 4096, 4096) == pytest.approx(products / 2 / 0.4)
    few = np.array([16.0])
    assert Gemms(vllm, sustained=0.4).ns("fp8", few, 4096, 4096) == Gemms(vllm).ns("fp8", few, 4096, 4096)


def test_every_rule_has_its_switch() -> None:
    assert {one.name for one in fields(Rules)} == set(RULES)


def test_decode_steps_are_padded_to_a_captured_graph(folder: Path) -> None:
    costs = composed(folder, rules=Rules(pointwise=False))
    assert costs.decode_tokens[505] == costs.decode_tokens[512] > costs.decode_tokens[504]
    assert costs.prompt_tokens[505] < costs.prompt_tokens[512]


def test_a_single_slow_point_is_cut_to_those_behind_it(folder: Path) -> None:
    frame = tables()["gemm_perf"]
    frame.loc[frame["m"] == 16, "latency"] *= 9
    gpu = Tables(folder, "made_up", "vllm").gpu
    smooth, raw = (Gemm(frame, gpu, "bfloat16", on).ns(np.array([16.0]), 1024, 1024)[0] for on in (True, False))
    assert smooth == pytest.approx(1e6 * gemm_ms(64, 1024, 1024))
    assert raw == pytest.approx(9e6 * gemm_ms(16, 1024, 1024))


def test_points_faster_than_the_gpu_are_dropped_and_too_many_refused(tmp_path: Path) -> None:
    write_tables(tmp_path)
    path = tmp_path / "made_up/vllm/0.24.0/context_attention_perf.parquet"
    frame = pd.read_parquet(path)
    frame.loc[frame.index[-1], "latency"] /= 12
    frame.to_parquet(path)
    opened = Tables(tmp_path, "made_up", "vllm")
    assert len(opened.read("context_attention_perf")) == len(frame) - 1  # type: ignore[arg-type]
    frame["latency"] /= 12
    other = write_tables(tmp_path / "other") / "made_up/vllm/0.24.0/context_attention_perf.parquet"
    frame.to_parquet(other)
    assert health("context_attention_perf", frame, opened.gpu).refused
    with pytest.raises(HarnessError, match="faster than the peak of made_up allows"):
        Tables(tmp_path / "other", "made_up", "vllm").read("context_attention_perf")


def test_health_names_keys_that_are_there_twice(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = tables()["generation_attention_perf"]
    twice = pd.concat([frame, frame.assign(latency=frame["latency"] * 3, kernel_source="two")])
    told = health("generation_attention_perf", twice, Tables(folder, "made_up", "vllm").gpu)
    assert told.doubled == len(frame)
    assert told.apart == pytest.approx(3)
    assert told.kernels == 2
    print_health(str(folder))
    assert "gemm_perf" in capsys.readouterr().out
    with pytest.raises(HarnessError, match="has no operator tables"):
        print_health(str(tmp_path))


@pytest.mark.parametrize(("gpu", "engine", "version", "said"), [
    ("made_upp", "vllm", None, "did you mean made_up"),
    ("made_up", "dynamo", None, "it has those of sglang, trtllm, vllm"),
    ("made_up", "vllm", "0.24.1", "did you mean 0.24.0"),
])  # fmt: skip
def test_what_is_not_there_is_answered_with_what_is(
    folder: Path, gpu: str, engine: str, version: str, said: str
) -> None:
    with pytest.raises(HarnessError, match=said):
        Tables(folder, gpu, engine, version)


def test_versions_are_in_their_order(tmp_path: Path) -> None:
    for name in ("1.3.0rc20", "1.2.0rc5", "0.5.14", "0.5.6.post2", "1.3.0"):
        (tmp_path / name).mkdir()
    assert versions(tmp_path) == ["0.5.6.post2", "0.5.14", "1.2.0rc5", "1.3.0rc20", "1.3.0"]
    assert engine_and_version("trtllm-1.3.0rc20") == ("trtllm", "1.3.0rc20")
    assert engine_and_version("vllm") == (
        "vllm",
        None,
    )
    with pytest.raises(HarnessError, match="did you mean sglang"):
        engine_and_version("sglangg-0.5")


def test_rules_are_known_by_name() -> None:
    assert not Rules.without(["host"]).host
    with pytest.raises(HarnessError, match="the rules are smooth, history"):
        Rules.without(["hosts"])


@pytest.fixture
def in_blocks(tmp_path: Path) -> Path:
    """NVFP4 of TensorRT-LLM twice as slow as vLLM's; vLLM's fp8 in blocks never below 60 µs, as launched one by one."""
    write_tables(tmp_path)
    for engine, factor in (("vllm", 0.5), ("trtllm", 1.0)):
        path = tmp_path / "made_up" / engine / "0.24.0" / "gemm_perf.parquet"
        plain = pd.read_parquet(path)
        fp4 = plain.assign(gemm_dtype="nvfp4", latency=plain["latency"] * factor)
        fp8 = plain.assign(gemm_dtype="fp8_block", latency=np.maximum(plain["latency"] * 0.6, 0.06))
        pd.concat([plain, fp4, fp8]).to_parquet(path)
    return tmp_path


def test_quantisers_and_launches_are_told_apart(in_blocks: Path) -> None:
    """1024 wide: an input of 4 tokens is read in 2 and written in 0.5625 (fp8: 1) bytes an element."""
    vllm, other = Tables(in_blocks, "made_up", "vllm"), Tables(in_blocks, "made_up", "trtllm")
    few = np.array([4.0])
    bare = Gemms(vllm).ns("nvfp4", few, 1024, 1024)
    kernel = 1e3 + 4 * 1024 * 2.5625 / (vllm.gpu.bytes_per_ns * 0.8)
    assert Gemms(vllm, dynamic_scales=True).ns("nvfp4", few, 1024, 1024) == pytest.approx(bare + kernel)
    assert Gemms(other, static_scales=True).ns("nvfp4", few, 1024, 1024, normed=True) == pytest.approx(bare)
    assert Gemms(other, static_scales=True).ns("nvfp4", few, 1024, 1024) == pytest.approx(2 * bare)
    assert Gemms(other).ns("nvfp4", few, 1024, 1024) == pytest.approx(2 * bare)
    assert any("NVFP4 products take no longer" in note for note in other.notes)
    plain = Gemms(vllm).ns("bfloat16", few, 1024, 1024)
    kernel = 1e3 + 4 * 1024 * 3 / (vllm.gpu.bytes_per_ns * 0.8)
    assert Gemms(vllm).ns("fp8_block", few, 1024, 1024) == pytest.approx(60e3)
    assert Gemms(vllm, launches=True).ns("fp8_block", few, 1024, 1024) == pytest.approx(plain + kernel)


def test_norms_are_part_of_an_all_reduce_where_engines_fuse_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two norms a layer of two devices, of small reductions and no prompt; on one device there is nothing to fuse."""
    model, tables = Model.of(CONFIG), Tables(folder, "made_up", "vllm")
    monkeypatch.setitem(FUSED, 2, 2 * 64 * 1024)  # bytes of 64 tokens

    def steps(devices: int, fuses: bool) -> Costs:
        return compose(model, tables, Parallel(devices), Precision(), Machine(), fuses=fuses)

    apart, fused = steps(2, fuses=False), steps(2, fuses=True)
    saved = apart.decode_tokens - fused.decode_tokens
    norm = 1e3 + 2.0 * 4 * 1024 / (tables.gpu.bytes_per_ns * 0.8)  # of one token
    assert saved[1] == pytest.approx(2 * 8 * norm)
    assert saved[64] > 0 == saved[72]
    assert fused.prompt_tokens == pytest.approx(apart.prompt_tokens)
    assert steps(1, fuses=False).decode_tokens == pytest.approx(steps(1, fuses=True).decode_tokens)


def test_a_fused_reduction_is_tensorrt_llms(tmp_path: Path) -> None:
    """Half as long there: 2 µs and 5 ns an element."""
    write_tables(tmp_path)
    path = tmp_path / "made_up/trtllm/0.24.0/custom_allreduce_perf.parquet"
    theirs = pd.read_parquet(path).drop(columns="backend").drop_duplicates(["num_gpus", "message_size"])
    theirs.assign(latency=theirs["latency"] / 2).to_parquet(path)
    elements = np.array([1024.0])
    found = fused_reduce_ns(Tables(tmp_path, "made_up", "vllm"), elements, 2, np.array([1e9]))
    assert found == pytest.approx((0.004 + 1024 * 1e-8) / 2 * 1e6)


def test_heads_are_normed_of_the_models_that_do(folder: Path) -> None:
    def decode(kind: str) -> float:
        model = Model.of({**CONFIG, "model_type": kind})
        return float(
            compose(model, Tables(folder, "made_up", "vllm"), Parallel(), Precision(), Machine()).decode_tokens[1]
        )

    norm = 1e3 + 2.0 * 2 * (8 + 2) * 128 / (4e3 * 0.8)
    assert decode("qwen3") - decode("llama") == pytest.approx(8 * norm)
