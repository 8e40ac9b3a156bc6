"""Snapshots of which request holds which slots, with moves and preemptions: for pictures of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from allocators.base import Allocator, Books, LayoutBooks
from harness.files import write_table, written
from harness.metrics.layout_map import LayerSnapshot, grids_of, note, runs_of_layers
from harness.metrics.recorder import Recorder
from schedulers.request import Batch, Sequence

RUNS = ["start_s", "request", "first", "slots", "kind"]
MOVES = ["start_s", "kind", "source", "target", "slots"]
EVENTS = ["start_s", "request", "event"]
KINDS = ("used", "finished_held", "reserved", "over_reserved", "rounding", "cached", "fragmented", "short", "free",
         "out_of_window", "padding", "state")  # fmt: skip
SNAPSHOTS = 150  # at least, in a sampled map; at most twice as many
MIN_STEPS = 8  # between two snapshots, after the first ones, so that a map takes a small share of a simulation's time
BYTES = 64 * 2**20  # that the snapshots of a map may take
MOST = 20_000  # moves and events that are kept
FILE = "memory_map.parquet"


class MapSnapshot(NamedTuple):
    """The state of the pool at the start of a step, taken cheaply; `runs_of` turns it into runs of slots.

    Attributes:
        ns: time of the snapshot.
        facts: ``[holders, 6]`` int64: request, held, stored, final, promise, finished.
        tables: ``[holders, width]`` int32, the rows of their tables.
        cached: (first slot, slots) of each run that is cached only.
        free: the kind of the free slots, one of `KINDS`, and their number.
    """

    ns: int
    facts: np.ndarray
    tables: np.ndarray
    cached: list[tuple[int, int]]
    free: tuple[str, int]


class MappedRecorder(Recorder):
    """A recorder that also takes snapshots of where every sequence lies, at every step or spread over the replay.

    The length of a replay is not known beforehand: whenever there are twice as many snapshots as needed, every other
    one is dropped and the time between two is doubled.

    Args:
        allocator: the allocator of the sequences.
        every_step: take a snapshot at every step.
    """

    def __init__(self, allocator: Allocator, *args: Any, every_step: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allocator = allocator
        self.every_step = every_step
        self._snapshots: list[MapSnapshot | LayerSnapshot] = []
        self._by_layer = bool(allocator.extra_columns)  # so that runs are of units of the layout
        self._bytes = 0
        self._skip, self._gap_ns = 1, 0  # steps and time between two snapshots
        self._steps_left, self._next_ns = 0, 0
        self._moves: list[tuple[float, str, int, int, int]] = []
        self._events: list[tuple[float, int, str]] = []
        self._away: list[Sequence] = []

    def scheduled(
        self, batch: Batch, start: int, waiting: int, books: Books | LayoutBooks, runs: int | None = None
    ) -> None:
        super().scheduled(batch, start, waiting, books, runs)
        if batch.moves and len(self._moves) < MOST:
            self._moves += [(start / 1e9, move.kind, move.source, move.target, move.length) for move in batch.moves]
        if self._away or batch.preempted:
            self._record_preempted(batch, start)
        self._steps_left -= 1
        if self.every_step or (start >= self._next_ns and self._steps_left <= 0):
            self._take(start, books)

    def write(self, folder: Path) -> None:
        """Write `memory_map.parquet` (`RUNS`, a row for each run of slots and snapshot), `moves.csv` and `events.csv`.

        If layers keep different tokens, the runs are of units of the layout, see `layout_map`.

        Each snapshot also has a row of request -1 and slot -1, with the kind and the number of its free slots.
        """
        runs = [self._runs_of(snapshot) for snapshot in self._snapshots]
        request, first, slots, kind = np.concatenate([np.zeros((0, 4), dtype=np.int64), *runs]).T
        starts = np.repeat([snapshot.ns / 1e9 for snapshot in self._snapshots], [len(rows) for rows in runs])
        kinds = pd.Categorical([KINDS[code] for code in kind.tolist()], list(KINDS))
        width = np.int64 if self._by_layer else np.int32
        columns = (starts, request.astype(np.int32), first.astype(width), slots.astype(width), kinds)
        with written(folder / FILE, "wb") as file:
            pd.DataFrame(dict(zip(RUNS, columns, strict=True))).to_parquet(file, index=False)
        for name, rows, heads in (("moves.csv", self._moves, MOVES), ("events.csv", self._events, EVENTS)):
            write_table(folder / name, pd.DataFrame(rows, columns=heads))

    def _runs_of(self, snapshot: MapSnapshot | LayerSnapshot) -> np.ndarray:
        allocator = self.allocator
        if isinstance(snapshot, MapSnapshot):
            return runs_of(snapshot, allocator.block_size)
        free = KINDS.index(snapshot.free[0])
        return runs_of_layers(snapshot, allocator.kept, grids_of(allocator), allocator.total, free)

    def _take(self, now: int, books: Books | LayoutBooks) -> None:
        allocator, block = self.allocator, self.allocator.block_size
        holders = allocator.holders
        facts = np.array(
            [
                (h.request.id, h.held, h.stored, h.final, h.promise, h.finished)  # type: ignore[attr-defined]
                for h in holders
            ],
            dtype=np.int64,
        ).reshape(-1, 6)
        free = "fragmented" if books.fragmented else "short" if books.short else "free"
        count = books.fragmented + books.short + books.free
        cached = allocator.cached_spans() if books.cached else []
        if self._by_layer:
            spans = [] if allocator.by_slot else cached  # of slots, not units
            snapshot = note(now, allocator, facts, spans, (free, count))
            self._keep(snapshot, snapshot.nbytes + 64 * len(spans))
            return
        width = -(-int(facts[:, 1].max(initial=0)) // block) if block else 1
        tables = allocator.tables[[holder.row for holder in holders], :width]
        size = tables.nbytes + facts.nbytes + 64 * len(cached)
        self._keep(MapSnapshot(now, facts, tables, cached, (free, count)), size)

    def _keep(self, snapshot: MapSnapshot | LayerSnapshot, size: int) -> None:
        now = snapshot.ns
        self._snapshots.append(snapshot)
        self._bytes += size
        if not self.every_step and (len(self._snapshots) >= 2 * SNAPSHOTS or self._bytes > BYTES):
            self._thin(now)
        self._next_ns = now + self._gap_ns
        self._steps_left = self._skip if len(self._snapshots) < MIN_STEPS**2 else max(self._skip, MIN_STEPS)

    def _thin(self, now: int) -> None:
        """Drop every other snapshot, and take half as many from here on."""
        self._gap_ns = 2 * self._gap_ns or (now - self._snapshots[0].ns) // SNAPSHOTS
        self._skip = 2 * self._skip if self._bytes > BYTES else self._skip
        del self._snapshots[1::2]
        self._bytes //= 2

    def _record_preempted(self, batch: Batch, start: int) -> None:
        """Events of sequences that lost their slots, and of those that have some again."""
        for seq in [seq for seq in self._away if seq.row >= 0 or seq.done]:
            self._away.remove(seq)
            self._events.append((start / 1e9, seq.request.id, "resumed"))
        for seq in batch.preempted:
            if len(self._events) < MOST and seq not in self._away:
                self._events.append((start / 1e9, seq.request.id, "swapped" if seq.stored else "preempted"))
                if seq.row < 0:
                    self._away.append(seq)
                else:
                    self._events.append((start / 1e9, seq.request.id, "resumed"))


def runs_of(snapshot: MapSnapshot, block_size: int) -> np.ndarray:
    """The runs of consecutive slots of one snapshot, each of one request and kind; in token order for each request.

    Args:
        block_size: slots in an entry of a table; 0 where the entry is the first slot of an extent.

    Returns:
        ``[runs, 4]`` int64: request, first slot, slots, index of `KINDS`.
    """
    held, stored, final, promise, finished = snapshot.facts.T[1:]
    ends = np.maximum.accumulate(  # of the kinds of slots of each holder, in token order
        np.stack([stored, np.minimum(final, held), np.minimum(promise, held), held]), axis=0
    )
    begin = np.cumsum(held) - held  # of each holder, when all slots held are counted through
    total = int(held.sum())
    found = [begin, *(begin + end for end in ends)]
    if block_size:
        entries = -(-held // block_size)
        owner = np.repeat(np.arange(len(held)), entries)
        column = np.arange(len(owner)) - np.repeat(np.cumsum(entries) - entries, entries)
        blocks = snapshot.tables[owner, column].astype(np.int64)
        at = begin[owner] + column * block_size
        found.append(at[1:][np.diff(blocks) != 1])
    cuts = np.unique(np.concatenate(found)) if len(held) else np.zeros(0, dtype=np.int64)
    cuts = cuts[cuts < total]
    who = np.searchsorted(begin, cuts, side="right") - 1
    token = cuts - begin[who]
    if block_size:
        first = snapshot.tables[who, token // block_size].astype(np.int64) * block_size + token % block_size
    else:
        first = snapshot.tables[who, 0].astype(np.int64) + token
    kind = np.array([0, 2, 3, 4])[(token >= ends[:3, who]).sum(axis=0)]
    kind = np.where(finished[who] == 1, 1, kind)
    slots = np.diff(np.append(cuts, total))
    free, count = snapshot.free
    spans = np.array(snapshot.cached, dtype=np.int64).reshape(-1, 2)
    none, kept = np.full(len(spans), -1), np.full(len(spans), KINDS.index("cached"))
    return np.concatenate([
        np.column_stack([snapshot.facts[who, 0], first, slots, kind]),
        np.column_stack([none, spans, kept]),
        [[-1, -1, count, KINDS.index(free)]],
    ])  # fmt: skip
