"""CUDA graphs of decode steps: captured once for each padded batch size, replayed with one upload and one launch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch

from harness.runner.packing import Packed

# (ids, positions, slots) [lanes] int64 and (rows, lengths) [lanes] int32 -> logits [lanes, vocabulary]
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Capture = Callable[[Callable[[], torch.Tensor]], tuple[Callable[[], object], torch.Tensor]]


def padded_sizes(max_lanes: int) -> list[int]:
    """Batch sizes to capture: close together where a step is cheap and padding would show."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 4097, 64)]
    return sizes[: bisect_left(sizes, max_lanes) + 1]


class DecodeGraphs:
    """Decode steps over static buffers. Lanes that only pad have length 0 and write to the scratch slot.

    Args:
        forward: computes logits from the buffers' first lanes; must not ask the device for anything.
        sizes: padded batch sizes, ascending.
        scratch: the slot that padding lanes write to.
        device: where the buffers lie.
        capture: records a computation; gives what replays it and where its result lies.
    """

    def __init__(self, forward: Forward, sizes: list[int], scratch: int, device: torch.device,
                 capture: Capture | None = None) -> None:  # fmt: skip
        self.sizes = sizes
        self.scratch = scratch
        pinned = device.type == "cuda"
        self._host_long = torch.zeros(3, sizes[-1], dtype=torch.int64, pin_memory=pinned)
        self._host_int = torch.zeros(2, sizes[-1], dtype=torch.int32, pin_memory=pinned)
        self._long, self._int = self._host_long.to(device), self._host_int.to(device)
        self._replays: dict[int, tuple[Callable[[], object], torch.Tensor]] = {}
        record = capture or _Capturer()
        for size in reversed(sizes):  # the largest first, so that the others fit into its memory
            self._stage(size, None)
            buffers = (*(row[:size] for row in self._long), *(row[:size] for row in self._int))
            self._replays[size] = record(lambda buffers=buffers: forward(*buffers))  # type: ignore[misc]

    def takes(self, packed: Packed) -> bool:
        """Whether a step is decodes only and not larger than the largest graph."""
        return len(packed.query_starts) == 1 and packed.lanes <= self.sizes[-1]

    def run(self, packed: Packed) -> torch.Tensor:
        """``[lanes, vocabulary]``: logits of every lane; overwritten by the next run."""
        size = self.sizes[bisect_left(self.sizes, packed.lanes)]
        self._stage(size, packed)
        replay, logits = self._replays[size]
        replay()
        return logits[: packed.lanes]

    def _stage(self, size: int, packed: Packed | None) -> None:
        """Write a step into the first `size` lanes of the buffers, in two uploads."""
        longs, ints = self._host_long.numpy(), self._host_int.numpy()
        lanes = packed.lanes if packed else 0
        if packed:
            longs[:, :lanes] = np.stack([packed.ids, packed.positions, packed.slots])
            ints[:, :lanes] = np.stack([packed.rows, packed.lengths])
        longs[:2, lanes:size] = 0
        longs[2, lanes:size] = self.scratch
        ints[:, lanes:size] = 0
        self._long[:, :size].copy_(self._host_long[:, :size], non_blocking=True)
        self._int[:, :size].copy_(self._host_int[:, :size], non_blocking=True)


class _Capturer:
    """Captures CUDA graphs that share one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels and fills caches, which a capture may not do
            compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        return graph.replay, result
