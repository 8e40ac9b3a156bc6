"""The tensors that recurrent layers keep of a sequence, by family, in the shapes that engines store."""

from __future__ import annotations

from allocators.layout import State
from harness.errors import HarnessError
from harness.layout.layers import Text

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}


def states_of(text: Text, element_bytes: int, devices: int = 1) -> tuple[State, ...]:
    """Of one layer on one device: the last inputs of its convolution, then its recurrent state.

    The convolution keeps one input less than its kernel is long, in the model's dtype; the state has a dtype of its own
    where the config says so.

    Raises:
        HarnessError: a family whose states are not known, or heads that the devices can't share.
    """
    wanted = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
    if wanted is None and text.model_type == "nemotron_h":
        wanted = "float32"  # the default of its config class
    own = element_bytes if wanted in (None, "auto") else DTYPES[str(wanted).removeprefix("torch.")]
    if text.get("linear_num_value_heads"):  # gated delta rule: Qwen3-Next, Qwen3.5, Olmo-Hybrid
        values, keys = text.linear_num_value_heads, text.linear_num_key_heads
        channels = 2 * text.linear_key_head_dim * keys + text.linear_value_head_dim * values
        heads = _part(values, devices, "value heads of its linear layers")
        state = (heads, text.linear_value_head_dim, text.linear_key_head_dim)
        return _both(text.linear_conv_kernel_dim, _part(channels, devices), element_bytes, state, own)
    if text.get("conv_L_cache"):  # short convolution: LFM2
        width = _part(text.get("conv_dim") or text.hidden_size, devices)
        return (State((text.conv_L_cache - 1, width), element_bytes),)
    kernel = text.get("mamba_d_conv") or text.get("conv_kernel")
    width = text.get("mamba_d_state") or text.get("ssm_state_size") or text.get("state_size")
    heads = text.get("mamba_n_heads") or text.get("mamba_num_heads") or (
        text.get("num_heads") if text.model_type == "mamba2" else None
    ) or (text.get("n_mamba_heads") if text.model_type == "zamba2" else None)
    if not kernel or not width:
        raise HarnessError(f"model_type={text.model_type}: what its recurrent layers keep is not known")
    if heads:
        return _mamba2(text, kernel, width, heads, element_bytes, own, devices)
    inner = text.get("intermediate_size") if text.model_type in ("mamba", "falcon_mamba") else None
    inner = inner or text.get("mamba_expand", text.get("expand", 2)) * text.hidden_size
    inner = _part(inner, devices)
    return _both(kernel, inner, element_bytes, (inner, width), own)


def _mamba2(text: Text, kernel: int, width: int, heads: int, element_bytes: int, own: int,
            devices: int) -> tuple[State, ...]:  # fmt: skip
    """Heads of one width; B and C of each group of them go through the convolution, too."""
    head = text.get("mamba_d_head") or text.get("mamba_head_dim") or text.get("mamba_headdim") or text.get("head_dim")
    if not isinstance(head, int):
        expand = text.get("mamba_expand", text.get("expand", 2))
        head = expand * text.hidden_size // heads
    groups = text.get("mamba_n_groups") or text.get("n_groups") or text.get("mamba_ngroups") or 1
    if groups % devices:
        groups = devices  # each device has a copy of the group that its heads belong to
    inner = text.get("mamba_d_ssm") or heads * head
    channels = _part(inner + 2 * groups * width, devices)
    return _both(kernel, channels, element_bytes, (_part(heads, devices, "heads of its states"), head, width), own)


def _both(kernel: int, channels: int, element_bytes: int, state: tuple[int, ...], own: int) -> tuple[State, ...]:
    return State((kernel - 1, channels), element_bytes), State(state, own)


def _part(size: int, devices: int, what: str = "channels of its recurrent layers") -> int:
    from harness.layout import HEADS

    if size % devices:
        raise HarnessError(HEADS.format(devices=devices, heads=size, what=what))
    return size // devices
