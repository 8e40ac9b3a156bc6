"""The contract of a KV-cache allocator, and the books that say where every slot is.

To write an allocator, subclass `Allocator` and write five methods, each about one sequence at a time:

    footprint(tokens)        slots that many tokens take in an empty pool, rounding included; None = never fits
    place(holder, tokens)    find slots for a new sequence; slots taken, or None when there is no room
    widen(holder, tokens)    make room for a sequence that outgrew its slots; more slots, or 0 when there is no room
    release(holder)          give all slots of a sequence back
    spans(holder)            the runs of slots a sequence holds, in token order (for the checker and for copies)

and write where the sequence lies into its row of `tables` (`set_row`). Everything else, that is the ledger, groups that
are admitted as a whole, refusals that change nothing, the books and the errors for a misuse, is done here.
A call that answers "refused" has changed nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np


class AllocatorError(RuntimeError):
    """A call that breaks the contract: freed twice, freed unknown, grown past the capacity. Names the sequence."""


@dataclass(slots=True, eq=False)
class Holder:
    """What the allocator knows of one sequence. Schedulers extend it; only the allocator writes these fields.

    Attributes:
        name: how the sequence is called in messages.
        row: its row of `Allocator.tables`, -1 while it holds nothing.
        stored: tokens whose K and V lie in the pool, the ones written in the current step included.
        room: tokens that fit in its slots without asking again.
        held: slots taken from the pool, rounding included.
        promise: R, slots promised at admission (0 = on demand).
        final: F, tokens stored when it ends; known to the books only.
        finished: it produced its last token but its static batch is not over (`free(hold=True)`).
    """

    name: str
    row: int = -1
    stored: int = 0
    room: int = 0
    held: int = 0
    promise: int = 0
    final: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """What a scheduler asks for at admission, in tokens (= slots) for each sequence of a group.

    Attributes:
        tokens: room needed after this step, a prefix hit included.
        promise: R, slots reserved for the whole life of the sequence; 0 reserves nothing (on demand).
        gate: tokens that must fit now although only `tokens` are taken (a chunked prompt); 0 = no gate.
        spare: slots that must stay free afterwards (the watermark), for the group.
        final: F, for the books only. An allocator must not decide by it.
        content: token ids (or block hashes) for prefix reuse; None = nothing can be shared.
        count: sequences in the group.
    """

    tokens: int
    promise: int = 0
    gate: int = 0
    spare: int = 0
    final: int = 0
    content: Any = None
    count: int = 1

    @property
    def need(self) -> int:
        """Tokens of room that each sequence must get now."""
        return max(self.tokens, self.promise)

    @property
    def slots(self) -> int:
        """Slots asked before any rounding: what a pool without fragmentation would have to hold free."""
        return self.count * max(self.tokens, self.promise, self.gate) + self.spare


class Move(NamedTuple):
    """`length` slots to copy before the step's attention: copy-on-write, compaction (`copy`), or swap (`out`, `in`)."""

    kind: Literal["copy", "out", "in"]
    source: int
    target: int
    length: int


class Books(NamedTuple):
    """Every slot of the pool in exactly one column; the columns sum to `capacity`. See README, "The books"."""

    used: int
    finished_held: int
    reserved: int
    over_reserved: int
    rounding: int
    cached: int
    fragmented: int
    short: int
    free: int


def split(holder: Holder) -> tuple[int, int, int, int]:
    """(used, reserved, over_reserved, rounding) of what a live sequence holds, each slot in the first that applies."""
    held, used = holder.held, holder.stored
    true_end = max(used, min(held, holder.final))
    promised_end = max(true_end, min(held, holder.promise))
    return used, true_end - used, promised_end - true_end, held - promised_end


class Allocator(ABC):
    """The base of every allocator: the ledger, the rows and the books; subclasses place slots.

    Args:
        capacity: slots in the pool, > 0.
        max_model_len: longest sequence that may be stored, in tokens, > 0.

    Attributes:
        block_size: slots in a block, or 0 where a sequence is one extent (its row holds the start slot).
        tables: ``[rows, width]`` int32, one row per admitted sequence; rows are reused, the array may be replaced by a
            larger one.
        grows: False where a placement cannot widen a sequence (then `on_demand` makes no sense with it).
    """

    block_size: int = 0
    grows: bool = False

    def __init__(self, capacity: int, max_model_len: int) -> None:
        for key, value in (("capacity", capacity), ("max_model_len", max_model_len)):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{key} must be a positive whole number of tokens, got {value!r}")
        self.capacity = capacity
        self.max_model_len = max_model_len
        width = -(-max_model_len // self.block_size) if self.block_size else 1
        self.tables = np.full((64, width), -1, dtype=np.int32)
        self._free_rows = list(range(63, -1, -1))
        self._dirty: set[int] = set()
        self._moves: list[Move] = []
        self._holders: dict[int, Holder] = {}
        self._used = self._reserved = self._over = self._rounding = self._finished = 0

    # ---- the five methods of a placement -------------------------------------------------------------------------

    @abstractmethod
    def footprint(self, tokens: int) -> int | None:
        """Slots that `tokens` tokens of one sequence take in an empty pool, or None if they never fit."""

    @abstractmethod
    def place(self, holder: Holder, tokens: int) -> int | None:
        """Take slots for a new sequence with room for `tokens`; how many were taken, or None (nothing changed)."""

    def widen(self, holder: Holder, tokens: int) -> int:
        """Give a placed sequence room for `tokens` in all; slots added, or 0 (refused, nothing changed)."""
        return 0

    @abstractmethod
    def release(self, holder: Holder) -> None:
        """Give back every slot of `holder`."""

    @abstractmethod
    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        """(first slot, slots) of each run that `holder` holds, in token order."""

    # ---- what schedulers call --------------------------------------------------------------------------------------

    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        """Admit a whole group or nothing.

        Returns:
            Tokens already present (a prefix hit), or None when refused.

        Raises:
            AllocatorError: a sequence of the group is admitted already, or asks for no token or past `max_model_len`.
        """
        for holder in seqs:
            if holder.row >= 0:
                raise AllocatorError(f"{holder.name} is admitted already")
            if not 0 < ask.need <= self.max_model_len:
                raise AllocatorError(f"{holder.name} asks for {ask.need} tokens, not 1 to {self.max_model_len}")
        gate = self.footprint(max(ask.need, ask.gate))
        if gate is None or self.free_slots - ask.spare < gate * len(seqs):
            return None
        for i, holder in enumerate(seqs):
            holder.row = self._take_row()
            taken = self.place(holder, ask.need)
            if taken is None:
                self._drop_row(holder)
                for placed in reversed(seqs[:i]):  # so that rows and slots lie in the order they lay before
                    self._close(placed)
                return None
            holder.held = holder.room = taken
            holder.promise, holder.final = ask.promise, ask.final
            self._enter(holder)
        return 0

    def grow(self, holder: Holder, tokens: int) -> int:
        """Room for `tokens` tokens in all. Skip the call while ``holder.room >= tokens``.

        Returns:
            The new room in slots, or 0 when refused.

        Raises:
            AllocatorError: the sequence holds nothing or is finished, or would pass `max_model_len`.
        """
        self._known(holder)
        if holder.finished:
            raise AllocatorError(f"{holder.name} is finished and can't grow")
        if tokens > self.max_model_len:
            raise AllocatorError(f"{holder.name} grows to {tokens} tokens, past max_model_len={self.max_model_len}")
        if tokens <= holder.room:
            return holder.room
        added = self.widen(holder, tokens)
        if added:
            before = split(holder)
            holder.held += added
            holder.room += added
            if holder.promise:
                holder.promise = max(holder.promise, tokens)
            self._shift(before, split(holder))
        return holder.room if added else 0

    def extend(self, seqs: Sequence[Holder], rounds: int) -> int:
        """Rounds of one token for every sequence that can be granted, in order, as repeated `grow` calls would do."""
        for done in range(rounds):
            for holder in seqs:
                tokens = holder.stored + done + 1
                if tokens > holder.room and not self.grow(holder, tokens):
                    return done
        return rounds

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        """Once a step: `counts[i]` more tokens of `seqs[i]` are stored. Their room was granted before."""
        within_final = 0
        for holder, count in zip(seqs, counts, strict=True):
            if holder.stored + count <= holder.final:
                holder.stored += count
                within_final += count
            else:  # the end was not declared truly: recompute this sequence's columns
                before = split(holder)
                holder.stored += count
                self._shift(before, split(holder))
        self._used += within_final
        self._reserved -= within_final

    def fork(self, parent: Holder, child: Holder) -> bool:
        """Give `child` its own copy of all that `parent` stored (copies are queued as moves); False = refused."""
        self._known(parent)
        ask = Ask(tokens=max(parent.stored, 1), promise=parent.promise, final=parent.final)
        if self.admit([child], ask) is None:
            return False
        self._queue_copy(self.spans(parent), self.spans(child), parent.stored)
        self.commit([child], [parent.stored])
        return True

    def free(self, holder: Holder, hold: bool = False) -> None:
        """Give a sequence's slots back; with `hold`, only note that it finished and keeps them until `free`.

        Raises:
            AllocatorError: it holds nothing (freed twice, or never admitted).
        """
        self._known(holder)
        if not hold:
            self._close(holder)
        elif holder.finished:
            raise AllocatorError(f"{holder.name} is held as finished already")
        else:
            self._leave(holder)
            holder.finished = True
            self._finished += holder.held

    def swap(self, group: Sequence[Holder], to_host: bool) -> bool:
        """Move a whole group between the pool and the host, or nothing. Not supported unless an allocator says so."""
        return False

    def take_moves(self) -> list[Move]:
        """Copies that must run before this step's attention, in order; the queue is emptied."""
        moves, self._moves = self._moves, []
        return moves

    def reserve_rows(self, rows: int) -> None:
        """Have at least `rows` rows in `tables`, so that the array is not replaced before more are needed."""
        have = len(self.tables)
        if rows > have:
            more = np.full((rows - have, self.tables.shape[1]), -1, dtype=np.int32)
            self.tables = np.vstack([self.tables, more])
            self._free_rows = [*range(rows - 1, have - 1, -1), *self._free_rows]

    def take_dirty(self) -> list[int]:
        """Rows of `tables` that changed since the last call, so that a device copy is mended row by row."""
        rows = sorted(self._dirty)
        self._dirty.clear()
        return rows

    # ---- the books -------------------------------------------------------------------------------------------------

    @property
    def cached_slots(self) -> int:
        """Slots kept only for prefix reuse: evictable, and part of `unheld`."""
        return 0

    @property
    def unheld(self) -> int:
        """Slots that no sequence holds, wherever they lie (cached ones and the pool's remainder included)."""
        return self.capacity - self._used - self._reserved - self._over - self._rounding - self._finished

    @property
    def free_slots(self) -> int:
        """Slots that could be handed out now, one by one; a placement that can't use all of them says less."""
        return self.unheld

    def memory(self, blocked: Ask | None = None) -> Books:
        """The books now, in O(1). `blocked` is what the queue's head was refused for lack of memory."""
        unheld, cached = self.unheld, self.cached_slots
        free, fragmented, short = unheld - cached, 0, 0
        if blocked is not None:
            if unheld >= blocked.slots:
                free, fragmented = 0, free
            else:
                free, short = 0, free
        return Books(self._used, self._finished, self._reserved, self._over, self._rounding, cached,
                     fragmented, short, free)  # fmt: skip

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def set_row(self, holder: Holder, first: int, entries: Sequence[int] | int) -> None:
        """Write `entries` (blocks, or one start slot) into the sequence's row from column `first` on."""
        row = self.tables[holder.row]
        if isinstance(entries, int):
            row[first] = entries
        else:
            row[first : first + len(entries)] = entries
        self._dirty.add(holder.row)

    def _queue_copy(self, source: list[tuple[int, int]], target: list[tuple[int, int]], tokens: int) -> None:
        """Queue the copy of the first `tokens` slots of `source` onto `target`."""
        (here, here_left), (there, there_left) = (0, 0), (0, 0)
        sources, targets = iter(source), iter(target)
        while tokens > 0:
            if not here_left:
                here, here_left = next(sources)
            if not there_left:
                there, there_left = next(targets)
            length = min(tokens, here_left, there_left)
            self._moves.append(Move("copy", here, there, length))
            here, here_left = here + length, here_left - length
            there, there_left = there + length, there_left - length
            tokens -= length

    def _known(self, holder: Holder) -> None:
        if self._holders.get(holder.row) is not holder:
            raise AllocatorError(f"{holder.name} holds nothing here: freed twice, or never admitted")

    def _take_row(self) -> int:
        if not self._free_rows:
            self.reserve_rows(2 * len(self.tables))
        return self._free_rows.pop()

    def _drop_row(self, holder: Holder) -> None:
        self._free_rows.append(holder.row)
        holder.row = -1

    def _enter(self, holder: Holder) -> None:
        self._holders[holder.row] = holder
        self._shift((0, 0, 0, 0), split(holder))

    def _leave(self, holder: Holder) -> None:
        self._shift(split(holder), (0, 0, 0, 0))

    def _shift(self, before: tuple[int, int, int, int], after: tuple[int, int, int, int]) -> None:
        self._used += after[0] - before[0]
        self._reserved += after[1] - before[1]
        self._over += after[2] - before[2]
        self._rounding += after[3] - before[3]

    def _close(self, holder: Holder) -> None:
        if holder.finished:
            self._finished -= holder.held
        else:
            self._leave(holder)
        self.release(holder)
        del self._holders[holder.row]
        self._drop_row(holder)
        holder.stored = holder.room = holder.held = holder.promise = holder.final = 0
        holder.finished = False
