"""The KV pool of a real device: tensors made for what the layers of a model store."""

from __future__ import annotations

from itertools import groupby

import torch

from harness.errors import HarnessError
from harness.runner.probe import Probed
from harness.runner.states import StatePool

Shape = tuple[int, int]  # heads and width


class KVPool:
    """Slots for tokens, in as few tensors as there are kinds of layers.

    Args:
        probed: what each layer stores of a token.
        slots: how many, the scratch slot behind the capacity included.

    Attributes:
        buffers: each ``[L, planes, slots, heads, width]``: keys and values of alike layers in two planes, or, where the
            two differ in shape, keys in one buffer and values in another; of latents one plane.
        layers: of each layer, its keys ``[slots, Hkv, D]`` and values ``[slots, Hkv, Dv]``.
        states: of recurrent layers, by sequence.

    Raises:
        HarnessError: there is no memory for it.
    """

    def __init__(self, probed: Probed, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.states = StatePool(probed.calls.mixers, device)
        self.buffers: list[torch.Tensor] = []
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def shapes(layer: int) -> tuple[Shape, Shape, int]:
            return (*probed.layers[layer].pair, probed.layers[layer].rank)

        def buffer(layers: list[int], planes: int, shape: Shape) -> torch.Tensor:
            made = torch.zeros((len(layers), planes, slots, *shape), dtype=dtype, device=device)
            self.buffers.append(made)
            return made

        try:
            for (key, value, rank), alike in groupby(sorted(probed.layers, key=shapes), key=shapes):
                layers = list(alike)
                if rank:
                    latents = buffer(layers, 1, key)
                    planes = [(latents[i, 0], latents[i, 0, :, :, :rank]) for i in range(len(layers))]
                elif key == value:
                    both = buffer(layers, 2, key)
                    planes = [(both[i, 0], both[i, 1]) for i in range(len(layers))]
                else:
                    keys, values = buffer(layers, 1, key), buffer(layers, 1, value)
                    planes = [(keys[i, 0], values[i, 0]) for i in range(len(layers))]
                self.layers |= dict(zip(layers, planes, strict=True))
        except RuntimeError as error:
            raise HarnessError(f"a KV pool of {slots - 1} slots does not fit the device: {error}") from error
