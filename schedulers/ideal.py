"""The bound: continuous batching by a scheduler that knows how long every answer will be.

With `Paged(block_size=1)`, which rounds nothing, it says what first come, first served could reach at best on a given
pool and device: no slot is held before it is written, none is kept back, and no token is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from schedulers.continuous import Continuous
from schedulers.quiet import Quiet
from schedulers.request import Batch, Sequence


def peak(lanes: Iterable[tuple[int, int]], unit: int = 1) -> int:
    """The most slots that sequences will ever hold together if each stores one more token a step and nobody joins.

    What they hold only grows between two ends, so it is enough to look at each end: there, those that last at least as
    long are all that is left (the rule of LightLLM's past-future scheduler, arXiv 2507.10150, with true lengths).

    Args:
        lanes: (tokens still to be stored, tokens stored) of each sequence.
        unit: slots in a block; what a sequence holds is rounded up to whole ones.
    """
    most = stored = 0
    order = sorted(lanes, reverse=True)
    if unit > 1 and order:
        left, now = np.array(order).T
        held = -(-(now + left[:, None]) // unit) * unit  # of each lane at each end
        return int(np.tril(held).sum(axis=1).max())
    for count, (rest, here) in enumerate(order, 1):
        stored += here
        most = max(most, stored + rest * count)
    return most


class Ideal(Continuous):
    """Admits the head of the queue as soon as all that runs, and the head, will fit until each of them ends.

    So it never preempts while a step has room for a token of every sequence, and needs no watermark. A sequence that is
    out of step (a prompt computed in pieces) is counted with its final length from the start.
    """

    supports_groups = False

    def __init__(self, *args: Any, watermark: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, watermark=watermark, **kwargs)
        if not self.allocator.by_slot:
            raise ValueError(
                f"{type(self).__name__} foresees a slot for each token, and here layers lie apart: use "
                "scheduler=guaranteed_no_evict, continuous or vllm_v1"
            )
        self.unit = self.allocator.block_size or 1
        self.room = self.allocator.capacity

    def shortfall(self, seq: Sequence, budget: int) -> int:
        """By how much the pool is too small for the most that `seq` and all that run will hold together."""
        lanes, ends = [*self.running, seq], self.ends([*self.running, seq])
        in_step = [lane.stored == lane.num_tokens for lane in self.running] + [seq.num_tokens <= budget]
        pool = self.allocator
        shared = [pool.shared(lane)[0] for lane in self.running] if pool.shares else [0] * len(self.running)
        own = sum(lane.held - common for lane, common in zip(self.running, shared, strict=True))
        common = pool.capacity - pool.unheld - own  # held by several, counted once and until all are over
        most = common + max(self._peak(lanes, end, in_step, [*shared, 0]) for end in ends)
        return max(most - self.room, 0)

    def ends(self, seqs: list[Sequence]) -> list[list[int]]:
        """Prompt and output tokens with which each of `seqs` will be finished; a list for each future thought of."""
        return [[seq.end_tokens for seq in seqs]]

    def _peak(self, lanes: list[Sequence], ends: list[int], in_step: list[bool], shared: list[int]) -> int:
        """A lane out of step waits for room in a step, and may reach its end whenever others reach theirs."""
        moving, pinned = list[tuple[int, int]](), list[tuple[int, int]]()
        for seq, end, moves, common in zip(lanes, ends, in_step, shared, strict=True):
            if moves:
                moving.append((end - 1 - seq.num_tokens, seq.num_tokens - common))
            else:
                pinned.append((0, end - 1 - common))
        return peak(moving, self.unit) + peak(pinned, self.unit)

    def quiet(self, batch: Batch) -> Quiet | None:
        """A head that was refused may fit a step later, though nobody has finished."""
        asked_again = self.waiting and len(self.running) < self.max_num_seqs
        return None if asked_again else super().quiet(batch)
