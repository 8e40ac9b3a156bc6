"""Every tested architecture says what it says by itself, and a fault in how it is served shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kvlab_kernels.dispatch import backend_for
from kvlab_kernels.variant import AttentionVariant

from harness.errors import HarnessError
from harness.runner import logits_check
from harness.runner import probe as probe_module
from harness.runner.cache import PackedCache
from harness.runner.families import REFUSED, SERVED, families
from harness.runner.logits_check import compare_logits
from harness.runner.model import build_model, read_config
from harness.runner.refusals import longest_served, refuse_lengths

BY_DEFAULT = {"opt": "numba", "nemotron": "torch", "gemma2": "torch", "gemma3n": "torch", "gpt_oss": "numba",
              "llama4": "numba", "bloom": "torch", "deepseek_v2": "numba", "lfm2": "numba",
              "mamba": "torch"}  # fmt: skip
WHY = {
    "gpt_neo": "gpt_neo.*attention by itself.*a mask of its own",
    "minimax": "minimax.*cache of its own",
    "recurrent_gemma": "recurrent_gemma.*keeps .* in itself",
    "deepseek_v32": "deepseek_v32",
    "rwkv": "rwkv.*takes no KV cache",
}


def built(config: dict[str, Any], std: float = 0.12) -> Any:
    """A tiny model with random weights, biases and norms too."""
    torch.set_num_threads(1)
    group = {"config": config, "init_std": std}
    model = build_model(group, read_config(group), torch.device("cpu"), torch.float32, seed=1)
    generator = torch.Generator().manual_seed(2)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight += torch.randn(weight.shape, generator=generator) * std
    return model


def compared(config: dict[str, Any], kernels: str = "torch") -> logits_check.LogitsCheck:
    return compare_logits(built(config), backend_for("cpu", torch.float32, kernels))


@pytest.mark.parametrize(
    ("name", "kernels"),
    [(name, kernels) if BY_DEFAULT.get(name) == kernels else pytest.param(name, kernels, marks=pytest.mark.slow)
     for name in families(SERVED) for kernels in ("torch", "numba")],
)  # fmt: skip
def test_it_says_what_the_model_says(name: str, kernels: str) -> None:
    verdict = compared(families(SERVED)[name], kernels)
    assert verdict.equal, verdict
    assert verdict.tolerance <= 1e-4


@pytest.mark.parametrize("name", families(REFUSED))
def test_it_is_refused_in_one_line_with_its_name_and_a_reason(name: str) -> None:
    with pytest.raises(HarnessError, match=WHY.get(name, families(REFUSED)[name]["model_type"])) as caught:
        compared(families(REFUSED)[name])
    assert "\n" not in str(caught.value)


def without(**changes: Any) -> Any:
    """The probe, whose calls lack something."""

    def lacking(model: Any) -> Any:
        found = probe_module.probe(model)
        for i, call in enumerate(found.calls.all):
            found.calls.all[i] = call._replace(variant=call.variant._replace(**changes))
        return found

    return lacking


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mistral", {"window": 0}),
        ("gemma3n", {"window": 8}),
        ("llama4", {"chunk": 0}),
        ("gemma2", {"softcap": 0.0}),
        ("gpt_oss", {"sinks": None}),
    ],
)
def test_what_attention_leaves_out_shows(name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logits_check, "probe", without(**changes))
    verdict = compared(families()[name])
    assert not verdict.equal
    assert verdict.difference > 1e-2


def test_a_row_that_says_nothing_of_positions_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedCache, "get_seq_length", lambda self, layer_idx=None: 0)
    assert compared(families()["llama4"]).difference > 1e-2


def test_windows_are_put_back_after_a_check() -> None:
    model = built(families()["mistral"] | {"sliding_window": 50})
    compare_logits(model, backend_for("cpu", torch.float32, "torch"))
    assert model.config.sliding_window == 50
    assert probe_module.probe(model).calls.all[0].variant == AttentionVariant(window=50)


def test_a_large_window_is_left_behind_in_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the few tokens of a check would never leave a window of 4,096."""
    monkeypatch.setattr(logits_check, "probe", without(window=0))
    assert not compared(families()["mistral"] | {"sliding_window": 4096}).equal


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_rope_that_looks_at_the_row_is_checked_as_far_as_it_is_served(kind: str) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0}
    rope = {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 12, "factor": 4.0}
    positions = 48 if kind == "longrope" else 12
    rope |= factors if kind == "longrope" else {}
    model = built(families()["llama"] | {"rope_parameters": rope, "max_position_embeddings": positions})
    assert longest_served(model) == 12
    assert compare_logits(model, backend_for("cpu", torch.float32, "torch")).equal
    with pytest.raises(HarnessError, match=f"rope_type {kind} depends on|has 12 positions"):
        refuse_lengths(model, 13)


def test_sixteen_bits_are_compared_by_what_they_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(families()["gemma3"]).to(torch.bfloat16)
    backend = backend_for("cpu", torch.bfloat16)
    assert 1e-4 < compare_logits(model, backend).difference < logits_check.HALF
    monkeypatch.setattr(logits_check, "probe", without(window=0))
    assert not compare_logits(model, backend).equal


def test_a_model_that_differs_from_itself_is_measured_against_that() -> None:
    deep = families()["llama"] | {"num_hidden_layers": 24}
    verdict = compare_logits(built(deep, std=0.5), backend_for("cpu", torch.float32, "torch"))
    assert verdict.equal
    assert verdict.noise is not None
    assert verdict.tolerance > 1e-5
