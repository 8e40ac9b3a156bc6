"""The contract of a KV-cache allocator, and the books that say where every slot is.

To write an allocator, subclass `Allocator` and write five methods, each about one sequence at a time:

    footprint(tokens)        slots that so many tokens take in an empty pool, rounding included; None = never fits
    place(holder, tokens)    allocate slots for a new sequence; returns how many it holds, or None when refused
    widen(holder, tokens)    allocate more slots for a running sequence; returns how many, or 0 when refused
    release(holder)          free all slots of a sequence
    spans(holder)            the runs of slots a sequence holds, in token order (for the checker and for copies)

and write where the sequence lies into its row of `tables` (`set_row`). The base class does everything else: the ledger,
admission of whole groups, the books, and the errors for misuse. A refused call has changed nothing.

If sequences may share slots, the allocator sets `shares` and writes three more methods: `lookup` (how much of a
sequence is in the pool already; when `place` is called, `holder.stored` is set to that), `shared` (how many of a
sequence's slots other sequences hold too) and `cached_spans`. If forks share slots, it sets `forks_share` and writes
`fork`. If it can move sequences to host memory, it writes `swap`.

Layers may keep different tokens: all tokens, those of a window or a chunk, or a state of fixed size (`Kept`). An
allocator without a `layout` argument keeps every token in every layer; its books then show what no layer reads again.
One with a `layout` argument (a `KVLayout`) passes `layout.kept` to `Allocator.__init__`. It then counts in the units of
the layout (bytes), has a table for each group of layers (`group_tables`, see `Grid`) and writes two more methods:
`occupied` (where a sequence lies, by group) and `trim` (free what no layer reads again; called before `widen`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from allocators.books import (
    NO_HIT,
    NO_KEYS,
    AllocatorError,
    Ask,
    Books,
    Growth,
    Hit,
    Holder,
    LayoutBooks,
    Move,
    spans_from,
    split,
    unheld_columns,
)
from allocators.layout import SLOT, Kept, KVLayout
from allocators.ledger import Ledger, Part, behind, in_sum
from allocators.renamed import ALLOCATOR_HOOKS, refuse_renamed

__all__ = [
    "NO_HIT", "NO_KEYS", "Allocator", "AllocatorError", "Ask", "Books", "Grid", "Growth", "Hit", "Holder", "KVLayout",
    "Kept", "LayoutBooks", "Move", "Part", "split",
]  # fmt: skip


class Grid(NamedTuple):
    """How entries of a group's table translate into positions in the pool, in units.

    Attributes:
        block_size: tokens in a block; 0 = an entry is the start of an extent, in tokens.
        stride: units from one block to the next.
        origin: position of block 0, or of token 0.
        ring: tokens after which an extent wraps around; 0 = never.
    """

    block_size: int
    stride: int = 1
    origin: int = 0
    ring: int = 0


def _width(grid: Grid, kept: Kept, capacity: int, max_model_len: int) -> int:
    """Columns of a group's table: enough for the longest sequence that the pool can hold."""
    longest = max_model_len if kept.reach else min(max_model_len, capacity)
    return -(-longest // grid.block_size) if grid.block_size else 1


class Allocator(ABC):
    """The base of every allocator: the ledger, the rows and the books; subclasses place slots.

    Args:
        capacity: slots in the pool (units, if layers keep different tokens), > 0.
        max_model_len: longest sequence that may be stored, in tokens, > 0.
        kept: what each group of layers keeps; by default one group that keeps all tokens, in slots.
        grids: how each group's table is to be read; by default blocks, or extents, of `block_size` tokens.

    Attributes:
        block_size: slots in a block, or 0 if a sequence is one extent (its row holds the start slot).
        tables: ``[rows, width]`` int32, one row per admitted sequence; rows are reused, the array may be replaced by a
            larger one.
        group_tables: one such table for each group; `tables` is the first. A sequence has the same row in all tables.
        group_layers: if layers keep different tokens, the numbers of the model's layers of each group, in the order of
            their pages in a block; () = unknown, then the allocator is good for simulation only.
        grows: False if a sequence can't be widened (then reservation `on_demand` is refused).
        reserves: False if the allocator ignores promises (then only reservation `on_demand` is allowed).
        shares: whether sequences may hold the same slots because `lookup` found them; by default, whether the class
            overrides `lookup`.
        can_fork: whether `fork` may be called.
        forks_share: whether a fork of a sequence without a promise shares its slots, so that it needs no free ones.
        host_capacity: slots of the host pool for `swap`; 0 = swapping is not supported.
        grain: units that are allocated together: a block, or 1.
        max_step_tokens: most tokens of one sequence that a step computes.
        null_blocks: blocks that are never allocated.
        aligned_chunks: whether chunks of a prompt must end where `chunk_tokens` says.
        total: the sum of all columns of the books, in the units of the layout.
    """

    block_size: int = 0
    group_layers: tuple[tuple[int, ...], ...] = ()
    grows: bool = False
    reserves: bool = True
    shares: bool = False
    can_fork: bool = True
    forks_share: bool = False
    host_capacity: int = 0
    null_blocks: int = 0
    aligned_chunks: bool = False

    def __init__(self, capacity: int, max_model_len: int, kept: Sequence[Kept] = (SLOT,),
                 grids: Sequence[Grid] | None = None) -> None:  # fmt: skip
        refuse_renamed(type(self), ALLOCATOR_HOOKS)
        for key, value in (("capacity", capacity), ("max_model_len", max_model_len)):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{key} must be a positive whole number of tokens, got {value!r}")
        self.capacity = self.total = capacity
        self.max_model_len = self.max_step_tokens = max_model_len
        self.kept = tuple(kept)
        self.grain = self.block_size or 1
        self.grids = tuple(grids or [Grid(self.block_size, self.grain * max(each.token_units, 1)) for each in kept])
        widths = [_width(grid, each, capacity, max_model_len) for grid, each in zip(self.grids, kept, strict=True)]
        self.group_tables = [np.full((64, width), -1, dtype=np.int32) for width in widths]
        self.tables = self.group_tables[0]
        self.shares = self.shares or type(self).lookup is not Allocator.lookup
        self._ledger: Ledger | None = None
        self._by_layer = False  # whether layers keep different tokens
        if self.kept != (SLOT,):
            self.by_layers(self.kept)
        self._free_rows = list(range(63, -1, -1))
        self._dirty: set[int] = set()
        self._moves: list[Move] = []
        self._holders: dict[int, Holder] = {}
        self._used = self._reserved = self._over = self._rounding = self._finished = 0

    # ---- the five methods of a placement -------------------------------------------------------------------------

    @abstractmethod
    def footprint(self, tokens: int) -> int | None:
        """Slots that one sequence of `tokens` tokens takes in an empty pool, or None if it never fits."""

    def describe_footprint(self, tokens: int) -> str:
        """What so many tokens of a sequence that never fits would take: "a lane of 2048 slots"; "" if it is obvious.

        Used in the message of a rejection. Override it if a sequence takes more slots than it has tokens.
        """
        return "" if tokens > self.capacity else f"more than {type(self).__name__} has for one sequence"

    @abstractmethod
    def place(self, holder: Holder, tokens: int) -> int | None:
        """Allocate room for `tokens` to a new sequence.

        The first `holder.stored` tokens are in the pool already, as `lookup` found; 0 unless the allocator `shares`.

        Returns:
            Slots that the sequence now holds, or None (refused, nothing changed).
        """

    def widen(self, holder: Holder, tokens: int) -> int:
        """Allocate room for `tokens` in all to a running sequence; slots added, or 0 (refused, nothing changed)."""
        return 0

    @abstractmethod
    def release(self, holder: Holder) -> None:
        """Free every slot of `holder`."""

    @abstractmethod
    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        """(first slot, slots) of each run that `holder` holds, in token order, group after group."""

    def fits(self, prompt: int, tokens: int, whole: bool, piece: int) -> bool:
        """Whether a sequence with a prompt of `prompt` tokens, `tokens` in all, fits an otherwise empty pool.

        Args:
            whole: whether the whole prompt must fit before its first chunk is admitted.
            piece: most tokens of a chunk.
        """
        return self.footprint(tokens) is not None

    # ---- where layers keep different tokens -----------------------------------------------------------------------

    def by_layers(self, kept: Sequence[Kept]) -> None:
        """Keep separate books for each group of layers, even if there is only one group."""
        rings = [grid.ring for grid in self.grids]
        self._ledger, self._by_layer, self.can_fork = Ledger(kept, rings), True, False

    def serve(self, layout: KVLayout, total: int) -> None:
        """Serve a model with this layout although the allocator was made without one: keep all tokens in every layer.

        Args:
            total: units of the layout in the pool, including the remainder behind the last slot and the room for
                states of recurrent layers, which this allocator does not place.
        """
        kept = layout.kept
        if kept != (SLOT,):
            self.kept, self.total, self._by_layer = kept, total, True

    def occupied(self, holder: Holder) -> Sequence[Part]:
        """The tokens that the slots of a sequence have room for, by group; by default its first, the same for all."""
        states = sum([kept.state_units for kept in self.kept])
        tokens = (holder.held - states) // max(sum([kept.token_units for kept in self.kept]), 1)
        return [
            Part(0, 0, kept.state_units, 1) if kept.state_units else Part(0, tokens, tokens * kept.token_units)
            for kept in self.kept
        ]

    def trim(self, holder: Holder) -> int:
        """Free what no layer will read again after `holder.stored` tokens; returns the units freed."""
        return 0

    def unread(self, kept: Kept) -> int:
        """Slots whose tokens no layer of a group will read again, of all live sequences (each slot counted once)."""
        live = [holder.stored for holder in self._holders.values() if not holder.finished]
        return int(behind(kept, np.array(live, dtype=np.int64)).sum())

    # ---- what schedulers call --------------------------------------------------------------------------------------

    def limit_step_tokens(self, tokens: int) -> None:
        """Set the most tokens of one sequence that the scheduler computes in a step."""
        self.max_step_tokens = min(tokens, self.max_model_len)

    def chunk_tokens(self, holder: Holder, hit: Hit, count: int, most: int) -> int:
        """How many of the next `count` tokens of a prompt the next chunk may have; 0 = the sequence has to wait.

        Called only if `aligned_chunks` is set.

        Args:
            hit: the prefix to be reused, if the sequence is waiting.
            most: the largest chunk that the sequence could get in any step.
        """
        return count

    def lookup(self, holder: Holder, most: int) -> Hit:
        """The prefix hit, of at most `most` tokens, that a sequence would get if it were admitted now."""
        return NO_HIT

    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        """Admit a whole group or nothing.

        Returns:
            Tokens that are in the pool already (`ask.hit.tokens`; each sequence has them stored), or None if refused.

        Raises:
            AllocatorError: a sequence of the group is admitted already or listed twice, or asks for 0 tokens or more
                than `max_model_len`; the group has not `ask.count` sequences; the hit is not in the pool; or `place`
                returned no valid number of slots.
        """
        need = ask.need
        if len(seqs) != 1 or ask.count != 1 or seqs[0].row >= 0 or not 0 < need <= self.max_model_len:
            self._check(seqs, ask.count, need)
        if self.exceeds_free(ask):
            return None
        for i, holder in enumerate(seqs):
            holder.row = self._take_row()
            holder.stored = ask.hit.tokens
            held = self.place(holder, need)
            if held is None:
                holder.stored = 0
                self._drop_row(holder)
                for placed in reversed(seqs[:i]):  # in reverse, so that free rows and slots keep their order
                    self._close(placed)
                return None
            if type(held) is not int or (held < need and self._ledger is None):
                raise AllocatorError(f"{type(self).__name__}.place must return {need} slots or more, not {held!r}")
            holder.held = holder.room = held
            holder.promise, holder.final = ask.promise, ask.final
            self._enter(holder)
            if self._ledger is not None:
                self._update_ledger(holder, need)
        return ask.hit.tokens

    def exceeds_free(self, ask: Ask) -> bool:
        """Whether `ask` exceeds the number of free slots, wherever they lie. If so, `admit` refuses it."""
        need = ask.need
        slots = self.footprint(ask.must_fit if ask.must_fit > need else need)
        if slots is not None and type(slots) is not int:
            raise AllocatorError(f"{type(self).__name__}.footprint must return slots or None, not {slots!r}")
        return slots is None or self.free_slots - ask.spare < (slots - ask.hit.held) * ask.count

    def grow(self, holder: Holder, tokens: int) -> int:
        """Get a sequence room for `tokens` tokens in all. Skip the call while ``holder.room >= tokens``.

        What no layer will read again is freed first, even if the call is then refused.

        Returns:
            The new room in tokens, or 0 if refused.

        Raises:
            AllocatorError: the sequence holds nothing, is finished, or would exceed `max_model_len`.
        """
        self._known(holder)
        if holder.finished:
            raise AllocatorError(f"{holder.name} is finished and can't grow")
        if tokens > self.max_model_len:
            raise AllocatorError(f"{holder.name} grows to {tokens} tokens, past max_model_len={self.max_model_len}")
        if self._ledger is not None:
            return self._grow_by_layer(holder, tokens)
        if tokens <= holder.room:
            return holder.room
        added = self.widen(holder, tokens)
        if not added:
            return 0
        held = holder.held + added
        if not holder.promise and held <= holder.final:  # the usual case: they will all be filled
            self._reserved += added
            holder.held = held
            holder.room = room = holder.room + added
            return room
        before = split(holder)
        holder.held = held
        holder.room += added
        if holder.promise:
            holder.promise = max(holder.promise, tokens)
        self._shift(before, split(holder))
        return holder.room

    def free_unread(self, holder: Holder) -> None:
        """Free what no layer will read again of a sequence, as `grow` does before it asks for more."""
        if self._ledger is not None:
            holder.held -= self.trim(holder)
            self._update_ledger(holder, holder.stored)

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """Take up to `rounds` decode steps at once: in each, every sequence in order may `grow`, then all `commit`.

        Ends before the first step in which a sequence is refused room (earlier sequences of that step may have grown),
        or which needs moves or a delay: such a step is timed by itself.
        """
        if not self._by_layer and (
            min([seq.room - seq.stored for seq in seqs]) >= rounds <= min([seq.final - seq.stored for seq in seqs])
        ):
            self.commit(seqs, [rounds] * len(seqs))
            return Growth(rounds, [])
        ones, shifts, before = [1] * len(seqs), list[tuple[int, ...]](), self._held()
        for done in range(rounds):
            for seq in seqs:
                if seq.stored >= seq.room and not self.grow(seq, seq.stored + 1):
                    return Growth(done, shifts)
            self.commit(seqs, ones)
            after = self._held()
            before[0] += len(seqs)
            before[2] -= len(seqs)
            shifts.append((done, *[new - old for new, old in zip(after, before, strict=True)]))
            before = after
        return Growth(rounds, shifts)

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        """Count `counts[i]` more tokens of `seqs[i]` as stored, including those that the current step computes.

        The sequences have room for them. A later admission may reuse committed tokens. Commit each token once.
        """
        if self._ledger is not None:
            for holder, count in zip(seqs, counts, strict=True):
                holder.stored += count
            return
        if counts.count(1) == len(seqs) and self._store(seqs, 1):
            return
        within_final = sum(counts)
        for holder, count in zip(seqs, counts, strict=True):
            holder.stored = stored = holder.stored + count
            if stored > holder.final:  # longer than the declared final length: recompute this sequence's columns
                after = split(holder)
                holder.stored = stored - count
                self._shift(split(holder), after)
                holder.stored = stored
                within_final -= count
        self._used += within_final
        self._reserved -= within_final

    def _store(self, seqs: Sequence[Holder], count: int) -> bool:
        """Store `count` more tokens of each sequence; False (nothing changed) if one would exceed its final length."""
        within = True
        for holder in seqs:
            holder.stored = stored = holder.stored + count
            if stored > holder.final:
                within = False
        if not within:
            for holder in seqs:
                holder.stored -= count
            return False
        self._used += count * len(seqs)
        self._reserved -= count * len(seqs)
        return True

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        """Let `child` store the same tokens as `parent`, in place of its own.

        By default the child has its own slots (those it was admitted to, or new ones), and the parent's tokens are
        copied by queued moves, except for the first `common` tokens that both store already.

        Returns:
            False if there is no room (nothing changed).

        Raises:
            AllocatorError: the parent holds nothing, or is the child.
        """
        self._known(parent)
        if child is parent:
            raise AllocatorError(f"{child.name} can't be forked from itself")
        if child.row < 0:
            ask = Ask(tokens=max(parent.stored, 1), promise=parent.promise, final=parent.final)
            if self.admit([child], ask) is None:
                return False
        elif parent.stored > child.room and not self.grow(child, parent.stored):
            return False
        self._queue_copy(self.spans(parent), self.spans(child), min(common, child.stored), parent.stored)
        before = split(child)
        child.stored = parent.stored
        self._shift(before, split(child))
        return True

    def free(self, holder: Holder, hold: bool = False) -> None:
        """Free a sequence's slots; with `hold`, only mark the sequence finished: it keeps its slots until `free`.

        Raises:
            AllocatorError: the sequence holds nothing (freed twice, or never admitted).
        """
        self._known(holder)
        if not hold:
            self._close(holder)
        elif holder.finished:
            raise AllocatorError(f"{holder.name} is held as finished already")
        elif self._ledger is not None:
            holder.finished = True
            self._ledger.update(holder, self.occupied(holder))
        else:
            live, _ = self.shared(holder)
            self._leave(holder)
            self._used += live
            self._finished += holder.held - live
            holder.finished = True

    def swap(self, group: Sequence[Holder], to_host: bool, spare: int = 0) -> bool:
        """Move a whole group between the pool and the host, or nothing; shared slots stay shared.

        Swapped sequences hold no slots of the pool, but keep `stored` and `promise`. Supported if `host_capacity` > 0.

        Args:
            spare: slots that must stay free in the pool after the group has come back.

        Returns:
            False if there is no room (nothing changed).
        """
        return False

    @property
    def by_slot(self) -> bool:
        """Whether a sequence has the same slots in all layers, whatever the layers keep of it."""
        return self._ledger is None

    @property
    def refusals_persist(self) -> bool:
        """Whether an admission that is refused now stays refused while the running sequences only decode.

        False if blocks that they free, or a prefix that they compute, might let it in.
        """
        return not self.shares and type(self).trim is Allocator.trim

    @property
    def host_used(self) -> int:
        """Slots of the host pool that hold swapped sequences."""
        return 0

    @property
    def saved_slots(self) -> int:
        """Slots saved by sharing: those that live sequences would hold in addition if they shared none."""
        return 0

    def take_moves(self) -> list[Move]:
        """Copies that must run before this step's attention, in order; the queue is emptied."""
        moves, self._moves = self._moves, []
        return moves

    def take_delay(self) -> int:
        """Nanoseconds that a simulated step waits for the allocator's work since the last call, moves excluded.

        For example mapping memory. With a real runner such time is measured.
        """
        return 0

    @property
    def pending_moves(self) -> tuple[Move, ...]:
        """The moves that the next `take_moves` will return."""
        return tuple(self._moves)

    def reserve_rows(self, rows: int) -> None:
        """Make at least `rows` rows in `tables`, so that the array is not replaced until more are needed."""
        have = len(self.tables)
        if rows > have:
            for at, table in enumerate(self.group_tables):
                more = np.full((rows - have, table.shape[1]), -1, dtype=np.int32)
                self.group_tables[at] = np.vstack([table, more])
            self.tables = self.group_tables[0]
            self._free_rows = [*range(rows - 1, have - 1, -1), *self._free_rows]

    def take_dirty(self) -> list[int]:
        """Rows of `tables` that changed since the last call, so that a copy on a device is updated row by row."""
        rows = sorted(self._dirty)
        self._dirty.clear()
        return rows

    # ---- the books -------------------------------------------------------------------------------------------------

    @property
    def cached_slots(self) -> int:
        """Slots kept only for prefix reuse: evictable, and part of `unheld`."""
        return 0

    def cached_spans(self) -> list[tuple[int, int]]:
        """(first slot, slots) of each run kept only for prefix reuse (for the checker)."""
        return []

    def shared(self, holder: Holder) -> tuple[int, int]:
        """(slots of `holder` that another live sequence holds too, slots that otherwise only finished sequences hold).

        All of these slots store tokens of `holder`. The books count a shared slot once.
        """
        return 0, 0

    @property
    def unheld(self) -> int:
        """Slots that no sequence holds, wherever they lie (cached ones and the pool's remainder included)."""
        if self._ledger is not None:
            return self.capacity - self._ledger.held + self.saved_slots
        return self.capacity - self._used - self._reserved - self._over - self._rounding - self._finished

    @property
    def free_slots(self) -> int:
        """Slots that could be allocated one by one now; fewer than `unheld` if the allocator can't use all of them."""
        return self.unheld

    @property
    def holders(self) -> list[Holder]:
        """Every sequence that holds slots, finished lanes of a static batch included."""
        return list(self._holders.values())

    def memory(self, blocked: Ask | None = None) -> Books | LayoutBooks:
        """The books now, in O(1); in O(sequences) and in the units of the layout where layers keep different tokens.

        Args:
            blocked: the admission that the queue's head was refused for lack of memory.
        """
        if not self._by_layer:
            return self._books(blocked.slots if blocked else None)
        groups = self.group_books()
        held, cached = sum([sum(columns) for columns in groups]), sum([columns[5] for columns in groups])
        asked = None if blocked is None else self.asked(blocked)
        return in_sum(groups, cached, unheld_columns(self.total - held + cached, cached, asked))

    def group_books(self) -> list[list[int]]:
        """Held and cached units of each group of layers, in the order of `LayoutBooks.held`."""
        if self._ledger is not None:
            return self._ledger.books()
        used, *others = self._books(None)[:6]
        live = sum([not holder.finished for holder in self._holders.values()])
        groups = [
            [size * (used - unread), *[size * slots for slots in others], size * unread, 0, 0]
            for size, unread in [(kept.token_units, self.unread(kept)) for kept in self.kept]
        ]
        for kept, columns in zip(self.kept, groups, strict=True):
            if kept.state_units:
                columns[1] = kept.state_units * (len(self._holders) - live)
                columns[8] = kept.state_units * live
        return groups

    def asked(self, ask: Ask) -> int:
        """What `ask` would need free in a pool without rounding, in the units of the books."""
        if not self._by_layer:
            return ask.slots
        if self._ledger is None:
            return ask.slots * sum([kept.token_units for kept in self.kept])
        tokens = max(ask.tokens, ask.promise, ask.must_fit)
        each = sum([k.token_units * (tokens - k.behind(tokens)) + k.state_units for k in self.kept])
        return ask.count * (each - ask.hit.held) + ask.spare

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Names of the columns of `extra_books`; none if all layers keep all tokens."""
        if not self._by_layer:
            return ()
        names = list(dict.fromkeys([kept.name.replace(" ", "_") for kept in self.kept]))
        columns = LayoutBooks._fields[:6] + LayoutBooks._fields[9:]
        each = [f"{column}.{name}" for name in names for column in columns] if len(names) > 1 else []
        return (*LayoutBooks._fields[9:], *each)

    def extra_books(self) -> list[int]:
        """Columns beyond the nine of `Books`: the last three of `LayoutBooks`, then the books of each kind of group, if
        there are several kinds.
        """
        return self._held()[6:]

    def facts(self) -> dict[str, float]:
        """Further numbers of this pool for the summary, by name; for example what an engine prints about it."""
        return {}

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def set_row(self, holder: Holder, first: int, entries: Sequence[int] | int, group: int = 0) -> None:
        """Write `entries` (blocks, or one start slot) into the sequence's row from column `first` on; -1 = none."""
        table = self.group_tables[group]
        if isinstance(entries, int):
            table[holder.row, first] = entries
        else:
            table[holder.row, first : first + len(entries)] = entries
        self._dirty.add(holder.row)

    def _books(self, asked: int | None) -> Books:
        """The books now, while the queue's head is refused `asked` slots (None = it is not refused)."""
        used, finished, reserved = self._used, self._finished, self._reserved
        over, rounding, cached = self._over, self._rounding, self.cached_slots
        unheld = self.capacity - used - finished - reserved - over - rounding
        if asked is None:
            return Books(used, finished, reserved, over, rounding, cached, 0, 0, unheld - cached)
        return Books(used, finished, reserved, over, rounding, cached, *unheld_columns(unheld, cached, asked))

    def _held(self) -> list[int]:
        """Held and cached units now: the first six columns of the books, then `extra_columns`."""
        if not self._by_layer:
            return list(self._books(None)[:6])
        groups = self.group_books()
        kinds: dict[str, list[int]] = {}
        for kept, columns in zip(self.kept, groups, strict=True):
            kinds[kept.name] = [a + b for a, b in zip(kinds.get(kept.name, [0] * 9), columns, strict=True)]
        sums = [sum(column) for column in zip(*groups, strict=True)]
        each = [number for columns in kinds.values() for number in columns] if len(kinds) > 1 else []
        return [*sums, *each]

    def _grow_by_layer(self, holder: Holder, tokens: int) -> int:
        """`grow`, if layers keep different tokens: first frees what no layer reads again, even if then refused."""
        self.free_unread(holder)
        if tokens > holder.room:
            added = 0
            if tokens > self._fits(holder):
                added = self.widen(holder, tokens)
                if not added:
                    return 0
            holder.held += added
            if holder.promise:
                holder.promise = max(holder.promise, tokens)
            self._update_ledger(holder, tokens)
        return holder.room

    def _fits(self, holder: Holder) -> int:
        """Tokens of `holder` that have room in every group."""
        ends = [part.end for part, kept in zip(self.occupied(holder), self.kept, strict=True) if kept.token_units]
        return min(ends, default=self.max_model_len)

    def _update_ledger(self, holder: Holder, tokens: int) -> None:
        """Enter what `holder` holds into the ledger; set `room` so that `grow` is called when it has work to do."""
        assert self._ledger is not None
        parts, room = self.occupied(holder), self.max_model_len
        for part, kept, grid in zip(parts, self.kept, self.grids, strict=True):
            if kept.token_units:
                room = min(room, part.end)
                if kept.reach:
                    room = min(room, kept.until(part.first, grid.block_size or 1))
        holder.room = max(room, tokens)
        self._ledger.update(holder, parts)

    def _queue_copy(self, source: list[tuple[int, int]], target: list[tuple[int, int]], first: int, last: int) -> None:
        """Queue the copy of tokens `first` to `last` - 1 from the slots of `source` to those of `target`."""
        here, there = iter(spans_from(source, first)), iter(spans_from(target, first))
        (start, left), (to, room), tokens = (0, 0), (0, 0), last - first
        while tokens > 0:
            if not left:
                start, left = next(here)
            if not room:
                to, room = next(there)
            length = min(tokens, left, room)
            self._moves.append(Move("copy", start, to, length))
            start, left, to, room, tokens = start + length, left - length, to + length, room - length, tokens - length

    def _check(self, seqs: Sequence[Holder], count: int, need: int) -> None:
        """Raise AllocatorError unless this group may be admitted."""
        for holder in seqs:
            if holder.row >= 0:
                raise AllocatorError(f"{holder.name} is admitted already")
            if not 0 < need <= self.max_model_len:
                raise AllocatorError(f"{holder.name} asks for {need} tokens, not 1 to {self.max_model_len}")
        if len(seqs) != count:
            names = ", ".join(holder.name for holder in seqs)
            raise AllocatorError(f"{count} sequences are asked for, but given are {len(seqs)}: {names}")
        if count > 1 and len(set(map(id, seqs))) < count:
            twice = next(holder for i, holder in enumerate(seqs) if any(holder is other for other in seqs[:i]))
            raise AllocatorError(f"{twice.name} is listed twice in a group")

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
        if self._ledger is not None:
            return
        used, reserved, over, rounding = split(holder)
        self._used += used
        self._reserved += reserved
        self._over += over
        self._rounding += rounding
        if holder.stored:  # a hit: slots that others hold too are in the books already
            live, finished = self.shared(holder)
            self._used -= live
            self._finished -= finished

    def _leave(self, holder: Holder) -> None:
        used, reserved, over, rounding = split(holder)
        self._used -= used
        self._reserved -= reserved
        self._over -= over
        self._rounding -= rounding

    def _shift(self, before: tuple[int, int, int, int], after: tuple[int, int, int, int]) -> None:
        self._used += after[0] - before[0]
        self._reserved += after[1] - before[1]
        self._over += after[2] - before[2]
        self._rounding += after[3] - before[3]

    def _close(self, holder: Holder) -> None:
        if self._ledger is not None:
            self._ledger.forget(holder)
            for table in self.group_tables:
                table[holder.row] = -1
        else:
            live, finished = self.shared(holder)
            if holder.finished:
                self._finished -= holder.held - live - finished
            else:
                self._leave(holder)
                self._used += live
                self._finished += finished
        self.release(holder)
        del self._holders[holder.row]
        self._drop_row(holder)
        holder.stored = holder.room = holder.held = holder.promise = holder.final = 0
        holder.finished = False
