"""The states of recurrent layers on a real device: a row for each sequence, and who has which."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import torch

from harness.errors import HarnessError
from harness.runner.recurrent import Mixer
from schedulers.request import Batch, Sequence


class StatePool:
    """Rows of states, as many as are asked for.

    Attributes:
        pools: of each mixer, its states ``[rows, …]``.
    """

    def __init__(self, mixers: Items[Mixer], device: torch.device, fill: float = 0.0) -> None:
        self.fill = fill
        self.pools = [[torch.empty((0, *state.shape), dtype=state.dtype, device=device) for state in mixer.states]
                      for mixer in mixers]  # fmt: skip

    @property
    def rows(self) -> int:
        return len(self.pools[0][0]) if self.pools else 0

    def reserve(self, rows: int) -> None:
        """Have at least so many rows; what is in those that there are stays."""
        if rows > self.rows:
            rows = max(rows, 2 * self.rows)
            self.pools = [[_longer(states, rows, self.fill) for states in pool] for pool in self.pools]

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """As if all were read before any is written."""
        for states in (states for pool in self.pools for states in pool):
            states[targets] = states[sources]

    def take(self, row: int) -> list[torch.Tensor]:
        """The states of a row, in main memory."""
        return [states[row].clone().cpu() for pool in self.pools for states in pool]

    def put(self, row: int, held: list[torch.Tensor]) -> None:
        """Bring back what `take` took."""
        for states, one in zip((states for pool in self.pools for states in pool), held, strict=True):
            states[row] = one.to(states.device)


def _longer(states: torch.Tensor, rows: int, fill: float) -> torch.Tensor:
    longer = states.new_full((rows, *states.shape[1:]), fill)
    longer[: len(states)] = states
    return longer


class _Point(NamedTuple):
    """After which tokens of its group's prompt and of its own answer the state of a member is."""

    stored: int
    outputs: tuple[int, ...]


class StateRows:
    """Which row of a pool holds the state of which sequence.

    Rows are taken when a sequence begins and given back when it has lost its memory or ended; of a swapped sequence the
    states go to main memory. Members of a group fork between steps: who has no state after the tokens that it stores
    takes that of a member which has.
    """

    def __init__(self, pool: StatePool) -> None:
        self.pool = pool
        self._rows: dict[Sequence, int] = {}
        self._away: dict[Sequence, list[torch.Tensor]] = {}
        self._points: dict[Sequence, _Point] = {}
        self._free: list[int] = []

    def __getitem__(self, seq: Sequence) -> int:
        return self._rows[seq]

    def enter(self, batch: Batch) -> None:
        """Before a step: every sequence of the batch has a row, and in it the state that it goes on from.

        Raises:
            HarnessError: a sequence goes on from tokens whose state nobody has.
        """
        self._leave()
        before = {seq: seq.stored - count for seq, count in zip(batch.seqs, batch.counts, strict=True)}
        groups = {id(seq.group): seq.group for seq in batch.seqs if seq.group is not None}
        members = [seq for group in groups.values() for seq in group.seqs if seq.row >= 0]
        for seq in members:
            before.setdefault(seq, seq.stored)
        for seq in [*before, *batch.idle]:
            self._settle(seq)
        self._fork([seq for seq in members if before[seq]], before)
        for seq, stored in before.items():
            if stored and seq.group is None and self._points.get(seq) != _point(seq, stored):
                raise HarnessError(f"{seq.name} goes on after {stored} tokens, and nobody has the state after them")
        for seq in batch.seqs:
            self._points[seq] = _point(seq, seq.stored)

    def _leave(self) -> None:
        for seq in [seq for seq in self._rows if seq.row < 0]:
            row = self._rows.pop(seq)
            if seq.stored and not seq.done:
                self._away[seq] = self.pool.take(row)
            else:
                self._points.pop(seq, None)
            self._free.append(row)
        for seq in [seq for seq in self._away if seq.row < 0 and (not seq.stored or seq.done)]:
            del self._away[seq], self._points[seq]

    def _settle(self, seq: Sequence) -> None:
        """A row for a sequence, and what it had in main memory back in it."""
        if seq not in self._rows:
            if not self._free:
                taken = self.pool.rows
                self.pool.reserve(taken + 1)
                self._free = list(range(self.pool.rows - 1, taken - 1, -1))
            self._rows[seq] = self._free.pop()
            if seq in self._away:
                self.pool.put(self._rows[seq], self._away.pop(seq))

    def _fork(self, members: list[Sequence], before: dict[Sequence, int]) -> None:
        wanted = {seq: _point(seq, before[seq]) for seq in members}
        have = {(id(seq.group), self._points[seq]): seq for seq in members if seq in self._points}
        forks = [(seq, point) for seq, point in wanted.items() if self._points.get(seq) != point]
        for seq, point in forks:
            if (id(seq.group), point) not in have:
                raise HarnessError(f"{seq.name} goes on after {point.stored} tokens, and nobody has the state after "
                                   "them")  # fmt: skip
        parents = [have[id(seq.group), point] for seq, point in forks]
        if forks:
            self.pool.copy([self._rows[parent] for parent in parents], [self._rows[seq] for seq, _ in forks])
        self._points |= dict(forks)


def _point(seq: Sequence, stored: int) -> _Point:
    """Of a single sequence the tokens need not be told."""
    if seq.group is None:
        return _Point(stored, ())
    return _Point(stored, tuple(seq.outputs[: max(stored - seq.request.prompt_len, 0)]))
