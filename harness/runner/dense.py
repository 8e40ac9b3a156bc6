"""Models with an attention of their own (BLOOM, MPT, Falcon): it runs over the contexts of a row, with a block mask.

Such a model computes scores by itself, with biases that only it knows (ALiBi). Its cache then hands it the keys of all
sequences of a row, one behind the other, and its mask hides those of others: a bias by distance differs from the one of
the sequence alone by a constant for each query, which the softmax does not see. That is slow: T x contexts of work for
T tokens, and a copy of all contexts in each layer. A row takes as many sequences as the model has positions for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from kvlab_kernels.dispatch import Backend

from harness.runner.attention import CURRENT, handling
from harness.runner.cache import Forward, PackedCache
from harness.runner.packing import slots_of

OWN = "eager"  # how `transformers` calls the attention that stands in a model's file
MOST = 2048  # tokens of context in a row of a model that sets no limit to positions
_ITS_MASK: Callable[..., Any] = transformers.AttentionMaskInterface()[OWN]


@dataclass(slots=True)
class Row:
    """Sequences that are computed together: some consecutive ones of a packed row.

    Attributes:
        tokens: their tokens in the packed row.
        contexts: ``[C]`` int64, slots of everything that they have stored.
        sequence, position: ``[C]``, of which each context token is, and where it stands in it.
        own: ``[T]`` int64, which of the context tokens are those of the row.
    """

    tokens: slice
    contexts: torch.Tensor
    sequence: torch.Tensor
    position: torch.Tensor
    own: torch.Tensor

    def attention(self, *args: Any) -> torch.Tensor:
        raise RuntimeError("a model with its own attention uses ours")

    def mixer(self, *args: Any) -> None:
        return None

    def mask(self, sees: Callable[..., torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """``[1, 1, T, C]``: 0 where a token sees one of its own sequence, the lowest number elsewhere."""
        own = self.own[:, None]
        seen = sees(0, 0, self.position[own], self.position[None, :]) & (self.sequence[own] == self.sequence[None, :])
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)[
            None, None
        ]


def rows_of(tables: np.ndarray, block_size: int, rows: np.ndarray, lengths: np.ndarray, counts: np.ndarray, most: int,
            device: torch.device) -> Iterator[Row]:  # fmt: skip
    """The sequences of a step, in order, in as few rows as hold no more than `most` tokens of context each.

    Args:
        rows, lengths, counts: of each sequence, its row of the tables, tokens stored, and how many of them are new.
    """
    at = token = 0
    while at < len(rows):
        end, total = at + 1, int(lengths[at])
        while end < len(rows) and total + lengths[end] <= most:
            total += int(lengths[end])
            end += 1
        sizes, new = lengths[at:end], counts[at:end]
        position = np.concatenate([np.arange(size) for size in sizes])
        sequence = np.repeat(np.arange(end - at), sizes)
        contexts = slots_of(tables, block_size, np.repeat(rows[at:end], sizes), position)
        own = np.concatenate([np.arange(last - count, last) for last, count in zip(sizes.cumsum(), new, strict=True)])
        tensors = (torch.from_numpy(array).to(device) for array in (contexts, sequence, position, own))
        yield Row(slice(token, token + int(new.sum())), *tensors)
        at, token = end, token + int(new.sum())


class DenseCache(PackedCache):
    """Of one row: stores what is new in the pool and hands out all contexts."""

    def __init__(self, row: Row, positions: torch.Tensor, slots: torch.Tensor, backend: Backend,
                 pools: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:  # fmt: skip
        super().__init__(positions)
        self.row, self.slots, self.backend, self.pools = row, slots, backend, pools

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        pools = self.pools[layer_idx]
        new = [x[0].transpose(0, 1).contiguous() for x in (key_states, value_states)]
        self.backend.write_kv(*pools, *new, self.slots)
        own = self.row.own
        found = []
        for pool, mine in zip(pools, new, strict=True):
            contexts = pool[self.row.contexts]
            contexts[own] = mine  # an idle lane stores nothing, and sees itself all the same
            found.append(contexts.transpose(0, 1)[None])
        return found[0], found[1]

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        return len(self.row.contexts) - len(self.slots)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return len(self.row.contexts) - len(self.slots)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return len(self.row.contexts), 0


def through(forward: Forward, rows: list[Row], ids: torch.Tensor, positions: torch.Tensor, due: torch.Tensor,
            context: Any) -> torch.Tensor:  # fmt: skip
    """``[n, vocabulary]``: the logits that are due, row after row."""
    said = []
    for row in rows:
        where = positions[row.tokens]
        cache = DenseCache(row, where, context.slots[row.tokens], context.backend, context.pools)
        with handling(row):
            said.append(forward(ids[row.tokens], where, None, cache))
    return torch.cat(said)[due]


def _mask(*args: Any, **kwargs: Any) -> Any:
    row = CURRENT.get()
    if isinstance(row, Row):
        return row.mask(kwargs["mask_function"], kwargs["dtype"])
    return _ITS_MASK(*args, **kwargs)


transformers.AttentionMaskInterface.register(OWN, _mask)


def refuses(model: Any) -> str | None:
    """What of a model's own attention no block mask tells apart; None = nothing that can be seen."""
    for name, buffer in model.named_buffers():
        if buffer.dim() >= 2 and buffer.shape[-1] == buffer.shape[-2] > 1 and not buffer.is_floating_point():
            return f"cuts a mask of its own from {name}"
    return None
