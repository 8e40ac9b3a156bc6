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
        buffers: each ``[L, planes, S, heads, width]``, what the pool consists of.
        host_slots: slots of the host pool; pinned memory beside a GPU.
        backend: the kernels.
    """

    def __init__(self, buffers: list[torch.Tensor], host_slots: int, backend: Backend) -> None:
        self.buffers, self.backend = buffers, backend
        try:
            self.host = [_on_host(buffer, host_slots) for buffer in buffers]
        except RuntimeError as error:
            raise HarnessError(f"allocator.host_slots={host_slots} do not fit the host's memory: {error}") from error

    def run(self, moves: list[Move]) -> None:
        """As if one after the other; those that do not touch what the ones before them wrote go together."""
        if not self.buffers:  # no layer stores tokens
            return
        for kind, alike in groupby(moves, key=attrgetter("kind")):
            for sources, targets in _together(list(alike)):
                here, there = self._on_device(sources), self._on_device(targets)
                for kv, host in zip(self.buffers, self.host, strict=True):
                    if kind == "copy":
                        self.backend.move_slots(kv, here, there)
                    elif kind == "out":
                        self.backend.swap_out(kv, host, here, there)
                    else:
                        self.backend.swap_in(kv, host, there, here)

    def _on_device(self, slots: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(slots).to(self.buffers[0].device)


def _on_host(buffer: torch.Tensor, slots: int) -> torch.Tensor:
    """As many slots of the same kind in the host's memory, pinned beside a GPU."""
    layers, planes, _, heads, width = buffer.shape
    return torch.empty((layers, planes, slots, heads, width), dtype=buffer.dtype, pin_memory=buffer.is_cuda)


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
