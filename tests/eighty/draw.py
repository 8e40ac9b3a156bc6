"""Draws a small configuration of a family: whatever a config of it may say that changes what a layer keeps or sees."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from harness.runner.families import families

HEADS = ((4, 4), (4, 1), (6, 2), (6, 3), (8, 2), (3, 3), (2, 1))  # of queries, of keys and values
WIDTHS = (8, 12, 16, 24, 32)
WINDOWS = (1, 2, 3, 5, 8, 11, 40, 4096)
Config = dict[str, Any]


def draw(seed: int, number: int, attempt: int = 0) -> tuple[str, Config]:
    """Family and config of a case. Each family has its turn once, then chance says which.

    Args:
        attempt: another draw, where `transformers` itself can't run the one before.
    """
    rng, names = Random(f"{seed} {number} {attempt}"), list(families())
    name = names[number] if number < len(names) else rng.choice(names)
    config = families()[name] | _sizes(rng) | {"vocab_size": rng.choice([300, 512]), "tie_word_embeddings": _coin(rng)}
    return name, config | OF_FAMILY[name](rng, config)


def _coin(rng: Random) -> bool:
    return rng.random() < 0.5


def _sizes(rng: Random) -> Config:
    heads, kv_heads = rng.choice(HEADS)
    return {
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": heads * rng.choice(WIDTHS),
        "intermediate_size": rng.choice([72, 128]), "num_hidden_layers": rng.choice([1, 2, 3]),
    }  # fmt: skip


def _ropes(rng: Random, partial: bool = False) -> Config:
    """One of the ropes that are the same for all tokens of a row, or not yet different at these lengths."""
    kinds: list[Config] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
    ]  # fmt: skip
    rope = rng.choice(kinds) | {"rope_theta": rng.choice([500.0, 10000.0])}
    return {"rope_parameters": rope | ({"partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])} if partial else {})}


def _pattern(rng: Random, kinds: tuple[str, ...], layers: int) -> list[str]:
    """Kinds of layers in any order, each there where there is room."""
    pattern = [*kinds, *(rng.choice(kinds) for _ in range(layers))][: max(layers, len(kinds))]
    rng.shuffle(pattern)
    return pattern


def _layers(rng: Random, kinds: tuple[str, ...], most: int = 4, key: str = "layer_types") -> Config:
    pattern = _pattern(rng, kinds, rng.randint(2, most))
    return {key: pattern, "num_hidden_layers": len(pattern)}


def _plain(rng: Random, config: Config, **options: Any) -> Config:
    return {"attention_bias": _coin(rng), "mlp_bias": _coin(rng), **_ropes(rng), **options}


def _free_width(rng: Random, config: Config) -> Config:
    """Heads whose width is not that of the model, shared among them."""
    return _plain(rng, config, head_dim=rng.choice([8, 16, 20, 32]))


def _windowed(rng: Random, config: Config) -> Config:
    return _layers(rng, ("sliding_attention", "full_attention")) | {"sliding_window": rng.choice(WINDOWS)}


def _experts(rng: Random, key: str) -> Config:
    return {key: rng.choice([2, 3, 5]), "num_experts_per_tok": rng.choice([1, 2]), "moe_intermediate_size": 24}


def opt(rng: Random, config: Config) -> Config:
    projected = rng.choice([config["hidden_size"], 40])
    return {"do_layer_norm_before": _coin(rng) or projected == 40, "word_embed_proj_dim": projected,
            "enable_bias": _coin(rng), "ffn_dim": rng.choice([56, 128]),
            "layer_norm_elementwise_affine": _coin(rng)}  # fmt: skip


def gpt2(rng: Random, config: Config) -> Config:
    heads = rng.choice([2, 3, 5])
    return {"n_head": heads, "n_embd": heads * rng.choice(WIDTHS), "n_layer": rng.choice([1, 3]),
            "scale_attn_by_inverse_layer_idx": _coin(rng), "reorder_and_upcast_attn": _coin(rng),
            "scale_attn_weights": _coin(rng)}  # fmt: skip


def gpt_neox(rng: Random, config: Config) -> Config:
    return {"use_parallel_residual": _coin(rng), "attention_bias": _coin(rng), **_ropes(rng, partial=True)}


def smollm3(rng: Random, config: Config) -> Config:
    layers = rng.choice([2, 3, 4])
    return _plain(rng, config, num_hidden_layers=layers, no_rope_layers=[rng.randint(0, 1) for _ in range(layers)],
                  no_rope_layer_interval=2)  # fmt: skip


def qwen(rng: Random, config: Config) -> Config:
    """With windows in its later layers, which few models of the family switch on."""
    sliding = {"use_sliding_window": True, "sliding_window": rng.choice(WINDOWS), "max_window_layers": 1,
               "num_hidden_layers": 3, "layer_types": None}  # fmt: skip
    return _plain(rng, config) | (sliding if _coin(rng) else {})


def qwen_moe(rng: Random, config: Config) -> Config:
    return _free_width(rng, config) | _experts(rng, "num_experts") | {"norm_topk_prob": _coin(rng)}


def mixtral(rng: Random, config: Config) -> Config:
    return {**_free_width(rng, config), "sliding_window": rng.choice([None, 3, 9]), "num_local_experts": 3}


def phi3(rng: Random, config: Config) -> Config:
    return {"sliding_window": rng.choice([None, 4, 9]), "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rng.choice([0.5, 1.0])}}  # fmt: skip


def ministral3(rng: Random, config: Config) -> Config:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": rng.choice([0.1, 0.5]), "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    return {"head_dim": rng.choice([8, 16, 32]), "rope_parameters": rope, "sliding_window": rng.choice([None, 5])}


def stablelm(rng: Random, config: Config) -> Config:
    return {"use_qkv_bias": _coin(rng), "qk_layernorm": _coin(rng), "use_parallel_residual": _coin(rng),
            **_ropes(rng, partial=True)}  # fmt: skip


def nemotron(rng: Random, config: Config) -> Config:
    return {**_plain(rng, config), **_ropes(rng, partial=True), "head_dim": rng.choice([8, 16, 32])}


def mistral(rng: Random, config: Config) -> Config:
    return {**_free_width(rng, config), "sliding_window": rng.choice([None, *WINDOWS])}


def gemma2(rng: Random, config: Config) -> Config:
    return {**_windowed(rng, config), "head_dim": rng.choice([8, 16, 20, 32]),
            "query_pre_attn_scalar": rng.choice([8, 16, 144]), "attention_bias": _coin(rng),
            "attn_logit_softcapping": rng.choice([None, 0.7, 5.0, 50.0]),
            "final_logit_softcapping": rng.choice([None, 8.0, 30.0])}  # fmt: skip


def gemma3(rng: Random, config: Config) -> Config:
    ropes = {"sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
             "full_attention": _ropes(rng)["rope_parameters"]}  # fmt: skip
    return gemma2(rng, config) | {"rope_parameters": ropes}


def gemma3n(rng: Random, config: Config) -> Config:
    shared = rng.choice([0, 1, 2])
    pattern = ["sliding_attention", "full_attention", *_pattern(rng, ("sliding_attention", "full_attention"), shared)]
    pattern = pattern[: 2 + shared]
    return {"layer_types": pattern, "num_hidden_layers": len(pattern), "num_kv_shared_layers": shared,
            "activation_sparsity_pattern": [0.0] * len(pattern), "sliding_window": rng.choice(WINDOWS),
            "vocab_size_per_layer_input": config["vocab_size"], "head_dim": rng.choice([8, 16, 32]),
            "final_logit_softcapping": rng.choice([8.0, 30.0])}  # fmt: skip


def exaone4(rng: Random, config: Config) -> Config:
    return {**_windowed(rng, config), **_ropes(rng)}


def olmo3(rng: Random, config: Config) -> Config:
    full = _ropes(rng)["rope_parameters"]
    ropes = {"sliding_attention": {"rope_type": "default", "rope_theta": full["rope_theta"]}, "full_attention": full}
    return {**_windowed(rng, config), "attention_bias": _coin(rng), "rope_parameters": ropes}


def cohere2(rng: Random, config: Config) -> Config:
    return {**_windowed(rng, config), "attention_bias": _coin(rng), "logit_scale": rng.choice([0.1, 1.0])}


def gpt_oss(rng: Random, config: Config) -> Config:
    return {**_windowed(rng, config), "head_dim": rng.choice([8, 16, 32]), "attention_bias": _coin(rng),
            "num_local_experts": rng.choice([2, 4]), **(_ropes(rng) if _coin(rng) else {})}  # fmt: skip


def llama4(rng: Random, config: Config) -> Config:
    made = _layers(rng, ("chunked_attention", "full_attention"))
    return {**made, "no_rope_layers": [int(kind == "chunked_attention") for kind in made["layer_types"]],
            "attention_chunk_size": rng.choice([1, 2, 5, 8, 16, 8192]), "use_qk_norm": _coin(rng),
            "attn_temperature_tuning": _coin(rng), "floor_scale": rng.choice([2, 4, 8192]),
            "head_dim": rng.choice([8, 16, 32]), "moe_layers": None, "interleave_moe_layer_step": rng.choice([1, 2]),
            "attention_bias": _coin(rng)}  # fmt: skip


def latent(rng: Random, config: Config) -> Config:
    """Latents, with and without compressed queries."""
    heads, rope = rng.choice([2, 3, 4]), rng.choice([4, 8, 16])
    return {"num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": heads * rng.choice([16, 24]),
            "q_lora_rank": rng.choice([None, 20, 32]),
            "kv_lora_rank": rng.choice([8, 24, 48]), "qk_nope_head_dim": rng.choice([8, 12, 16]),
            "qk_rope_head_dim": rope, "head_dim": rope, "v_head_dim": rng.choice([8, 12, 20]),
            "attention_bias": _coin(rng), "num_hidden_layers": rng.choice([2, 3]), "mlp_layer_types": None,
            "rope_interleave": _coin(rng), "norm_topk_prob": _coin(rng), **_ropes(rng)}  # fmt: skip


def compressed(rng: Random, config: Config) -> Config:
    """Latents of those that always compress queries."""
    return latent(rng, config) | {"q_lora_rank": rng.choice([16, 24])}


def longcat(rng: Random, config: Config) -> Config:
    return compressed(rng, config) | {"num_layers": rng.choice([1, 2]), "zero_expert_num": rng.choice([1, 3])}


def kimi_linear(rng: Random, config: Config) -> Config:
    made = _layers(rng, ("linear_attention", "full_attention"))
    return {**latent(rng, config), **made, "q_lora_rank": None, "linear_num_heads": rng.choice([2, 3]),
            "linear_head_dim": rng.choice([8, 16]), "linear_conv_kernel_dim": rng.choice([2, 3, 4]),
            "attention_bias": False}  # fmt: skip


def _delta(rng: Random, config: Config) -> Config:
    keys = rng.choice([1, 2, 3])
    return {**_layers(rng, ("linear_attention", "full_attention")), "linear_num_key_heads": keys,
            "linear_num_value_heads": keys * rng.choice([1, 2]), "linear_key_head_dim": rng.choice([8, 16]),
            "linear_value_head_dim": rng.choice([8, 16, 24]), "linear_conv_kernel_dim": rng.choice([2, 3, 4, 5]),
            "attention_bias": _coin(rng)}  # fmt: skip


def qwen3_next(rng: Random, config: Config) -> Config:
    return {**_delta(rng, config), **_experts(rng, "num_experts"), "head_dim": rng.choice([8, 16, 32]),
            **_ropes(rng, partial=True)}  # fmt: skip


def olmo_hybrid(rng: Random, config: Config) -> Config:
    return {**_delta(rng, config), "linear_allow_neg_eigval": _coin(rng), **_ropes(rng)}


def _mamba2(rng: Random, config: Config) -> Config:
    width, groups = rng.choice([8, 16]), rng.choice([1, 2])
    hidden = 16 * rng.choice([3, 4])
    return {"hidden_size": hidden, "num_attention_heads": 4, "num_key_value_heads": rng.choice([1, 2, 4]),
            "mamba_expand": 2, "mamba_d_head": width, "mamba_n_heads": 2 * hidden // width, "mamba_n_groups": groups,
            "mamba_d_state": rng.choice([8, 16]), "mamba_d_conv": rng.choice([2, 3, 4]),
            "mamba_chunk_size": rng.choice([4, 16, 256]), "mamba_conv_bias": _coin(rng),
            "mamba_proj_bias": _coin(rng), "attention_bias": _coin(rng)}  # fmt: skip


def bamba(rng: Random, config: Config) -> Config:
    layers = rng.choice([2, 3, 4])
    return {**_mamba2(rng, config), "num_hidden_layers": layers, "attn_layer_indices": [rng.randrange(layers)],
            **_ropes(rng, partial=True)}  # fmt: skip


def granite(rng: Random, config: Config) -> Config:
    return {**_mamba2(rng, config), **_layers(rng, ("mamba", "attention")), "attention_multiplier": 0.2,
            "residual_multiplier": 0.7, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
            "position_embedding_type": rng.choice([None, "rope"]),
            "num_local_experts": rng.choice([0, 3])}  # fmt: skip


def falcon_h1(rng: Random, config: Config) -> Config:
    made = _mamba2(rng, config)
    return {**made, "mamba_d_ssm": 2 * made["hidden_size"], "mamba_rms_norm": _coin(rng),
            "mamba_norm_before_gate": _coin(rng), "key_multiplier": 0.7, "ssm_in_multiplier": 1.2,
            "attention_out_multiplier": 0.9, **_ropes(rng)}  # fmt: skip


def nemotron_h(rng: Random, config: Config) -> Config:
    made = _layers(rng, ("mamba", "attention", "mlp"), 5, "layers_block_type")
    return {**made, "hidden_size": 64, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": rng.choice([1, 2, 4]),
            "ssm_state_size": rng.choice([8, 16]), "conv_kernel": rng.choice([2, 3, 4]),
            "chunk_size": rng.choice([4, 16, 128]), "head_dim": rng.choice([8, 16, 24]), "use_conv_bias": _coin(rng),
            "attention_bias": _coin(rng), "mamba_proj_bias": _coin(rng)}  # fmt: skip


def mamba2(rng: Random, config: Config) -> Config:
    width = rng.choice([8, 16])
    return {"hidden_size": 48, "head_dim": width, "num_heads": 96 // width, "n_groups": rng.choice([1, 2]),
            "state_size": rng.choice([8, 16]), "conv_kernel": rng.choice([2, 3, 4]), "use_bias": _coin(rng),
            "use_conv_bias": _coin(rng), "chunk_size": rng.choice([4, 16, 256]),
            "residual_in_fp32": _coin(rng)}  # fmt: skip


def lfm2(rng: Random, config: Config) -> Config:
    return {**_layers(rng, ("conv", "full_attention")), "conv_L_cache": rng.choice([2, 3, 4, 5]),
            "conv_bias": _coin(rng), "block_auto_adjust_ff_dim": _coin(rng)}  # fmt: skip


def zamba2(rng: Random, config: Config) -> Config:
    made = _layers(rng, ("mamba", "hybrid"), 5, "layers_block_type")
    hidden, groups = 16 * rng.choice([3, 4]), rng.choice([1, 2])
    return {**made, "hidden_size": hidden, "num_attention_heads": 4, "num_key_value_heads": 4, "mamba_ngroups": groups,
            "n_mamba_heads": rng.choice([4, 8]), "mamba_d_state": rng.choice([8, 16]), "num_mem_blocks": 1,
            "mamba_d_conv": rng.choice([2, 3, 4]), "use_shared_attention_adapter": _coin(rng),
            "use_mem_rope": _coin(rng), "chunk_size": rng.choice([4, 16, 256]),
            "use_conv_bias": _coin(rng)}  # fmt: skip


def zamba(rng: Random, config: Config) -> Config:
    hidden = 16 * rng.choice([3, 4])
    return {**_layers(rng, ("mamba", "hybrid"), 5, "layers_block_type"), "hidden_size": hidden,
            "num_attention_heads": 4, "num_key_value_heads": 4, "attention_hidden_size": 2 * hidden,
            "attention_head_dim": hidden // 2, "n_mamba_heads": rng.choice([1, 2, 4]),
            "mamba_d_state": rng.choice([4, 8, 16]), "mamba_d_conv": rng.choice([2, 3, 4])}  # fmt: skip


def jamba(rng: Random, config: Config) -> Config:
    period = rng.choice([2, 3])
    return {"num_hidden_layers": rng.choice([3, 4]), "attn_layer_period": period,
            "attn_layer_offset": rng.randrange(period), "mamba_d_state": rng.choice([4, 8, 16]),
            "mamba_d_conv": rng.choice([2, 3, 4]), "mamba_expand": rng.choice([1, 2]), "mamba_conv_bias": _coin(rng),
            "mamba_proj_bias": _coin(rng), "num_experts": rng.choice([2, 3])}  # fmt: skip


def mamba(rng: Random, config: Config) -> Config:
    return {"state_size": rng.choice([4, 8, 16]), "conv_kernel": rng.choice([2, 3, 4]), "expand": rng.choice([1, 2]),
            "use_bias": _coin(rng), "use_conv_bias": _coin(rng), "residual_in_fp32": _coin(rng),
            "time_step_rank": rng.choice([2, 5])}  # fmt: skip


def bloom(rng: Random, config: Config) -> Config:
    return {"n_head": rng.choice([2, 4]), "hidden_size": 4 * rng.choice(WIDTHS), "n_layer": rng.choice([1, 3]),
            "apply_residual_connection_post_layernorm": _coin(rng)}  # fmt: skip


def mpt(rng: Random, config: Config) -> Config:
    heads = rng.choice([2, 3, 4, 6])
    return {"n_heads": heads, "d_model": heads * rng.choice(WIDTHS), "n_layers": rng.choice([1, 3]),
            "expansion_ratio": rng.choice([2, 4])}  # fmt: skip


def falcon(rng: Random, config: Config) -> Config:
    """Old and new decoders, one KV head, several or all."""
    new, heads = _coin(rng), rng.choice([2, 4])
    return {"num_attention_heads": heads, "hidden_size": heads * rng.choice([8, 16, 32]), "bias": _coin(rng),
            "new_decoder_architecture": new, "multi_query": _coin(rng), "parallel_attn": new or _coin(rng),
            "num_kv_heads": rng.choice([1, 2])}  # fmt: skip


OF_FAMILY: dict[str, Callable[[Random, Config], Config]] = {
    "opt": opt, "gpt2": gpt2, "gpt_neox": gpt_neox, "llama": _free_width, "smollm3": smollm3, "qwen2": qwen,
    "qwen3": qwen, "qwen3_moe": qwen_moe, "mixtral": mixtral, "phi3": phi3, "ministral3": ministral3,
    "stablelm": stablelm, "nemotron": nemotron, "mistral": mistral, "gemma2": gemma2, "gemma3": gemma3,
    "gemma3n": gemma3n, "exaone4": exaone4, "olmo3": olmo3, "cohere2": cohere2, "gpt_oss": gpt_oss, "llama4": llama4,
    "deepseek_v2": latent, "deepseek_v3": latent, "minicpm3": compressed, "glm4_moe_lite": latent,
    "longcat_flash": longcat, "kimi_linear": kimi_linear, "qwen3_next": qwen3_next, "qwen3_5": qwen3_next,
    "olmo_hybrid": olmo_hybrid, "bamba": bamba, "granite4_h": granite, "falcon_h1": falcon_h1,
    "nemotron_h": nemotron_h, "mamba2": mamba2, "lfm2": lfm2, "zamba2": zamba2, "zamba": zamba, "jamba": jamba,
    "mamba": mamba, "falcon_mamba": mamba, "bloom": bloom, "mpt": mpt, "falcon_rope": falcon, "falcon_alibi": falcon,
}  # fmt: skip
