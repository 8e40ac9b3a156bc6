"""What models keep of a sequence, from their configs: published sizes, shares of devices, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from allocators.layout import SLOT, Kept, KVLayout
from harness.errors import HarnessError
from harness.layout import layout_of

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8}  # fmt: skip
DEEPSEEK_V3 = {"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
               "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
               "v_head_dim": 128}  # fmt: skip
GEMMA = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "num_attention_heads": 8,
         "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024, "sliding_window_pattern": 6}  # fmt: skip
QWEN_NEXT = {"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
             "num_key_value_heads": 2, "head_dim": 256, "linear_num_value_heads": 32, "linear_num_key_heads": 16,
             "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}  # fmt: skip
NEMOTRON = {"model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "hybrid_override_pattern": "M-M*-M-E", "mamba_num_heads": 128,
            "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4}  # fmt: skip
JAMBA = {"model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16,
         "mamba_d_conv": 4, "mamba_expand": 2}  # fmt: skip
FALCON_H1 = {"model_type": "falcon_h1", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8,
             "num_key_value_heads": 2, "head_dim": 128, "mamba_d_conv": 4, "mamba_d_state": 256, "mamba_d_ssm": 3072,
             "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1}  # fmt: skip


def kinds(layout: KVLayout) -> list[tuple[str, int, int]]:
    """(kind, layers, bytes of a token or a state in one of them) of each group."""
    return [(g.kind, len(g.layers), g.token_bytes or g.state_bytes) for g in layout.groups]


def test_a_uniform_model_counts_in_slots() -> None:
    layout = layout_of(LLAMA)
    assert layout.uniform
    assert layout.kept == (SLOT,)
    assert (layout.unit_bytes, layout.token_bytes) == (131_072, 131_072)
    assert layout_of(LLAMA, element_bytes=4).unit_bytes == 262_144
    assert layout_of(LLAMA, kv_bytes=1).unit_bytes == 65_536


@pytest.mark.parametrize(("devices", "slot"), [(1, 131_072), (2, 131_072), (8, 131_072), (16, 262_144), (32, 524_288)])
def test_no_device_holds_less_than_a_whole_head(devices: int, slot: int) -> None:
    assert layout_of(LLAMA, tensor_parallel=devices).unit_bytes == slot


@pytest.mark.parametrize("devices", [3, 12])
def test_heads_that_the_devices_cant_share_are_refused(devices: int) -> None:
    with pytest.raises(HarnessError, match=rf"device\.tensor_parallel={devices}: the model's 8 KV heads"):
        layout_of(LLAMA, tensor_parallel=devices)


def test_a_latent_is_kept_once_by_each_device() -> None:
    layout = layout_of(DEEPSEEK_V3)
    assert layout.unit_bytes == 61 * (512 + 64) * 2 == 70_272
    assert layout.kept == (Kept("latent", 1),)
    assert layout_of(DEEPSEEK_V3, tensor_parallel=8).unit_bytes == 8 * 70_272


def test_windows_chunks_and_states_are_kept_apart_in_bytes() -> None:
    assert layout_of(GEMMA).kept == (Kept("window 1024", 29 * 4096, 0, 1024), Kept("full", 5 * 4096))
    assert kinds(layout_of(QWEN_NEXT)) == [("state", 36, 1_097_728), ("full", 12, 2048)]
    assert kinds(layout_of(NEMOTRON)) == [("state", 3, 4_255_744), ("full", 1, 4096)]  # its states are float32
    assert kinds(layout_of(JAMBA)) == [("state", 28, 311_296), ("full", 4, 4096)]
    assert kinds(layout_of(FALCON_H1)) == [("full", 24, 1024), ("state", 24, 1_594_368)]
    llama4 = LLAMA | {"model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 8192}
    assert layout_of(llama4).kept == (Kept("chunk 8192", 6 * 4096, 0, 8192, chunked=True), Kept("full", 2 * 4096))


def test_states_are_shared_by_devices() -> None:
    one, two = (layout_of(QWEN_NEXT, tensor_parallel=n) for n in (1, 2))
    assert one.state_bytes == two.state_bytes
    assert two.groups[0].states[1].shape == (16, 128, 128)
    with pytest.raises(HarnessError, match="can't be shared out evenly"):
        layout_of(NEMOTRON, tensor_parallel=3)


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    assert layout_of(mistral).kept == (Kept("window 4096", 1, 0, 4096),)
    assert layout_of(mistral).within(4096).kept == (SLOT,)
    assert layout_of(mistral).within(4097).kept == (Kept("window 4096", 1, 0, 4096),)
    assert layout_of(GEMMA).within(1024).uniform


@pytest.mark.parametrize(
    ("change", "window"),
    [({"model_type": "mistral"}, 4096), ({"model_type": "mistral", "sliding_window": None}, 0),
     ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False}, 0),
     ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 0}, 512)],
)  # fmt: skip
def test_a_config_that_leaves_the_window_out_has_its_familys(change: dict[str, Any], window: int) -> None:
    assert layout_of(LLAMA | change).groups[0].reach == window


def test_transformers_configs_are_read_like_written_ones() -> None:
    from transformers import AutoConfig

    for written in (LLAMA, GEMMA, QWEN_NEXT, DEEPSEEK_V3):
        values = {key: value for key, value in written.items() if key not in ("model_type", "sliding_window_pattern")}
        assert layout_of(AutoConfig.for_model(written["model_type"], **values)) == layout_of(written)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "new", "sliding_window": 512}, "which of its layers have the sliding_window=512 is not known"),
        ({"model_type": "new", "layer_types": ["full_attention"] * 31 + ["holographic"]}, "calls 'holographic'"),
        ({"model_type": "new", "layer_types": ["full_attention"] * 3}, "layer_types lists 3 layers"),
        ({"model_type": "deepseek_v32", "index_topk": 2048}, "index_topk=2048: indexers"),
        ({"model_type": "kimi_linear", "layer_types": ["linear_attention"] * 32}, "recurrent layers keep is not known"),
        ({"model_type": "rwkv"}, "not known"),
        ({"model_type": "new", "mamba_d_state": 16}, "which of its layers are recurrent"),
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(HarnessError, match=told):
        layout_of(LLAMA | change)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(HarnessError, match="does not say num_hidden_layers"):
        layout_of({"model_type": "llama", "hidden_size": 64})
