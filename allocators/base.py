"""The contract of a KV-cache allocator, and the books that say where every slot is.

To write an allocator, subclass `Allocator` and write five methods, each about one sequence at a time:

    footprint(tokens)        slots that many tokens take in an empty pool, rounding included; None = never fits
    place(holder, tokens)    find slots for a new sequence; slots it then holds, or None when there is no room
    widen(holder, tokens)    make room for a sequence that outgrew its slots; more slots, or 0 when there is no room
    release(holder)          give all slots of a sequence back
    spans(holder)            the runs of slots a sequence holds, in token order (for the checker and for copies)

and write where the sequence lies into its row of `tables` (`set_row`). Everything else, that is the ledger, groups that
are admitted as a whole, refusals that change nothing, the books and the errors for a misuse, is done here.
A call that answers "refused" has changed nothing.

A placement that lets sequences share slots sets `shares` and says three things more: `lookup` (what of a sequence is
there already; its `place` then finds `holder.stored` set to that), `shared` (which of its slots others hold too) and
`cached_spans`. One whose forks share sets `forks_share` and writes `fork`; one that can put sequences into host memory
writes `swap`.

Layers may keep different tokens: all, those of a window or a chunk, or a state of fixed size (`Kept`). A placement that
takes no `layout` keeps every token in every layer; its books say what no layer reads again. One that knows better takes
`layout` (a `KVLayout`) and hands `layout.kept` on to `Allocator.__init__`. Then it counts in the units of the layout
(bytes), has a table for each group of layers (`group_tables`, see `Grid`) and says two things more: `occupied` (what of
a sequence lies where, by group) and `trim` (give back what no layer reads again, asked before it grows).
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

__all__ = [
    "NO_HIT", "NO_KEYS", "Allocator", "AllocatorError", "Ask", "Books", "Grid", "Growth", "Hit", "Holder", "KVLayout",
    "Kept", "LayoutBooks", "Move", "Part", "split",
]  # fmt: skip


class Grid(NamedTuple):
    """Where the entries of a group's table point to, in units.

    Attributes:
        block_size: tokens in a block; 0 = an entry is where an extent starts, in tokens.
        stride: units from one block to the next.
        origin: where block 0, or token 0, lies.
        ring: tokens after which an extent begins again; 0 = never.
    """

    block_size: int
    stride: int = 1
    origin: int = 0
    ring: int = 0


def _width(grid: Grid, kept: Kept, capacity: int, max_model_len: int) -> int:
    """Columns of a group's table: as long as a sequence may get, or as a pool can hold that gives nothing back."""
    longest = max_model_len if kept.reach else min(max_model_len, capacity)
    return -(-longest // grid.block_size) if grid.block_size else 1


class Allocator(ABC):
    """The base of every allocator: the ledger, the rows and the books; subclasses place slots.

    Args:
        capacity: slots in the pool (units, where layers keep different tokens), > 0.
        max_model_len: longest sequence that may be stored, in tokens, > 0.
        kept: what each group of layers keeps; by default one group that keeps all, in slots.
        grids: where the entries of each group's table point to; by default blocks, or extents, of `block_size` tokens.

    Attributes:
        block_size: slots in a block, or 0 where a sequence is one extent (its row holds the start slot).
        tables: ``[rows, width]`` int32, one row per admitted sequence; rows are reused, the array may be replaced by a
            larger one.
        group_tables: such a table for each group; `tables` is the first. A sequence has the same row in all.
        group_layers: where layers keep different tokens, the model's layers of each group, in the order in which their
            pages lie in its blocks; () = not told, so that it is good for simulation only.
        grows: False where a placement cannot widen a sequence (then `on_demand` makes no sense with it).
        reserves: False where it keeps no promise (then only `on_demand` makes sense).
        shares: whether sequences may come to hold the same slots because `lookup` found them; by default, whether there
            is a `lookup`.
        can_fork: whether `fork` may be called.
        forks_share: whether `fork` of a sequence without a promise shares its slots, so that it takes none.
        host_capacity: slots of the host pool that `swap` moves sequences to; 0 = it can't.
        grain: units that are handed out together: a block, or 1.
        step_tokens: most tokens of a sequence that are computed in one step.
        null_blocks: blocks that nobody ever gets.
        cuts: whether pieces of a prompt must end where `piece` says.
        total: what the books sum to, in the units of the layout.
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
    cuts: bool = False

    def __init__(self, capacity: int, max_model_len: int, kept: Sequence[Kept] = (SLOT,),
                 grids: Sequence[Grid] | None = None) -> None:  # fmt: skip
        for key, value in (("capacity", capacity), ("max_model_len", max_model_len)):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{key} must be a positive whole number of tokens, got {value!r}")
        self.capacity = self.total = capacity
        self.max_model_len = self.step_tokens = max_model_len
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
        """Slots that `tokens` tokens of one sequence take in an empty pool, or None if they never fit."""

    def takes(self, tokens: int) -> str:
        """What `tokens` tokens that never fit would take, in words: "a lane of 2048 slots"; "" where it is plain.

        For the message that says so. Override it where a sequence takes more slots than it has tokens.
        """
        return "" if tokens > self.capacity else f"more than {type(self).__name__} has for one sequence"

    @abstractmethod
    def place(self, holder: Holder, tokens: int) -> int | None:
        """Give a new sequence room for `tokens`; the slots it then holds, or None (refused, nothing changed).

        `holder.stored` of the tokens are there already, as `lookup` said: 0 unless this placement shares slots.
        """

    def widen(self, holder: Holder, tokens: int) -> int:
        """Give a placed sequence room for `tokens` in all; slots added, or 0 (refused, nothing changed)."""
        return 0

    @abstractmethod
    def release(self, holder: Holder) -> None:
        """Give back every slot of `holder`."""

    @abstractmethod
    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        """(first slot, slots) of each run that `holder` holds, in token order, group after group."""

    def fits(self, prompt: int, tokens: int, whole: bool, piece: int) -> bool:
        """Whether a sequence that begins with `prompt` tokens and ends with `tokens` could be stored if it were alone.

        Args:
            whole: whether all of the prompt must fit before a piece of it is admitted.
            piece: tokens of it that are computed in one step.
        """
        return self.footprint(tokens) is not None

    # ---- where layers keep different tokens -----------------------------------------------------------------------

    def by_layers(self, kept: Sequence[Kept]) -> None:
        """Keep the books of each group of layers by itself, though there may be one only."""
        rings = [grid.ring for grid in self.grids]
        self._ledger, self._by_layer, self.can_fork = Ledger(kept, rings), True, False

    def serve(self, layout: KVLayout, total: int) -> None:
        """Keep the tokens of a model with that layout, which this placement was made without: all, in every layer.

        Args:
            total: units of the layout in the pool, what is left of it behind the last slot included; so is room for
                the states of recurrent layers, which this placement does not hand out.
        """
        kept = layout.kept
        if kept != (SLOT,):
            self.kept, self.total, self._by_layer = kept, total, True

    def occupied(self, holder: Holder) -> Sequence[Part]:
        """What of `holder` its units can hold, by group. By default its first tokens, as many in each group."""
        states = sum([kept.state_units for kept in self.kept])
        tokens = (holder.held - states) // max(sum([kept.token_units for kept in self.kept]), 1)
        return [
            Part(0, 0, kept.state_units, 1) if kept.state_units else Part(0, tokens, tokens * kept.token_units)
            for kept in self.kept
        ]

    def trim(self, holder: Holder) -> int:
        """Give back what no layer will read again now that `holder.stored` tokens are there; the units given back."""
        return 0

    def unread(self, kept: Kept) -> int:
        """Slots of live sequences whose tokens no layer of a group will read again (each counted once)."""
        live = [holder.stored for holder in self._holders.values() if not holder.finished]
        return int(behind(kept, np.array(live, dtype=np.int64)).sum())

    # ---- what schedulers call --------------------------------------------------------------------------------------

    def expect_steps(self, tokens: int) -> None:
        """A scheduler says how many tokens of a sequence it computes in one step at most."""
        self.step_tokens = min(tokens, self.max_model_len)

    def piece(self, holder: Holder, hit: Hit, count: int, most: int) -> int:
        """How many of the next `count` tokens of a prompt are to be computed in one step; 0 = it has to wait.

        Asked where this placement `cuts`.

        Args:
            hit: what is to be reused, of a sequence that waits.
            most: tokens that it could be given at most in any step.
        """
        return count

    def lookup(self, holder: Holder, most: int) -> Hit:
        """How many of the first `most` tokens of a sequence could be reused if it were admitted now."""
        return NO_HIT

    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        """Admit a whole group or nothing.

        Returns:
            Tokens already present (`ask.hit.tokens`, which each sequence then has stored), or None when refused.

        Raises:
            AllocatorError: a sequence of the group is admitted already or listed twice, asks for no token or past
                `max_model_len`, the group is not of `ask.count`, a hit is claimed that is not there, or the placement
                answers something that is no number of slots.
        """
        need = ask.need
        if len(seqs) != 1 or ask.count != 1 or seqs[0].row >= 0 or not 0 < need <= self.max_model_len:
            self._check(seqs, ask.count, need)
        if self.lacks(ask):
            return None
        for i, holder in enumerate(seqs):
            holder.row = self._take_row()
            holder.stored = ask.hit.tokens
            held = self.place(holder, need)
            if held is None:
                holder.stored = 0
                self._drop_row(holder)
                for placed in reversed(seqs[:i]):  # so that rows and slots lie in the order they lay before
                    self._close(placed)
                return None
            if type(held) is not int or (held < need and self._ledger is None):
                raise AllocatorError(f"{type(self).__name__}.place must return {need} slots or more, not {held!r}")
            holder.held = holder.room = held
            holder.promise, holder.final = ask.promise, ask.final
            self._enter(holder)
            if self._ledger is not None:
                self._tell(holder, need)
        return ask.hit.tokens

    def lacks(self, ask: Ask) -> bool:
        """Whether `ask` is refused for the number of free slots alone, wherever they lie."""
        need = ask.need
        slots = self.footprint(ask.gate if ask.gate > need else need)
        if slots is not None and type(slots) is not int:
            raise AllocatorError(f"{type(self).__name__}.footprint must return slots or None, not {slots!r}")
        return slots is None or self.free_slots - ask.spare < (slots - ask.hit.held) * ask.count

    def grow(self, holder: Holder, tokens: int) -> int:
        """Room for `tokens` tokens in all. Skip the call while ``holder.room >= tokens``.

        What no layer will read again is given back first, and stays so when it is refused.

        Returns:
            The new room in tokens, or 0 when refused.

        Raises:
            AllocatorError: the sequence holds nothing or is finished, or would pass `max_model_len`.
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
        if not holder.promise and holder.held + added <= holder.final:  # the usual case: it will fill all of them
            self._reserved += added
            holder.held += added
            holder.room += added
            return holder.room
        before = split(holder)
        holder.held += added
        holder.room += added
        if holder.promise:
            holder.promise = max(holder.promise, tokens)
        self._shift(before, split(holder))
        return holder.room

    def grow_each(self, seqs: Sequence[Holder]) -> int:
        """`grow` each, in order, by the next token, which it has no room for, until one is refused; how many were not.

        For all that decode in a step. Override it where many can be given room at once.
        """
        for granted, holder in enumerate(seqs):
            if not self.grow(holder, holder.stored + 1):
                return granted
        return len(seqs)

    def give_back(self, holder: Holder) -> None:
        """Give back what no layer will read again of `holder`, as `grow` does before it asks for more."""
        if self._ledger is not None:
            holder.held -= self.trim(holder)
            self._tell(holder, holder.stored)

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """Up to `rounds` further steps of one token for every sequence: `grow` in order, then `commit`, each time.

        Ends before the first step in which somebody is refused room (who asked before may have got it), or in which
        slots would have to be moved or a step delayed: that is timed in a step of its own.
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
        """`counts[i]` more tokens of `seqs[i]` are stored, those scheduled for this step included, each told once.

        Their room was granted before. What is committed may be relied on by whatever is admitted next.
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
            if stored > holder.final:  # the end was not declared truly: recompute this sequence's columns
                after = split(holder)
                holder.stored = stored - count
                self._shift(split(holder), after)
                holder.stored = stored
                within_final -= count
        self._used += within_final
        self._reserved -= within_final

    def _store(self, seqs: Sequence[Holder], count: int) -> bool:
        """`count` more tokens of each of `seqs` are stored; False, and nothing changed, if one would pass its end."""
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
        """Let `child` store the same tokens as `parent`, instead of what it stored before.

        Here the child has slots of its own, those it was admitted to or new ones, and the tokens are copied (the copies
        are queued as moves), less the first `common` that both store already.

        Returns:
            False when there is no room (nothing changed).

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
        """Give a sequence's slots back; with `hold`, only note that it finished and keeps them until `free`.

        Raises:
            AllocatorError: it holds nothing (freed twice, or never admitted).
        """
        self._known(holder)
        if not hold:
            self._close(holder)
        elif holder.finished:
            raise AllocatorError(f"{holder.name} is held as finished already")
        elif self._ledger is not None:
            holder.finished = True
            self._ledger.tell(holder, self.occupied(holder))
        else:
            live, _ = self.shared(holder)
            self._leave(holder)
            self._used += live
            self._finished += holder.held - live
            holder.finished = True

    def swap(self, group: Sequence[Holder], to_host: bool, spare: int = 0) -> bool:
        """Move a whole group between the pool and the host, or nothing; what it shares stays shared.

        While it is there its sequences hold nothing here but keep what they `stored` and their promise. Not supported
        unless `host_capacity` says so.

        Args:
            spare: slots that must stay free in the pool when the group has come back.

        Returns:
            False when there is no room (nothing changed).
        """
        return False

    @property
    def by_slot(self) -> bool:
        """Whether a sequence lies in the same slots for all layers, whatever they keep of it."""
        return self._ledger is None

    @property
    def refusals_last(self) -> bool:
        """Whether who is refused room now is refused as long as the others do nothing but decode.

        Not where what they give back, or a prefix that they compute, might let it in.
        """
        return not self.shares and type(self).trim is Allocator.trim

    @property
    def host_used(self) -> int:
        """Slots of the host pool that hold swapped sequences."""
        return 0

    @property
    def saved_slots(self) -> int:
        """Slots that live sequences would hold besides if none of them shared any."""
        return 0

    def take_moves(self) -> list[Move]:
        """Copies that must run before this step's attention, in order; the queue is emptied."""
        moves, self._moves = self._moves, []
        return moves

    def take_delay(self) -> int:
        """Nanoseconds that a simulated step must wait for what was done since the last call, beside its moves.

        Such as mapping memory; a real runner measures it where there is any.
        """
        return 0

    @property
    def pending_moves(self) -> tuple[Move, ...]:
        """What the next `take_moves` will return."""
        return tuple(self._moves)

    def reserve_rows(self, rows: int) -> None:
        """Have at least `rows` rows in `tables`, so that the array is not replaced before more are needed."""
        have = len(self.tables)
        if rows > have:
            for at, table in enumerate(self.group_tables):
                more = np.full((rows - have, table.shape[1]), -1, dtype=np.int32)
                self.group_tables[at] = np.vstack([table, more])
            self.tables = self.group_tables[0]
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

    def cached_spans(self) -> list[tuple[int, int]]:
        """(first slot, slots) of each run kept only for prefix reuse (for the checker)."""
        return []

    def shared(self, holder: Holder) -> tuple[int, int]:
        """Slots of `holder` that another live sequence holds too, and those that only finished ones hold beside it.

        Tokens of `holder` are stored in all of them. The books count a shared slot once.
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
        """Slots that could be handed out now, one by one; a placement that can't use all of them says less."""
        return self.unheld

    @property
    def holders(self) -> list[Holder]:
        """Every sequence that holds slots, finished lanes of a static batch included."""
        return list(self._holders.values())

    def memory(self, blocked: Ask | None = None) -> Books | LayoutBooks:
        """The books now, in O(1); in O(sequences) and in the units of the layout where layers keep different tokens.

        Args:
            blocked: what the queue's head was refused for lack of memory.
        """
        if not self._by_layer:
            return self._books(blocked.slots if blocked else None)
        groups = self.group_books()
        held, cached = sum([sum(columns) for columns in groups]), sum([columns[5] for columns in groups])
        asked = None if blocked is None else self.asked(blocked)
        return in_sum(groups, cached, unheld_columns(self.total - held + cached, cached, asked))

    def group_books(self) -> list[list[int]]:
        """What is held and cached for each group of layers, in the order of `LayoutBooks.held`."""
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
        """What a pool without rounding would have to hold free for `ask`, in the units of the books."""
        if not self._by_layer:
            return ask.slots
        if self._ledger is None:
            return ask.slots * sum([kept.token_units for kept in self.kept])
        tokens = max(ask.tokens, ask.promise, ask.gate)
        each = sum([k.token_units * (tokens - k.behind(tokens)) + k.state_units for k in self.kept])
        return ask.count * (each - ask.hit.held) + ask.spare

    @property
    def more_columns(self) -> tuple[str, ...]:
        """Names of what `more_books` says; none where all layers keep all tokens."""
        if not self._by_layer:
            return ()
        names = list(dict.fromkeys([kept.name.replace(" ", "_") for kept in self.kept]))
        columns = LayoutBooks._fields[:6] + LayoutBooks._fields[9:]
        each = [f"{column}.{name}" for name in names for column in columns] if len(names) > 1 else []
        return (*LayoutBooks._fields[9:], *each)

    def more_books(self) -> list[int]:
        """What the nine columns of `Books` do not say: the last three of `LayoutBooks`, then what each kind of groups
        holds, if there are several.
        """
        return self._held()[6:]

    def facts(self) -> dict[str, float]:
        """What a summary should say of this pool besides, by name; such as what an engine prints of it."""
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
        """The books now, while the queue's head was refused `asked` slots (None = nobody was)."""
        used, finished, reserved = self._used, self._finished, self._reserved
        over, rounding, cached = self._over, self._rounding, self.cached_slots
        unheld = self.capacity - used - finished - reserved - over - rounding
        if asked is None:
            return Books(used, finished, reserved, over, rounding, cached, 0, 0, unheld - cached)
        return Books(used, finished, reserved, over, rounding, cached, *unheld_columns(unheld, cached, asked))

    def _held(self) -> list[int]:
        """What is held and cached now: six columns of the books, then `more_columns`."""
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
        """`grow`, where layers keep different tokens: first gives back what no layer reads again, even if refused."""
        self.give_back(holder)
        if tokens > holder.room:
            added = 0
            if tokens > self._fits(holder):
                added = self.widen(holder, tokens)
                if not added:
                    return 0
            holder.held += added
            if holder.promise:
                holder.promise = max(holder.promise, tokens)
            self._tell(holder, tokens)
        return holder.room

    def _fits(self, holder: Holder) -> int:
        """Tokens of `holder` that there is room for in every group."""
        ends = [part.end for part, kept in zip(self.occupied(holder), self.kept, strict=True) if kept.token_units]
        return min(ends, default=self.max_model_len)

    def _tell(self, holder: Holder, tokens: int) -> None:
        """Enter what `holder` holds; it need not ask again before there is no room, or something to be given back."""
        assert self._ledger is not None
        parts, room = self.occupied(holder), self.max_model_len
        for part, kept, grid in zip(parts, self.kept, self.grids, strict=True):
            if kept.token_units:
                room = min(room, part.end)
                if kept.reach:
                    room = min(room, kept.until(part.first, grid.block_size or 1))
        holder.room = max(room, tokens)
        self._ledger.tell(holder, parts)

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
        """A group that may be asked for."""
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
        if holder.stored:  # a hit: what others hold too is in the books already
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
