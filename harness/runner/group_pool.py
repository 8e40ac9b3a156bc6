"""A pool whose groups of layers lie apart, as allocators that know layouts place them: an arena, tables by group.

A block of a group holds a page for each of its layers, one behind the other: the keys of its tokens, then their values.
Kernels know slots in rows, so a page is a few kernel blocks: a view of the arena that begins at a layer's first key
makes slots of its rows, and one that begins at its first value makes the same slots the rows of its values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from kvlab_kernels.addresses import Addresses

from allocators.base import Allocator, Move
from harness.errors import HarnessError
from harness.runner.attention import Place
from harness.runner.packing import Packed
from harness.runner.probe import Probed, Stored
from harness.runner.states import StatePool


class _Group(NamedTuple):
    """How tables of a group become those of kernels.

    Attributes:
        table: which of the allocator's.
        block_size: tokens in a block of the allocator.
        kernel_block: tokens in a block of the kernels; a power of two.
        step: kernel blocks from one block to the next.
        layers: of the model.
    """

    table: int
    block_size: int
    kernel_block: int
    step: int
    layers: tuple[int, ...]


class GroupPool:
    """Memory for an allocator with a table for each group.

    Args:
        probed: what each layer stores of a token.
        allocator: which says what groups there are, and where their blocks lie.
        unit_bytes: of what it counts in.

    Attributes:
        layers: of each layer, its keys and values by the slots of its group.
        states: of recurrent layers, by sequence. They lie beside the arena, whose blocks for them stay empty.

    Raises:
        HarnessError: places that kernels can't address, or no memory for the arena.
    """

    def __init__(self, probed: Probed, allocator: Allocator, unit_bytes: int, dtype: torch.dtype,
                 device: torch.device) -> None:  # fmt: skip
        self.allocator, self.device = allocator, device
        self.states = StatePool(probed.calls.mixers, device)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.groups: list[_Group] = []
        self.item = dtype.itemsize
        self.unit_bytes = unit_bytes
        try:
            self.arena = torch.zeros(allocator.capacity * unit_bytes // self.item, dtype=dtype, device=device)
        except RuntimeError as error:
            raise HarnessError(f"a KV pool of {allocator.capacity * unit_bytes:,} bytes does not fit the device: "
                               f"{error}") from error  # fmt: skip
        for table, (grid, kept) in enumerate(zip(allocator.grids, allocator.kept, strict=True)):
            numbers = allocator.group_layers[table]
            if kept.state_units:
                continue
            origin, stride = (units * unit_bytes // self.item for units in (grid.origin, grid.stride))
            shapes = {probed.layers[number] for number in numbers}
            if len(shapes) > 1 or not grid.block_size or grid.ring:
                raise HarnessError(f"{type(allocator).__name__} places layers in a way that kernels can't address")
            kernel_block, step = self._blocks(shapes.pop(), grid.block_size, stride)
            for number in numbers:
                stored = probed.layers[number]
                self.layers[number] = self._views(stored, origin, grid.block_size)
                origin += grid.block_size * stored.elements
            self.groups.append(_Group(table, grid.block_size, kernel_block, step, tuple(numbers)))

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [self.arena]

    def places(self, packed: Packed) -> dict[int, Place]:
        """By layer: where the tokens of a step lie. Tokens of lanes without a sequence (slot -1) are not stored."""
        found, lanes = dict[int, Place](), packed.lanes
        counts = np.concatenate([np.ones(lanes, np.int64), np.diff(packed.query_starts)])
        which = np.repeat(np.arange(len(counts)), counts)
        for group in self.groups:
            inside = np.arange(group.block_size // group.kernel_block)
            blocks = np.maximum(self.allocator.group_tables[group.table][packed.rows], 0)
            wide = (blocks[:, :, None] * group.step + inside).reshape(len(blocks), -1).astype(np.int32)
            slots = wide[which, packed.positions // group.kernel_block].astype(np.int64) * group.kernel_block
            slots = np.where(packed.slots < 0, -1, slots + packed.positions % group.kernel_block)
            rows = np.arange(len(counts), dtype=np.int32)
            tables, where, lengths = (torch.from_numpy(x).to(self.device) for x in (wide, rows, packed.lengths))
            ends = [Addresses(tables, where[a:b], lengths[a:b], group.kernel_block) if b > a else None
                    for a, b in pairwise((0, lanes, len(counts)))]  # fmt: skip
            place = Place(torch.from_numpy(slots).to(self.device), *ends)
            found |= dict.fromkeys(group.layers, place)
        return found

    def move(self, moves: list[Move]) -> None:
        """Carry out copies of blocks."""
        for move in moves:
            if move.kind != "copy":
                raise HarnessError("swapping is not modelled where groups of layers lie apart")
            source, target, length = (x * self.unit_bytes // self.item for x in (move.source, move.target, move.length))
            self.arena[target : target + length] = self.arena[source : source + length].clone()

    def _blocks(self, stored: Stored, block_size: int, stride: int) -> tuple[int, int]:
        """Tokens of a kernel block, and how many there are from one block of the allocator to the next."""
        (heads, width), (value_heads, value_width) = stored.pair
        if not stored.rank and heads * width != value_heads * value_width:
            raise HarnessError("K and V of unequal widths, in layers that lie apart, are not modelled")
        size = block_size & -block_size  # the largest power of two in it
        while size > 1 and stride % (size * heads * width):
            size //= 2
        if stride % (size * heads * width):
            raise HarnessError(f"blocks of {stride} numbers, where a token of a layer takes {heads * width}, can't be "
                               "addressed by kernels")  # fmt: skip
        return size, stride // (size * heads * width)

    def _views(self, stored: Stored, origin: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        (heads, width), (value_heads, value_width) = stored.pair
        keys = _rows(self.arena[origin:], heads, width)
        if stored.rank:
            return keys, keys[:, :, : stored.rank]
        return keys, _rows(self.arena[origin + block_size * heads * width :], value_heads, value_width)


def _rows(arena: torch.Tensor, heads: int, width: int) -> torch.Tensor:
    return arena[: len(arena) // (heads * width) * heads * width].view(-1, heads, width)
