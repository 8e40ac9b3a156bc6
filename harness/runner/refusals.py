"""What is refused of a model by its config or its modules, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.runner.model import positions_of

if TYPE_CHECKING:
    from kvlab_kernels.dispatch import Backend

    from harness.runner.probe import Probed


def refuse_tokens(config: Any) -> None:
    """Refuse a pad token that no vocabulary holds: the embedding can't be built.

    Raises:
        HarnessError: naming the key, the token and the vocabulary.
    """
    text = config.get_text_config()
    pad, size = getattr(text, "pad_token_id", None), text.vocab_size
    if pad is not None and not -size <= pad < size:
        raise HarnessError(
            f"model {text.model_type}: pad_token_id = {pad} lies outside the vocabulary of {size} tokens; set "
            "model.config.pad_token_id to a token of it, or to null"
        )


def refuse_lengths(model: Any, max_model_len: int) -> None:
    """Refuse sequences longer than a model has positions, or than its rope is the same for all tokens of a row.

    LongRoPE and dynamic NTK choose their frequencies by the largest position in the whole row, so one long sequence
    would change what all others say; and what was stored before a sequence crosses that length would have to be
    computed again.

    Raises:
        HarnessError: naming the model and the length that is served.
    """
    config, positions = model.config.get_text_config(), positions_of(model.config)
    if positions is not None and max_model_len > positions:
        raise HarnessError(f"max_model_len={max_model_len}: model {config.model_type} has {positions} positions")
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if not isinstance(kind, str) or not ("dynamic" in kind or kind == "longrope"):
                continue
            served = _original_positions(module.config, layer_type)
            if max_model_len > served:
                raise HarnessError(
                    f"model {config.model_type} ({type(module).__name__}): rope_type {kind} depends on the longest "
                    f"sequence of a batch beyond {served} positions, which is not modelled; set "
                    f"max_model_len={served} or less (it is {max_model_len})"
                )


def refuse_kernels(model: Any, probed: Probed, backend: Backend) -> None:
    """Refuse what a model keeps in a shape that the Triton kernels are not made for.

    Raises:
        HarnessError: naming the shape, and kernels that serve it.
    """
    if backend.name != "triton" or probed.calls.most:
        return
    from kvlab_kernels.triton_decode import HEAD_DIMS

    for layer, stored in probed.layers.items():
        what = None
        if stored.key != stored.value:
            what = "latents" if stored.rank else "K and V of unequal widths"
        elif stored.key[1] not in HEAD_DIMS:
            what = f"heads of width {stored.key[1]} (there are {', '.join(map(str, HEAD_DIMS))})"
        if what:
            raise HarnessError(f"model {model.config.model_type}, layer {layer}: the Triton kernels have no {what}; "
                               "device.kernels=torch has them")  # fmt: skip


def _original_positions(config: Any, layer_type: str | None) -> int:
    """The length up to which a rope that changes with it does not change."""
    parameters = config.rope_parameters
    if layer_type is not None:
        parameters = parameters[layer_type]
    if "dynamic" in parameters.get("rope_type", ""):
        return config.max_position_embeddings
    return parameters.get("original_max_position_embeddings") or config.max_position_embeddings
