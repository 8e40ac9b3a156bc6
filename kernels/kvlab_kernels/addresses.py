"""Where the KV of a batch lies: the one description that every kernel takes, for blocks and for extents."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Addresses(NamedTuple):
    """Slots of the sequences of a batch.

    Token ``t`` of sequence ``i`` lies in slot ``tables[rows[i], t // block_size] * block_size + t % block_size`` of a
    paged pool, or in slot ``tables[rows[i], 0] + t`` when ``block_size`` is 0 (an extent is a start offset). Nothing
    else differs between the two, so a kernel that takes both measures the cost of placement alone.

    Attributes:
        tables: ``[R, W]`` int32, the allocator's persistent rows.
        rows: ``[B]`` int32, the row of each sequence.
        lengths: ``[B]`` int32, tokens of context of each sequence, the tokens of this step included.
        block_size: slots in a block (a power of two), or 0 for extents.
    """

    tables: torch.Tensor
    rows: torch.Tensor
    lengths: torch.Tensor
    block_size: int
