"""The tensors that recurrent layers keep of a sequence, by family, in the shapes that engines store."""

from __future__ import annotations

from allocators.layout import State
from harness.errors import HarnessError
from harness.layout.layers import Text
from harness.layout.shares import share

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}


def states_of(text: Text, element_bytes: int, devices: int = 1) -> tuple[State, ...]:
    """Of one layer on one device: the last inputs of its convolution, then its recurrent state.

    The convolution keeps one input less than its kernel is long, in the model's dtype; the state has a dtype of its own
    where the config says so.

    Raises:
        HarnessError: a family whose states are not known, or heads that the devices can't share.
    """
    if text.get("conv_L_cache"):  # short convolution: LFM2
        width = text.get("conv_dim") or text.hidden_size
        return (State((text.conv_L_cache - 1, share(width, devices)), element_bytes),)
    if text.get("linear_num_value_heads"):  # gated delta rule: Qwen3-Next, Qwen3.5, Olmo-Hybrid
        kernel, channels, state = _delta_rule(text, devices)
    else:
        kernel = text.get("mamba_d_conv") or text.get("conv_kernel")
        width = text.get("mamba_d_state") or text.get("ssm_state_size") or text.get("state_size")
        if not kernel or not width:
            raise HarnessError(f"model_type={text.model_type}: what its recurrent layers keep is not known")
        channels, state = _mamba2(text, width, devices) if mamba_heads(text) else _mamba1(text, width, devices)
    return State((kernel - 1, channels), element_bytes), State(state, _own_bytes(text, element_bytes))


def mixer_of(text: Text) -> str:
    """How its recurrent layers compute: `short_conv`, `delta_rule`, `mamba1` or `mamba2`."""
    if text.get("conv_L_cache"):
        return "short_conv"
    if text.get("linear_num_value_heads"):
        return "delta_rule"
    return "mamba2" if mamba_heads(text) else "mamba1"


def mamba_heads(text: Text) -> int:
    """Heads of a Mamba-2 layer; 0 of a Mamba-1 layer."""
    if text.model_type == "mamba2":
        return text.num_heads
    names = ["mamba_n_heads", "mamba_num_heads"] + ["n_mamba_heads"] * (text.model_type == "zamba2")
    return next((text.get(name) for name in names if text.get(name)), 0)


def mamba_inner(text: Text) -> int:
    """Channels of a Mamba layer."""
    heads, hidden = mamba_heads(text), text.hidden_size
    expand = text.get("mamba_expand") or text.get("expand", 2)
    if not heads:
        plain = text.model_type in ("mamba", "falcon_mamba")
        return (text.get("intermediate_size") if plain else None) or expand * hidden
    names = ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
    width = next((text.get(name) for name in names if isinstance(text.get(name), int)), expand * hidden // heads)
    return text.get("mamba_d_ssm") or heads * width


def mamba_groups(text: Text) -> int:
    """Groups of heads of a Mamba-2 layer that share B and C."""
    return text.get("mamba_n_groups") or text.get("n_groups") or text.get("mamba_ngroups") or 1


def _delta_rule(text: Text, devices: int) -> tuple[int, int, tuple[int, ...]]:
    values, keys = text.linear_num_value_heads, text.linear_num_key_heads
    channels = 2 * text.linear_key_head_dim * keys + text.linear_value_head_dim * values
    heads = share(values, devices, "value heads of its linear layers")
    state = (heads, text.linear_value_head_dim, text.linear_key_head_dim)
    return text.linear_conv_kernel_dim, share(channels, devices), state


def _mamba1(text: Text, width: int, devices: int) -> tuple[int, tuple[int, ...]]:
    inner = share(mamba_inner(text), devices)
    return inner, (inner, width)


def _mamba2(text: Text, width: int, devices: int) -> tuple[int, tuple[int, ...]]:
    """B and C of each group of heads go through the convolution, too."""
    heads, inner, groups = mamba_heads(text), mamba_inner(text), mamba_groups(text)
    if groups % devices:
        groups = devices  # each device has a copy of the group that its heads belong to
    channels = share(inner + 2 * groups * width, devices)
    return channels, (share(heads, devices, "heads of its states"), inner // heads, width)


def _own_bytes(text: Text, element_bytes: int) -> int:
    """Of an element of the recurrent state."""
    wanted = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
    if wanted is None and text.model_type == "nemotron_h":
        wanted = "float32"  # the default of its config class
    return element_bytes if wanted in (None, "auto") else DTYPES[str(wanted).removeprefix("torch.")]
