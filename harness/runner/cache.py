"""The cache that a model is called with: it says of which layer keys are, and where a packed row stands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache

from harness.errors import HarnessError
from harness.runner.attention import label

NAMES = ("cache", "past_key_values", "cache_params")  # of the argument, as versions and models call it
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, Cache], torch.Tensor]


class PackedCache(Cache):
    """Of a row that holds tokens of many sequences. It stores nothing: attention does, and a row has no past.

    Args:
        positions: ``[T]`` int64, where each token of the row stands in its sequence.
    """

    def __init__(self, positions: torch.Tensor) -> None:
        super().__init__(layers=[])
        self.positions = positions

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        label(key_states, layer_idx)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """Asked without a layer: what lies before the row, nothing. Asked by a layer: what lies before each token.

        That layer adds its place in the row to it (Llama 4 scales queries by the logarithm of their position).
        """
        if layer_idx is None:
            return 0
        return self.positions - torch.arange(len(self.positions), device=self.positions.device)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return False


def forward_of(model: Any) -> Forward:
    """A function (ids ``[T]``, positions ``[T]``, due ``[n]`` or None, cache) -> logits ``[n or T, vocabulary]``.

    It calls `model` on one row, by the names that its arguments have.

    Raises:
        HarnessError: the model takes no cache.
    """
    known = inspect.signature(model.forward).parameters
    name = next((name for name in NAMES if name in known), None)
    if name is None:
        raise HarnessError(f"model {model.config.model_type}: {type(model).__name__} takes no KV cache, so none can be "
                           "placed")  # fmt: skip
    some = "logits_to_keep" in known

    def forward(ids: torch.Tensor, positions: torch.Tensor, due: torch.Tensor | None, cache: Cache) -> torch.Tensor:
        asked = {name: cache, "logits_to_keep": due} if some and due is not None else {name: cache}
        logits = model(input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=True, **asked).logits[
            0
        ]
        return logits if some or due is None else logits[due]

    return forward
