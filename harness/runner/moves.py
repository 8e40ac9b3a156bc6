"""Carries out the moves of a step: copies within the pool, and swaps to and from a host pool."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

import numpy as np
import torch
from kvlab_kernels.dispatch import Backend

from allocators.base import Move
from harness.errors import HarnessError


class Moves:
    """The moves of one pool, and its host pool.

    Args:
        kv: ``[L, 2, S, Hkv, D]``, the pool.
        host_slots: slots of the host pool; pinned memory beside a GPU.
        backend: the kernels.
    """

    def __init__(self, kv: torch.Tensor, host_slots: int, backend: Backend) -> None:
        self.kv, self.backend = kv, backend
        layers, planes, _, heads, width = kv.shape
        size = (layers, planes, host_slots, heads, width)
        try:
            self.host = torch.empty(size, dtype=kv.dtype, pin_memory=kv.is_cuda)
        except RuntimeError as error:
            raise HarnessError(f"allocator.host_slots={host_slots} do not fit the host's memory: {error}") from error

    def run(self, moves: list[Move]) -> None:
        """As if one after the other; those that do not touch what the ones before them wrote go together."""
        for kind, alike in groupby(moves, key=attrgetter("kind")):
            for sources, targets in _together(list(alike)):
                here, there = self._on_device(sources), self._on_device(targets)
                if kind == "copy":
                    self.backend.move_slots(self.kv, here, there)
                elif kind == "out":
                    self.backend.swap_out(self.kv, self.host, here, there)
                else:
                    self.backend.swap_in(self.kv, self.host, there, here)

    def _on_device(self, slots: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(slots).to(self.kv.device)


def _together(moves: list[Move]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(sources, targets) ``[N]`` int64 of runs of moves whose result is the same if all sources are read first."""
    runs: list[tuple[np.ndarray, np.ndarray]] = []
    sources, targets, written = list[np.ndarray](), list[np.ndarray](), set[int]()
    for move in moves:
        source = np.arange(move.source, move.source + move.length)
        target = np.arange(move.target, move.target + move.length)
        if not written.isdisjoint([*source.tolist(), *target.tolist()]):
            runs.append((np.concatenate(sources), np.concatenate(targets)))
            sources, targets, written = [], [], set()
        sources.append(source)
        targets.append(target)
        written.update(target.tolist())
    return [*runs, (np.concatenate(sources), np.concatenate(targets))]
