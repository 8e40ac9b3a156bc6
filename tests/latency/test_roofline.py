"""Step times from first principles, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness.errors import HarnessError
from harness.layout import layout_of
from harness.layout.weights import weights_of
from harness.published import curve
from harness.runner.latency.hardware import Hardware, load_hardware, names
from harness.runner.latency.roofline import Anchored, Roofline
from harness.runner.simulated_device import SimulatedDevice
from schedulers.request import BatchStats
from tests.latency.models import TINY

MODELS = Path(__file__).parents[2] / "experiments" / "model"
IDEAL = Hardware("ideal", tflops=1, memory_gb_per_s=100, memory_bytes=1 << 30, link_gb_per_s=10, compute_efficiency=1.0,
                 memory_efficiency=1.0, link_latency_us=1.0)  # fmt: skip  # 1,000 FLOP and 100 bytes a ns
NOTHING = BatchStats(0, 0, 0, 0, 0, 0, 0)


def ns(model: Roofline | Anchored, stats: BatchStats) -> float:
    base, slope = model.line(stats)
    return base + slope * stats.context


def device(**changes: object) -> SimulatedDevice:
    machine = {"latency": "roofline", "hardware": "a100_40gb", "tensor_parallel": 1}
    base = {"max_model_len": 2048, "kv_slots": 100, "kv_bytes": None, "gpu_memory_utilization": None, "device": machine}
    model: Any = OmegaConf.load(MODELS / "opt_13b.yaml")
    return SimulatedDevice(OmegaConf.merge(OmegaConf.create(base), {"model": model}, OmegaConf.create(changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "billions", "slot_bytes"),
    [("opt_13b", 12.9, 819_200), ("opt_66b", 65.7, 2_359_296), ("opt_175b", 174.6, 4_718_592),
     ("llama2_7b", 6.74, 524_288), ("llama2_13b", 13.0, 819_200), ("llama2_70b", 69.0, 327_680),
     ("llama_8b", 8.03, 131_072), ("qwen3_8b", 8.19, 147_456), ("qwen3_30b_a3b", 30.5, 98_304),
     ("mistral_7b", 7.25, 131_072)],
)  # fmt: skip
def test_published_sizes_of_models(name: str, billions: float, slot_bytes: int) -> None:
    model = OmegaConf.load(MODELS / f"{name}.yaml")
    weights = weights_of(OmegaConf.to_container(model.config))
    assert weights.parameters == pytest.approx(billions * 1e9, rel=0.01)
    assert layout_of(OmegaConf.to_container(model.config)).unit_bytes == slot_bytes


def test_a_transformers_config_and_its_names_are_read_alike() -> None:
    from transformers import AutoConfig

    values = {key: value for key, value in TINY.items() if key != "model_type"}
    assert weights_of(AutoConfig.for_model("llama", **values)) == weights_of(TINY)


def test_a_mixture_of_experts_touches_more_of_them_with_more_tokens() -> None:
    weights = weights_of(OmegaConf.to_container(OmegaConf.load(MODELS / "qwen3_30b_a3b.yaml").config))
    assert weights.active_parameters == pytest.approx(3.0e9, rel=0.1)  # 3.3 B with the embeddings
    assert weights.touched(1) == pytest.approx(weights.active_parameters)
    assert weights.touched(10_000) == pytest.approx(weights.parameters - 2 * weights.hidden * weights.vocab)


def test_a_decode_step_by_hand() -> None:
    """Weights and KV over bandwidth: everything here is memory-bound."""
    model = Roofline(IDEAL, TINY, step_overhead_us=5, sequence_overhead_us=1)
    layer = 2 * 64 * 16 * (4 + 2) + 3 * 64 * 128
    slot = 2 * 2 * 2 * 16 * 2
    expected = (2 * layer * 2 + 64 * 256 * 2 + slot + 10 * slot) / 100 + 5000 + 1000
    assert ns(model, NOTHING._replace(decodes=1, context=10)) == pytest.approx(expected)


def test_a_long_prompt_is_bound_by_compute() -> None:
    model = Roofline(IDEAL, TINY, step_overhead_us=0, sequence_overhead_us=0)
    tokens, layer, slot = 1000, 2 * 64 * 16 * (4 + 2) + 3 * 64 * 128, 2 * 2 * 2 * 16 * 2
    stats = NOTHING._replace(prompts=1, prompt_tokens=tokens, prompt_context=tokens, pairs=tokens * tokens // 2)
    linear = 2 * 2 * layer * tokens / 1000 + 64 * 256 * 2 / 100 + tokens * slot / 100
    assert ns(model, stats) == pytest.approx(linear + 4 * 2 * 4 * 16 * stats.pairs / 1000)


def test_two_devices_halve_the_work_and_pay_for_talking() -> None:
    one, two = (Roofline(IDEAL, TINY, n, step_overhead_us=0, sequence_overhead_us=0) for n in (1, 2))
    stats = NOTHING._replace(decodes=3, context=50)
    talking = 2 * 2 * (1.0 * 3 * 64 * 2 / 10 + 1000)
    assert ns(two, stats) == pytest.approx(ns(one, stats) / 2 + talking)


def test_more_devices_than_heads_is_an_error() -> None:
    with pytest.raises(HarnessError, match="tensor_parallel=3"):
        Roofline(IDEAL, TINY, 3)


@pytest.mark.parametrize("batch", range(4, 41, 4))
def test_the_preset_is_the_papers_decode_step(batch: int) -> None:
    """Fig. 1 of the PagedAttention paper, right: tokens/s by batch size; the line's largest residual is 0.7 ms."""
    tokens_per_s = dict(zip(range(4, 41, 4), (146.9, 267.3, 378.9, 482.6, 577.1, 659.5, 740.8, 811.0, 881.8, 921.9),
                            strict=True))  # fmt: skip
    preset = device(device={"latency": "opt-13b-a100-sosp23"}).latency
    assert ns(preset, NOTHING._replace(decodes=batch, context=batch * 500)) / 1e6 == pytest.approx(
        1000 * batch / tokens_per_s[batch], abs=0.8
    )


@pytest.mark.parametrize(
    ("preset", "panel", "system", "rate"),
    [("opt-13b-a100-sosp23", "opt_13b_alpaca", "vLLM", 20), ("opt-13b-a100-sosp23", "opt_13b_alpaca", "vLLM", 25),
     ("opt-66b-4a100-sosp23", "opt_66b_alpaca", "Orca (Max)", 0.05),
     ("opt-66b-4a100-sosp23", "opt_66b_alpaca", "Orca (Max)", 0.1),
     ("opt-66b-4a100-sosp23", "opt_66b_alpaca", "vLLM", 11), ("opt-66b-4a100-sosp23", "opt_66b_alpaca", "vLLM", 15),
     ("opt-175b-8a100-sosp23", "opt_175b_alpaca", "Orca (Max)", 1.25),
     ("opt-175b-8a100-sosp23", "opt_175b_alpaca", "Orca (Pow2)", 10),
     ("opt-175b-8a100-sosp23", "opt_175b_alpaca", "vLLM", 15)],
)  # fmt: skip
def test_the_presets_agree_with_fig_12_where_nobody_waits(preset: str, panel: str, system: str, rate: float) -> None:
    """Latency per token is the step time of a batch of rate x 58.6 tokens x latency others and the request itself."""
    latency_s = {point[0]: point[1] for point in curve("fig12", panel, system)}[rate]
    batch = round(1 + rate * 58.6 * latency_s)
    model = device(device={"latency": preset}).latency
    assert ns(model, NOTHING._replace(decodes=batch, context=80 * batch)) / 1e9 == pytest.approx(latency_s, rel=0.045)


def test_what_prompts_add_to_the_preset_is_the_rooflines() -> None:
    preset = device(device={"latency": "opt-13b-a100-sosp23"}).latency
    decodes = NOTHING._replace(decodes=30, context=15_000)
    mixed = decodes._replace(prompts=1, prompt_tokens=512, prompt_context=512, pairs=512 * 256)
    added = preset.roofline.line(mixed)[0] - preset.roofline.line(decodes)[0]
    assert ns(preset, mixed) == pytest.approx(ns(preset, decodes) + 0.42e6 + added)
    assert 0.05e6 * 512 < added < 0.2e6 * 512


@pytest.mark.parametrize("name", names())
def test_every_machine_is_known_and_makes_sense(name: str) -> None:
    machine = load_hardware(name)
    assert 0 < machine.compute_efficiency <= 1
    assert 0 < machine.memory_efficiency <= 1
    assert machine.memory_bytes > 2**32


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"hardware": "a100_40g"}, "did you mean a100_40gb"), ({"hardware": None}, "needs device.hardware"),
     ({"latency": "rooflin"}, "did you mean roofline"), ({"latency": None}, "device.latency is null"),
     ({"hardware": {"name": "x", "speed": 3}}, "speed")],
)  # fmt: skip
def test_a_mistake_is_answered_with_what_there_is(changes: dict[str, object], message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        _ = device(device=changes).latency


def test_the_pool_is_what_weights_leave() -> None:
    """OPT-13B on 40 GB: the paper's server has 12 GB for the KV cache, 15.7 K slots."""
    assert device().capacity == 100
    assert device(kv_bytes=819_200 * 7 + 1).capacity == 7
    slots = device(gpu_memory_utilization=0.9).capacity
    weights = device().weights
    assert slots == (int(42_505_273_344 * 0.9) - 2 * weights.parameters) // 819_200
    assert slots == pytest.approx(15_728, rel=0.05)
    with pytest.raises(HarnessError, match=r"gpu_memory_utilization needs device\.hardware"):
        _ = device(gpu_memory_utilization=0.9, device={"hardware": None}).capacity


def test_two_devices_hold_more_slots_than_twice_one() -> None:
    one, two = (device(gpu_memory_utilization=0.9, device={"tensor_parallel": n}).capacity for n in (1, 2))
    assert two > 2 * one


def test_a_measured_lane_is_split_where_its_context_is_known() -> None:
    plain, split = (device(device={"latency": name}).latency for name in
                    ("opt-13b-a100-sosp23", "opt-13b-a100-sosp23-context"))  # fmt: skip
    fig_1 = NOTHING._replace(decodes=30, context=30 * 414)
    assert ns(split, fig_1) == pytest.approx(ns(plain, fig_1)) == pytest.approx(1e6 * (26.2 + 0.42 * 30))
    short = fig_1._replace(context=30 * 78)
    saved = 30 * (414 - 78) * 819_200 / (1555 * 0.85)  # bytes over bytes per ns
    assert ns(plain, short) - ns(split, short) == pytest.approx(saved)
    with pytest.raises(HarnessError, match="context=700"):
        Anchored(26.2, 0.42, "a100_40gb", OmegaConf.load(MODELS / "opt_13b.yaml").config, context=700)
