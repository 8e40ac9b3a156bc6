"""What is refused of a model by its config or its modules, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
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
    for served, said in _limits(model, max_model_len):
        if max_model_len > served:
            raise HarnessError(said)


def longest_served(model: Any) -> int | None:
    """The longest sequences that `refuse_lengths` lets through; None = any."""
    return min((served for served, _ in _limits(model, 0)), default=None)


def _limits(model: Any, max_model_len: int) -> Iterator[tuple[int, str]]:
    """The lengths that are served, each with what is said of longer ones."""
    config, positions = model.config.get_text_config(), positions_of(model.config)
    if positions is not None:
        yield positions, f"max_model_len={max_model_len}: model {config.model_type} has {positions} positions"
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
                served = _original_positions(module.config, layer_type)
                yield (
                    served,
                    (
                        f"model {config.model_type} ({type(module).__name__}): rope_type {kind} depends on the longest "
                        f"sequence of a batch beyond {served} positions, which is not modelled; set "
                        f"max_model_len={served} or less (it is {max_model_len})"
                    ),
                )


def refuse_kernels(model: Any, probed: Probed, backend: Backend) -> None:
    """Refuse what a model keeps in a shape that the Triton kernels are not made for.

    Raises:
        HarnessError: naming the shape, and kernels that serve it.
    """
    if backend.name != "triton" or probed.calls.most:
        return
    from kvlab_kernels.triton_widths import served, widths

    for layer, stored in probed.layers.items():
        (_, key), (_, value) = stored.pair
        if widths(key, value, bool(stored.rank)) is None:
            what = f"a latent of {value} + {key - value}" if stored.rank else f"keys of {key} and values of {value}"
            raise HarnessError(f"model {model.config.model_type}, layer {layer} keeps {what}; the Triton kernels have "
                               f"{served()}; device.kernels=torch has any")  # fmt: skip


def _original_positions(config: Any, layer_type: str | None) -> int:
    """The length up to which a rope that changes with it does not change."""
    parameters = config.rope_parameters
    if layer_type is not None:
        parameters = parameters[layer_type]
    if "dynamic" in parameters.get("rope_type", ""):
        return config.max_position_embeddings
    return parameters.get("original_max_position_embeddings") or config.max_position_embeddings
