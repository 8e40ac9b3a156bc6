"""Dummy steps and pools, made without a scheduler: for warm-up, for measurements, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from allocators.base import Allocator
from harness.runner.packing import Packed


def dummy_decode(lanes: int, length: int) -> Packed:
    """A dummy step of `lanes` decodes that all read row 0 and write to slot 0."""
    none, ids, slots = np.zeros(1, np.int32), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    lengths = np.full(lanes, length, np.int32)
    return Packed(ids, ids + length - 1, slots, lengths * 0, lengths, none, lanes, np.arange(lanes), [])


def dummy_prefill(prompts: list[int]) -> Packed:
    """A dummy step of prompts that all lie in row 0."""
    where = np.concatenate([np.arange(n) for n in prompts])
    starts = np.cumsum([0, *prompts]).astype(np.int32)
    lengths = np.array(prompts, np.int32)
    due = starts[1:].astype(np.int64) - 1
    return Packed(where * 0, where, where * 0, lengths * 0, lengths, starts, 0, due, [])


@contextmanager
def row_0_at_slot_0(allocator: Allocator) -> Iterator[None]:
    """A context in which row 0 of the tables points to slot 0, where dummy steps read; no sequence has a row yet."""
    before = [table[0].copy() for table in allocator.group_tables]
    for table in allocator.group_tables:
        table[0] = 0
    try:
        yield
    finally:
        for table, row in zip(allocator.group_tables, before, strict=True):
            table[0] = row


class DummyAllocator(Allocator):
    """An allocator that has given tables and places nothing: dummy steps use it.

    Args:
        tables: ``[rows, width]`` int32.
        block_size: slots in a block, 0 = a row holds the start of an extent.
    """

    def __init__(self, capacity: int, tables: np.ndarray, block_size: int = 0) -> None:
        self.block_size = block_size
        super().__init__(capacity, capacity)
        self.tables = tables

    @classmethod
    def extent(cls, capacity: int) -> DummyAllocator:
        """One extent from slot 0 in row 0."""
        return cls(capacity, np.zeros((64, 1), np.int32))

    @classmethod
    def scattered(cls, rows: int, tokens: int, block_size: int, seed: int = 1) -> DummyAllocator:
        """Room for `tokens` in each of `rows`, in blocks at random places."""
        width = -(-tokens // block_size)
        order = np.random.default_rng(seed).permutation(rows * width).astype(np.int32)
        return cls(rows * width * block_size, order.reshape(rows, width), block_size)

    def footprint(self, tokens: int) -> int | None:
        return None

    def place(self, holder: Any, tokens: int) -> int | None:
        return None

    def release(self, holder: Any) -> None: ...

    def spans(self, holder: Any) -> list[tuple[int, int]]:
        return []
