"""What attention reads of a sequence: the tokens that each group of layers keeps, and what a pair of tokens costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from allocators.layout import Kept, KVLayout
from allocators.ledger import behind
from harness.layout.layers import Text
from harness.layout.mixers import pair_flops


class Reads(NamedTuple):
    """Of the layers that keep the same tokens.

    Attributes:
        kept: which tokens those are.
        token_bytes: of one token in all of them, on all devices.
        pair_flops, prompt_flops: of one token that one query sees, in a decode and in a prompt.
    """

    kept: Kept
    token_bytes: int
    pair_flops: int
    prompt_flops: int


def reads_of(layout: KVLayout, text: Text) -> list[Reads]:
    """By what is kept, in the order of `layout.kept`."""
    found = list[Reads]()
    for kept, groups in zip(layout.kept, layout.alike(), strict=True):
        layers = sum([len(group.layers) for group in groups if group.kind != "state"])
        size = sum([len(group.layers) * group.token_bytes for group in groups])
        flops = [layers * pair_flops(text, compressed) if layers else 0 for compressed in (True, False)]
        found.append(Reads(kept, layout.devices * size, *flops))
    return found


def seen_of(kept: Kept, stored: np.ndarray) -> np.ndarray:
    """How many tokens the last of `stored` sees, itself included."""
    return stored - behind(kept, stored - 1)
