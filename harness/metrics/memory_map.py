"""Which request holds which slots, moment by moment, what is moved, and who was sent away: for pictures of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from allocators.base import Allocator, Books, LayoutBooks
from harness.files import write_table, written
from harness.metrics.layout_map import LayerMoment, grids_of, note, runs_of_layers
from harness.metrics.recorder import Recorder
from schedulers.request import Batch, Sequence

RUNS = ["start_s", "request", "first", "slots", "kind"]
MOVES = ["start_s", "kind", "source", "target", "slots"]
EVENTS = ["start_s", "request", "event"]
KINDS = ("used", "finished_held", "reserved", "over_reserved", "rounding", "cached", "fragmented", "short", "free",
         "out_of_window", "padding", "state")  # fmt: skip
MOMENTS = 150  # of a sampled map, at least, and twice as many at most
EASE = 8  # steps between two moments, once there are some: so a map takes a small share of a simulation's time
BYTES = 64 * 2**20  # that the moments of a map may take
MOST = 20_000  # moves and events that are kept
FILE = "memory_map.parquet"


class Moment(NamedTuple):
    """What was noted at the start of a step, as cheaply as can be; `runs_of` makes runs of slots of it.

    Attributes:
        ns: when.
        facts: ``[holders, 6]`` int64: request, held, stored, final, promise, finished.
        tables: ``[holders, width]`` int32, the rows of their tables.
        cached: (first slot, slots) of what is kept for reuse only.
        free: what free slots are, one of `KINDS`, and how many there are.
    """

    ns: int
    facts: np.ndarray
    tables: np.ndarray
    cached: list[tuple[int, int]]
    free: tuple[str, int]


class MappedRecorder(Recorder):
    """A recorder that also notes where every sequence lies: at every step, or at moments spread over the whole replay.

    How long a replay will be is not known beforehand: whenever there are twice as many moments as needed, every other
    one is dropped and the time between two is doubled.

    Args:
        allocator: whose sequences are noted.
        every_step: note all of them.
    """

    def __init__(self, allocator: Allocator, *args: Any, every_step: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allocator = allocator
        self.every_step = every_step
        self._moments: list[Moment | LayerMoment] = []
        self._by_layer = bool(allocator.extra_columns)  # so that runs are of units of the layout
        self._bytes = 0
        self._skip, self._gap_ns = 1, 0  # steps and time between two moments
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
            self._note_who_left(batch, start)
        self._steps_left -= 1
        if self.every_step or (start >= self._next_ns and self._steps_left <= 0):
            self._take(start, books)

    def write(self, folder: Path) -> None:
        """Write `memory_map.parquet` (`RUNS`, a row for each run of slots and moment), `moves.csv` and `events.csv`.

        Where layers keep different tokens the runs are of units of the layout, see `layout_map`.

        Each moment has besides a row of request -1 and slot -1 that says what its free slots are and how many.
        """
        runs = [self._runs_of(moment) for moment in self._moments]
        request, first, slots, kind = np.concatenate([np.zeros((0, 4), dtype=np.int64), *runs]).T
        starts = np.repeat([moment.ns / 1e9 for moment in self._moments], [len(rows) for rows in runs])
        kinds = pd.Categorical([KINDS[code] for code in kind.tolist()], list(KINDS))
        width = np.int64 if self._by_layer else np.int32
        columns = (starts, request.astype(np.int32), first.astype(width), slots.astype(width), kinds)
        with written(folder / FILE, "wb") as file:
            pd.DataFrame(dict(zip(RUNS, columns, strict=True))).to_parquet(file, index=False)
        for name, rows, heads in (("moves.csv", self._moves, MOVES), ("events.csv", self._events, EVENTS)):
            write_table(folder / name, pd.DataFrame(rows, columns=heads))

    def _runs_of(self, moment: Moment | LayerMoment) -> np.ndarray:
        allocator = self.allocator
        if isinstance(moment, Moment):
            return runs_of(moment, allocator.block_size)
        free = KINDS.index(moment.free[0])
        return runs_of_layers(moment, allocator.kept, grids_of(allocator), allocator.total, free)

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
            moment = note(now, allocator, facts, spans, (free, count))
            self._keep(moment, moment.nbytes + 64 * len(spans))
            return
        width = -(-int(facts[:, 1].max(initial=0)) // block) if block else 1
        tables = allocator.tables[[holder.row for holder in holders], :width]
        self._keep(Moment(now, facts, tables, cached, (free, count)), tables.nbytes + facts.nbytes + 64 * len(cached))

    def _keep(self, moment: Moment | LayerMoment, size: int) -> None:
        now = moment.ns
        self._moments.append(moment)
        self._bytes += size
        if not self.every_step and (len(self._moments) >= 2 * MOMENTS or self._bytes > BYTES):
            self._thin(now)
        self._next_ns = now + self._gap_ns
        self._steps_left = self._skip if len(self._moments) < EASE**2 else max(self._skip, EASE)

    def _thin(self, now: int) -> None:
        """Drop every other moment, and take half as many from here on."""
        self._gap_ns = 2 * self._gap_ns or (now - self._moments[0].ns) // MOMENTS
        self._skip = 2 * self._skip if self._bytes > BYTES else self._skip
        del self._moments[1::2]
        self._bytes //= 2

    def _note_who_left(self, batch: Batch, start: int) -> None:
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


def runs_of(moment: Moment, block_size: int) -> np.ndarray:
    """The runs of consecutive slots of one moment, each of one request and kind; in token order for each request.

    Args:
        block_size: slots in an entry of a table; 0 where the entry is the first slot of an extent.

    Returns:
        ``[runs, 4]`` int64: request, first slot, slots, index of `KINDS`.
    """
    held, stored, final, promise, finished = moment.facts.T[1:]
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
        blocks = moment.tables[owner, column].astype(np.int64)
        at = begin[owner] + column * block_size
        found.append(at[1:][np.diff(blocks) != 1])
    cuts = np.unique(np.concatenate(found)) if len(held) else np.zeros(0, dtype=np.int64)
    cuts = cuts[cuts < total]
    who = np.searchsorted(begin, cuts, side="right") - 1
    token = cuts - begin[who]
    if block_size:
        first = moment.tables[who, token // block_size].astype(np.int64) * block_size + token % block_size
    else:
        first = moment.tables[who, 0].astype(np.int64) + token
    kind = np.array([0, 2, 3, 4])[(token >= ends[:3, who]).sum(axis=0)]
    kind = np.where(finished[who] == 1, 1, kind)
    slots = np.diff(np.append(cuts, total))
    free, count = moment.free
    spans = np.array(moment.cached, dtype=np.int64).reshape(-1, 2)
    none, kept = np.full(len(spans), -1), np.full(len(spans), KINDS.index("cached"))
    return np.concatenate([
        np.column_stack([moment.facts[who, 0], first, slots, kind]),
        np.column_stack([none, spans, kept]),
        [[-1, -1, count, KINDS.index(free)]],
    ])  # fmt: skip
