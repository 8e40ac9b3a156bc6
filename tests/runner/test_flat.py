"""A model written out as a flat list of operations says what the model says, whatever its architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kvlab_kernels.dispatch import backend_for
from omegaconf import OmegaConf

from allocators.paged import Paged
from harness.runner import device as device_module
from harness.runner import torch_runner
from harness.runner.device import load
from harness.runner.dummy import DummyAllocator, dummy_decode, dummy_prefill
from harness.runner.families import families
from harness.runner.flat import flatten
from harness.runner.kv_pool import KVPool
from harness.runner.model import build_model, column_major_weights, read_config
from harness.runner.packing import Packed
from harness.runner.probe import probe
from harness.runner.torch_runner import TorchModelRunner
from schedulers.continuous import Continuous
from schedulers.reservation import RESERVATIONS
from tests.runner.serving import CONFIGS, VOCABULARY, difference, expected, serve

LLAMA_LIKE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
MODELS = CONFIGS | {
    "qwen2": LLAMA_LIKE | {"model_type": "qwen2"},
    "qwen3": LLAMA_LIKE | {"model_type": "qwen3"},
    "mistral": LLAMA_LIKE | {"model_type": "mistral"},
    "tied_llama": LLAMA_LIKE | {"model_type": "llama", "tie_word_embeddings": True},
    "gpt_neox": {"model_type": "gpt_neox", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                 "num_attention_heads": 4},
    "minicpm3": families()["minicpm3"],
    "gemma3": families()["gemma3"],
}  # fmt: skip
FEW = ("opt", "llama", "gpt_neox", "gemma3")
POOL = {"seed": 0, "max_model_len": 64, "kv_slots": 64, "kv_bytes": None, "gpu_memory_utilization": None}


def built(name: str) -> Any:
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 256}
    mapping = {"config": sizes | MODELS[name], "init_std": 0.25}
    torch.set_num_threads(1)
    return build_model(mapping, read_config(mapping), torch.device("cpu"), torch.float32, seed=1)


def runner_of(model: Any, step: Any = None) -> TorchModelRunner:
    probed = probe(model)
    pool = KVPool(probed, 65, torch.float32, torch.device("cpu"))
    for buffer in pool.buffers:
        buffer.copy_(torch.linspace(-99, 99, buffer.numel()).view(buffer.shape).sin())
    backend = backend_for("cpu", torch.float32)
    return TorchModelRunner(model, pool, probed.calls, DummyAllocator.extent(64), backend, lambda r: None, step)


def flattened(model: Any) -> Any:
    return flatten(model, probe(model).calls)


def steps() -> list[Packed]:
    """Prompts; decodes; one decode; one prompt that is not due yet. Token ids and slots at random."""
    rng = np.random.default_rng(3)
    made = [dummy_prefill([17, 5]), dummy_decode(6, 40), dummy_decode(1, 9), dummy_prefill([3])]
    for step in made:
        step.ids = rng.integers(3, VOCABULARY, len(step.ids))
        step.slots = rng.permutation(64)[: len(step.slots)]
    made[-1].due = made[-1].due[:0]
    return made


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in MODELS])
def test_flat_and_plain_agree(name: str) -> None:
    model = built(name)
    plain = [runner_of(model).forward(step) for step in steps()]
    column_major_weights(model)
    flat = [runner_of(model, flattened(model)).forward(step) for step in steps()]
    for a, b in zip(plain, flat, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunked", [False, True])
def test_flat_models_serve_what_generate_says(name: str, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_runner, "as_it_is", flattened)
    budget = 9 if chunked else 2560
    served = serve(
        name, Paged(160, 64, block_size=4),
        lambda allocator: Continuous(allocator, RESERVATIONS["on_demand"], max_model_len=64, watermark=0.0,
                                     chunked_prefill=chunked, max_num_batched_tokens=budget),
    )  # fmt: skip
    assert difference(served, expected(name)) < 1e-4


def test_the_same_step_twice_says_the_same() -> None:
    """Operations that overwrite their inputs must not reach a weight or a constant."""
    model = built("llama")
    runner = runner_of(model, flattened(model))
    first, again = (runner_of(model, runner.step).forward(steps()[0]) for _ in range(2))
    torch.testing.assert_close(first, again, atol=0, rtol=0)


def test_llama_is_fused_and_its_modules_are_gone() -> None:
    source = flattened(built("llama")).source  # type: ignore[attr-defined]
    assert source.count("call_rms_norm(") == 5
    assert source.count("call_rotate(") == 4
    assert source.count("attend(") == 2
    assert "pow" not in source
    assert "dropout" not in flattened(built("opt")).source  # type: ignore[attr-defined]


def test_gemma_is_fused_too() -> None:
    source = flattened(built("gemma3")).source  # type: ignore[attr-defined]
    assert "pow" not in source
    assert "call_rotate(" in source


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_after_the_last_attention_only_tokens_with_logits_due_are_computed(name: str) -> None:
    after = flattened(built(name)).source.split("attend(")[-1]  # type: ignore[attr-defined]
    assert 0 < after.index("call_index_Tensor(") < after.index("call_linear")


def test_a_model_that_cannot_be_traced_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: Any, calls: Any) -> Any:
        raise RuntimeError("its control flow asks the data")

    monkeypatch.setattr(device_module, "flatten", refuse)
    device_module._LOADED.clear()
    model = {"path": None, "config": CONFIGS["opt"] | {"vocab_size": VOCABULARY}, "init_std": 0.2}
    settings = {"kind": "cpu", "dtype": "float32", "threads": 1, "kernels": "auto"}
    opened = load(OmegaConf.create(POOL | {"model": model, "device": settings}))
    device_module._LOADED.clear()
    assert opened.facts["flattened"] is False
    assert "asks the data" in opened.facts["flattened_reason"]
    assert opened.runner(DummyAllocator.extent(16)).forward(dummy_decode(2, 4)).shape == (2, VOCABULARY)


def test_a_flat_model_that_says_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: Any, calls: Any) -> Any:
        step = flatten(model, calls)
        return lambda *args: step(*args) * 1.01

    monkeypatch.setattr(device_module, "flatten", wrong)
    device_module._LOADED.clear()
    model = {"path": None, "config": CONFIGS["opt"] | {"vocab_size": VOCABULARY}, "init_std": 0.2}
    settings = {"kind": "cpu", "dtype": "float32", "threads": 1, "kernels": "auto"}
    opened = load(OmegaConf.create(POOL | {"model": model, "device": settings}))
    device_module._LOADED.clear()
    assert opened.facts["flattened"] is False
    assert "differed" in opened.facts["flattened_reason"]
