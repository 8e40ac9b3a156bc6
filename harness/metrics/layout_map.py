"""Where each group of layers lies in a pool whose layers keep different tokens: a memory map in the layout's units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from allocators.base import Allocator, Grid
from allocators.layout import Kept
from allocators.ledger import behind
from allocators.recount import FINISHED, PADDING, STATE, UNREAD

# What `allocators.recount` numbers, as `memory_map.KINDS` does: used, finished_held, reserved, over_reserved, rounding.
OF_MAP = np.array([0, 1, 2, 3, 4, 9, 10, 11])
PARTS = 4096  # of a pool, that are told apart where its runs are more than that


class LayerSnapshot(NamedTuple):
    """What was noted at the start of a step; `runs_of_layers` makes runs of units of it.

    Attributes:
        ns: when.
        facts: ``[holders, 6]`` int64: request, held, stored, final, promise, finished.
        tables: by group ``[holders, width]`` int32, the rows of their tables.
        parts: ``[groups, holders, 4]`` int64: what `Allocator.occupied` says.
        cached: (first unit, units) of what is kept for reuse only.
        free: what free units are, and how many there are.
    """

    ns: int
    facts: np.ndarray
    tables: list[np.ndarray]
    parts: np.ndarray
    cached: list[tuple[int, int]]
    free: tuple[str, int]

    @property
    def nbytes(self) -> int:
        return self.facts.nbytes + self.parts.nbytes + sum(table.nbytes for table in self.tables)


def grids_of(allocator: Allocator) -> list[Grid]:
    """Where the groups lie. An allocator that knows no layout has the same slots in all: each group's are drawn apart,
    one group behind the other, as their tensors lie; so are states.
    """
    if not allocator.by_slot:
        return list(allocator.grids)
    grids, origin, size = list[Grid](), 0, allocator.block_size
    for kept in allocator.kept:
        if kept.state_units:
            grids.append(Grid(1, kept.state_units, origin))
        else:
            grids.append(Grid(size, max(size, 1) * kept.token_units, origin))
            origin += allocator.capacity * kept.token_units
    return [grid._replace(origin=origin) if kept.state_units else grid
            for grid, kept in zip(grids, allocator.kept, strict=True)]  # fmt: skip


def note(ns: int, allocator: Allocator, facts: np.ndarray, cached: list[tuple[int, int]],
         free: tuple[str, int]) -> LayerSnapshot:  # fmt: skip
    """A snapshot of `allocator`, whose holders' facts are given."""
    holders, groups = allocator.holders, allocator.kept
    rows = [holder.row for holder in holders]
    if allocator.by_slot:
        held = facts[:, 1]
        parts = np.array([[np.zeros_like(held), held, held * kept.token_units, held > 0] for kept in groups])
        parts = parts.transpose(0, 2, 1).astype(np.int64)
        tables = [np.array(rows, dtype=np.int32)[:, None] if kept.state_units else allocator.tables[rows]
                  for kept in groups]  # fmt: skip
    else:
        told = [allocator.occupied(holder) for holder in holders]
        parts = np.array(told, dtype=np.int64).reshape(len(holders), len(groups), 4).transpose(1, 0, 2)
        tables = []
        for table, part, grid in zip(allocator.group_tables, parts, allocator.grids, strict=True):
            width = max(-(-int(part[:, 1].max(initial=1)) // grid.block_size) if grid.block_size else 1, 1)
            tables.append(table[rows, :width])
    return LayerSnapshot(ns, facts, tables, parts, cached, free)


def runs_of_layers(snapshot: LayerSnapshot, kept: tuple[Kept, ...], grids: list[Grid], capacity: int,
                   free_kind: int) -> np.ndarray:  # fmt: skip
    """The runs of units of one snapshot, each of one request and kind. Of a pool of more than `PARTS` units, only those
    in the middle of a part.

    Returns:
        ``[runs, 4]`` int64: request, first unit, units, index of `memory_map.KINDS`.
    """
    found = [
        (_states if each.state_units else _tokens)(snapshot.facts, table, part.T, each, grid)
        for each, table, part, grid in zip(kept, snapshot.tables, snapshot.parts, grids, strict=True)
    ]
    spans = np.array(snapshot.cached, dtype=np.int64).reshape(-1, 2)
    found.append(np.column_stack([np.full(len(spans), -1), spans, np.full(len(spans), 5)]))
    runs = np.concatenate(found)
    if len(runs) > PARTS:
        runs = _thinned(runs[runs[:, 2] > 0], capacity)
    return np.concatenate([_merged(runs), [[-1, -1, snapshot.free[1], free_kind]]])


def _states(facts: np.ndarray, table: np.ndarray, part: np.ndarray, kept: Kept, grid: Grid) -> np.ndarray:
    """States at the start of their pages, all but the last one of a sequence old."""
    who, column = np.nonzero(table >= 0)
    first = grid.origin + table[who, column].astype(np.int64) * grid.stride
    last = np.append(who[1:] != who[:-1], True)[: len(who)]
    kind = np.where(facts[who, 5] == 1, FINISHED, np.where(last, STATE, UNREAD))
    rest = np.where(facts[who, 5] == 1, FINISHED, PADDING)
    states = np.column_stack([facts[who, 0], first, np.full(len(who), kept.state_units), OF_MAP[kind]])
    return np.concatenate([states, _paddings(facts, who, first, kept.state_units, grid.stride, rest)])


def _tokens(facts: np.ndarray, table: np.ndarray, part: np.ndarray, kept: Kept, grid: Grid) -> np.ndarray:
    """Tokens in the pages, or the extent, of each sequence, by what becomes of them."""
    stored, final, promise, finished = facts.T[2:]
    begin_token, end, _, _ = part
    size = end - begin_token
    over = np.maximum(stored - grid.ring, 0) if grid.ring else np.zeros_like(stored)
    if grid.ring:
        final, promise = np.minimum(final, over + grid.ring), np.minimum(promise, over + grid.ring)
    marks = np.maximum.accumulate(np.stack([behind(kept, stored), stored, final, promise]), axis=0)
    begin = np.cumsum(size) - size  # of each holder, when all slots are counted through
    at = (marks % grid.ring if grid.ring else marks) - begin_token  # where a kind ends
    cuts = [begin, *(begin + np.clip(at, 0, size))]
    if grid.ring:
        cuts.append(begin + np.minimum(grid.ring, size))
    pages = np.zeros((0, 4), dtype=np.int64)
    if grid.block_size:
        entries = -(-size // grid.block_size)
        owner = np.repeat(np.arange(len(size)), entries)
        column = np.arange(len(owner)) - np.repeat(np.cumsum(entries) - entries, entries)
        cuts.append(begin[owner] + column * grid.block_size)
        blocks = table[owner, column + begin_token[owner] // grid.block_size].astype(np.int64)
        rest = np.where(finished[owner] == 1, FINISHED, PADDING)
        room = grid.block_size * kept.token_units
        pages = _paddings(facts, owner, grid.origin + blocks * grid.stride, room, grid.stride, rest)
    total = int(size.sum())
    cut = np.unique(np.concatenate(cuts)) if len(size) else np.zeros(0, dtype=np.int64)
    cut = cut[cut < total]
    who = np.searchsorted(begin, cut, side="right") - 1
    place = cut - begin[who]
    token = begin_token[who] + place
    if grid.ring:
        token = np.where(place < grid.ring, over[who] + (place - over[who]) % grid.ring, over[who] + place)
    kind = np.array([UNREAD, 0, 2, 3, 4])[(token >= marks[:, who]).sum(axis=0)]
    kind = np.where(finished[who] == 1, FINISHED, kind)
    if grid.block_size:
        column = (begin_token[who] + place) // grid.block_size
        inside = (begin_token[who] + place) % grid.block_size * kept.token_units
        first = grid.origin + table[who, column].astype(np.int64) * grid.stride + inside
    else:
        first = grid.origin + (table[who, 0].astype(np.int64) + place) * kept.token_units
    units = np.diff(np.append(cut, total)) * kept.token_units
    return np.concatenate([np.column_stack([facts[who, 0], first, units, OF_MAP[kind]]), pages])


def _paddings(facts: np.ndarray, who: np.ndarray, first: np.ndarray, room: int, stride: int,
              kind: np.ndarray) -> np.ndarray:  # fmt: skip
    """What of each page is behind its `room`."""
    count = len(who) if stride > room else 0
    padding = np.column_stack([facts[who, 0], first + room, np.full(len(who), stride - room), OF_MAP[kind]])
    return padding[:count]


def _merged(runs: np.ndarray) -> np.ndarray:
    """Runs that follow one another and are of the same request and kind as one."""
    runs = runs[runs[:, 2] > 0]
    if len(runs) < 2:
        return runs
    before, after = runs[:-1], runs[1:]
    same = (before[:, [0, 3]] == after[:, [0, 3]]).all(axis=1) & (before[:, 1] + before[:, 2] == after[:, 1])
    start = np.flatnonzero(np.append(True, ~same))
    merged = runs[start]
    merged[:, 2] = np.add.reduceat(runs[:, 2], start)
    return merged


def _thinned(runs: np.ndarray, capacity: int) -> np.ndarray:
    """For each part of the pool what lies in its middle."""
    edges = np.linspace(0, capacity, PARTS + 1).astype(np.int64)
    middle = (edges[:-1] + edges[1:]) // 2
    low, high = np.searchsorted(middle, runs[:, 1]), np.searchsorted(middle, runs[:, 1] + runs[:, 2])
    run = np.repeat(np.arange(len(runs)), high - low)
    part = np.arange(len(run)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[run]
    part, index = np.unique(part, return_index=True)
    run = run[index]
    return np.column_stack([runs[run, 0], edges[part], edges[part + 1] - edges[part], runs[run, 3]])
