"""Weights of one layer's attention, or of its recurrence, and the arithmetic of a pair of tokens."""

from __future__ import annotations

from harness.layout.layers import Text
from harness.layout.recurrent import mamba_groups, mamba_heads, mamba_inner


def attention_weights(text: Text, number: int = 0, own_kv: bool = True) -> int:
    """The four projections; those of MLA are six, or five where queries are not compressed.

    Args:
        own_kv: whether the layer makes K and V of its own.
    """
    hidden, heads = text.hidden_size, text.num_attention_heads
    if text.latent_width:
        rope, nope = text.get("qk_rope_head_dim", 0), text.qk_nope_head_dim
        rank, value, query = text.kv_lora_rank, text.v_head_dim, heads * (nope + rope)
        down = text.get("q_lora_rank")
        queries = down * (hidden + query) if down else hidden * query
        return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    kv = text.kv_heads(number) if own_kv else 0
    gated = text.get("attn_output_gate", text.model_type == "qwen3_next")
    both = hidden * (text.key_width * (heads + kv) + text.value_width * (heads + kv))
    return both + (hidden * heads * text.key_width if gated else 0)


def state_weights(text: Text) -> int:
    """In and out projections, the convolution, and what makes the recurrence's coefficients."""
    hidden = text.hidden_size
    if text.get("linear_num_value_heads"):
        keys = text.linear_num_key_heads * text.linear_key_head_dim
        values = text.linear_num_value_heads * text.linear_value_head_dim
        mixed = 2 * keys + values
        return (
            hidden * (mixed + values + 2 * text.linear_num_value_heads + values) + mixed * text.linear_conv_kernel_dim
        )
    if text.get("conv_L_cache"):
        width = text.get("conv_dim") or hidden
        return 4 * hidden * width + width * text.conv_L_cache
    kernel = text.get("mamba_d_conv") or text.conv_kernel
    state = text.get("mamba_d_state") or text.get("ssm_state_size") or text.state_size
    inner, heads = mamba_inner(text), mamba_heads(text)
    if not heads:
        rank = text.get("mamba_dt_rank") or text.get("time_step_rank")
        rank = rank if isinstance(rank, int) else -(-hidden // 16)
        return inner * (3 * hidden + kernel + 2 * rank + 3 * state)
    channels = inner + 2 * mamba_groups(text) * state
    return hidden * (inner + channels + heads + inner) + channels * kernel


def pair_flops(text: Text, compressed: bool) -> int:
    """Of one query with one token that it sees, in all heads of one layer: q·k and p·v, a multiply-add each.

    Args:
        compressed: whether a latent is read as it is (a decode), or was written out to K and V first (a prompt).
    """
    if not text.latent_width:
        return 2 * text.num_attention_heads * (text.key_width + text.value_width)
    if compressed:
        return 2 * text.num_attention_heads * (text.latent_width + text.kv_lora_rank)
    return 2 * text.num_attention_heads * (text.qk_nope_head_dim + text.get("qk_rope_head_dim", 0) + text.v_head_dim)
