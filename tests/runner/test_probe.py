"""What a model keeps is found by looking, and what is not understood is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kvlab_kernels.variant import PLAIN, AttentionVariant
from transformers.masking_utils import causal_mask_function, chunked_causal_mask_function
from transformers.models.llama import modeling_llama

from harness.errors import HarnessError
from harness.layout import layout_of
from harness.runner.attention import CURRENT, Mask
from harness.runner.families import families
from harness.runner.probe import Stored, classify, probe
from harness.runner.refusals import refuse_lengths
from tests.runner.test_logits_check import built

CPU = torch.device("cpu")


def test_keys_and_values_of_every_layer_are_found() -> None:
    found = probe(built(families()["llama"]))
    assert found.layers == {0: Stored((2, 16), (2, 16)), 1: Stored((2, 16), (2, 16))}
    assert found.elements_per_token == 2 * 2 * 2 * 16
    assert [(call.layer, call.stores, call.variant) for call in found.calls.all] == [(0, True, PLAIN), (1, True, PLAIN)]
    assert CURRENT.get() is None


def test_layers_that_share_keys_store_none() -> None:
    found = probe(built(families()["gemma3n"]))
    assert sorted(found.layers) == [0, 1]
    assert [(call.layer, call.stores) for call in found.calls.all] == [(0, True), (1, True), (0, False), (1, False)]
    assert [call.variant.window for call in found.calls.all] == [7, 0, 7, 0]


def test_sinks_caps_and_scales_are_found() -> None:
    sliding, full = probe(built(families()["gpt_oss"])).calls.all
    assert (sliding.variant.window, full.variant.window) == (7, 0)
    assert sliding.variant.sinks.shape == full.variant.sinks.shape == (4,)
    first = probe(built(families()["gemma2"])).calls.all[0]
    assert first.variant == AttentionVariant(window=7, softcap=2.0)
    assert first.scale == 20**-0.5


def test_of_a_latent_one_vector_is_kept() -> None:
    config = families()["deepseek_v2"]
    model = built(config)
    found = probe(model)
    assert set(found.layers.values()) == {Stored((1, 32 + 8), (1, 32), rank=32)}
    assert found.layout(4) == layout_of(model.config, 4)
    assert all(call.latent.key_weight.shape == (4, 16, 32) for call in found.calls.all)


def test_a_latent_that_is_expanded_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(families()["deepseek_v2"])
    original = type(model.model.layers[1].self_attn).expand_kv
    monkeypatch.setattr(model.model.layers[1].self_attn, "expand_kv", lambda c, r: original(
        model.model.layers[1].self_attn, c.tanh(), r))  # fmt: skip
    with pytest.raises(HarnessError, match=r"layer 1 \(DeepseekV2Attention\): expands what it cached"):
        probe(model)


@pytest.mark.parametrize("size", [1, 2, 7, 50, 4096])
def test_masks_are_classified_by_what_they_let_see(size: int) -> None:
    def window(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (key > query - size)

    chunk = chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64))
    assert classify(Mask(causal_mask_function, None), CPU) == PLAIN
    assert classify(Mask(causal_mask_function, size), CPU) == PLAIN
    assert classify(Mask(window, size), CPU) == AttentionVariant(window=size)
    assert classify(Mask(chunk, size), CPU) in (AttentionVariant(chunk=size), AttentionVariant(window=1))
    assert classify(Mask(lambda b, h, q, k: window(b, h, q, k) | (k == 0), size), CPU) is None
    assert classify(Mask(lambda b, h, q, k: k >= 0, None), CPU) is None
    assert classify(Mask(lambda b, h, q, k: window(b, h, q, k), None), CPU) is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"position_bias": torch.zeros(1)}, "layer 0 .LlamaAttention.: .*handed position_bias"),
        ({"sliding_window": 5}, "told of a window of 5, and its mask has none"),
        ({"s_aux": torch.zeros(3)}, "one number for each query head"),
        ({"softcap": torch.ones(1)}, "scaled by a tensor"),
        ({"attention_mask": None}, "no mask at all"),
        ({"attention_mask": torch.zeros(1, 1, 6, 6)}, "a mask of its own"),
    ],
)
def test_whatever_attention_is_handed_is_understood_or_refused(
    options: dict[str, Any], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built(families()["llama"])
    interface = modeling_llama.ALL_ATTENTION_FUNCTIONS

    def handing(name: str, default: Any) -> Any:
        inner = type(interface).get_interface(interface, name, default)

        def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
            given |= options
            return inner(module, q, k, v, given.pop("attention_mask", mask), **given)

        return attention

    class Handing:
        get_interface = staticmethod(handing)

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Handing)
    with pytest.raises(HarnessError, match=match):
        probe(model)


def test_keys_that_no_cache_returned_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(x: torch.Tensor, *rest: Any) -> Any:
        return x + 0

    original = modeling_llama.LlamaAttention.forward

    def forward(self: Any, *args: Any, cache: Any = None, **kwargs: Any) -> Any:
        class Copying:
            def update(self, key: Any, value: Any, layer: int, **more: Any) -> Any:
                key, value = cache.update(key, value, layer, **more)
                return copied(key), value

        return original(self, *args, cache=Copying(), **kwargs)

    model = built(families()["llama"])
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forward)
    with pytest.raises(HarnessError, match=r"layer 0 \(LlamaAttention\)"):
        probe(model)


def test_a_forward_pass_that_fails_is_told_with_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(families()["llama"])
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: x @ x)
    with pytest.raises(HarnessError, match=r"model llama \(LlamaMLP\): its forward pass fails"):
        probe(model)


def test_a_pad_token_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(HarnessError, match="phi3: pad_token_id = 32000 lies outside the vocabulary of 512"):
        built(families()["phi3"] | {"pad_token_id": 32000})


@pytest.mark.parametrize(
    ("name", "rope", "served"),
    [
        ("phi3", {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}, 32),
        ("llama", {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 8.0}, 32),
        ("llama", {"rope_type": "dynamic", "factor": 2.0}, 256),
    ],
)
def test_a_rope_that_looks_at_the_whole_row_is_served_up_to_its_length(
    name: str, rope: dict[str, Any], served: int
) -> None:
    config = families()[name] | {"original_max_position_embeddings": 32}
    rope = rope | {"rope_theta": 10000.0, "original_max_position_embeddings": 32}
    model = built(config | {"rope_parameters": rope})
    refuse_lengths(model, served)
    with pytest.raises(HarnessError, match=rf"rope_type .*max_model_len={served} or less|has {served} positions"):
        refuse_lengths(model, served + 1)


def test_longer_sequences_than_a_model_has_positions_are_refused() -> None:
    with pytest.raises(HarnessError, match="max_model_len=257: model opt has 256 positions"):
        refuse_lengths(built(families()["opt"]), 257)
