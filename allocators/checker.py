"""A passive checker around any allocator: recomputes the books from scratch and enforces the contract after each call.

It plays the device, too: moves and writes are carried out on a `Shadow`, and every sequence must read its own tokens.
Slow on purpose (it looks at every slot). On in the tests and with `debug=true`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from allocators.base import Allocator, Ask, Books, Growth, Hit, Holder, Move
from allocators.shadow import Shadow

COLUMNS = ("used", "finished_held", "reserved", "over_reserved", "rounding")


class ContractError(AssertionError):
    """An allocator broke the contract; the message says which rule, for which sequence."""


class Checked:
    """Wraps `allocator`; every attribute is the allocator's own, every call that changes something is checked."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.holders: dict[Holder, None] = {}  # in the order of admission
        self.shadow = Shadow(allocator.capacity, allocator.host_capacity)
        self.hits: dict[Holder, int] = {}  # tokens that others write or wrote, until the step is under way
        self.family: dict[Holder, int] = {}  # only forks of one sequence may share slots without prefix reuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocator, name)

    def lookup(self, holder: Holder, most: int) -> Hit:
        before = self._snapshot()
        hit = self.allocator.lookup(holder, most)
        self._require(0 <= hit.held <= hit.tokens <= most, f"a lookup of {most} tokens of {holder.name} finds {hit}")
        self._require(self._snapshot() == before, "a lookup changed something")
        return hit

    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        before, empty = self._snapshot(), not self.holders
        hit = self.allocator.admit(seqs, ask)
        if hit is None:
            fits = self.allocator.footprint(max(ask.need, ask.gate)) is not None
            alone = empty and len(seqs) == 1 and not ask.spare
            self._require(not (alone and fits), f"an empty pool refused {seqs[0].name}, which has a footprint in it")
            self._require(self._snapshot() == before, "a refused admit changed something")
            self._require(all(s.row < 0 and not s.held for s in seqs), "a refused admit left slots with its sequence")
            return None
        self._require(hit == ask.hit.tokens, f"admit must return the hit asked for, {ask.hit.tokens}, not {hit!r}")
        for seq in seqs:
            self.holders[seq] = None
            self.shadow.admit(seq)
            if hit:
                self.hits[seq] = hit
            self.family[seq] = max(self.family.values(), default=0) + 1
            self._require(seq.stored == hit, f"{seq.name} was admitted with {seq.stored} stored tokens, not {hit}")
            room = seq.room
            self._require(room >= ask.need, f"{seq.name} was admitted with room for {room} of {ask.need} tokens")
        if empty and seqs:
            footprint = self.allocator.footprint(ask.need)
            self._require(seqs[0].held == footprint, f"{seqs[0].name} took {seqs[0].held} slots, not its {footprint}")
        self.check()
        return hit

    def grow(self, holder: Holder, tokens: int) -> int:
        before = self._snapshot()
        room = self.allocator.grow(holder, tokens)
        if room:
            self._require(room >= tokens, f"grow gave {holder.name} room {room} for {tokens} tokens")
            self._require(room == holder.room, f"grow returned {room}, but {holder.name}.room is {holder.room}")
        else:
            self._require(self._snapshot() == before, "a refused grow changed something")
        self.check()
        return room

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        before, books = [seq.stored for seq in seqs], self.allocator.memory()
        growth = self.allocator.extend(seqs, rounds)
        done = growth.rounds
        self._require(done <= rounds, f"extend granted {done} of {rounds} rounds")
        for seq, stored in zip(seqs, before, strict=True):
            self._require(seq.stored == stored + done, f"extend left {seq.name} with {seq.stored} stored tokens")
            self._require(seq.stored <= seq.room, f"{seq.name} stores {seq.stored} tokens in room for {seq.room}")
        told = growth.books(books, len(seqs))
        self._require(done < rounds or not told or told[-1] == self.allocator.memory(), "extend told other books")
        self.check()
        if not self.allocator.pending_moves:  # then the step before is under way, and the further ones are computed
            self._write()
        return growth

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        before = [seq.stored for seq in seqs]
        self.allocator.commit(seqs, counts)
        for seq, stored, count in zip(seqs, before, counts, strict=True):
            self._require(seq.stored == stored + count, f"commit left {seq.name} with {seq.stored} stored tokens")
            self._require(seq.stored <= seq.room, f"{seq.name} stores {seq.stored} tokens in room for {seq.room}")
        self.check()

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        before, known = self._snapshot(), len(self.shadow.tokens.get(parent, ()))
        lay = self._addresses(parent)[:known] if parent in self.holders else np.empty(0, dtype=np.int64)
        done = self.allocator.fork(parent, child, common)
        if done:
            self.holders[child] = None
            if getattr(self.allocator, "shares", False):  # the parent may have given its copies of found tokens back
                self.shadow.adopt(parent, lay, self._addresses(parent)[:known])
            self.shadow.fork(parent, child)
            if len(self.shadow.tokens[child]) < child.stored:  # some are written in the coming step only
                self.hits[child] = child.stored
            self.family[child] = self.family[parent]
            self._require(child.stored == parent.stored, f"fork stored {child.stored} of {parent.stored} tokens")
        else:
            self._require(self._snapshot() == before, "a refused fork changed something")
        self.check()
        return done

    def swap(self, group: Sequence[Holder], to_host: bool, spare: int = 0) -> bool:
        before, stored, host = self._snapshot(), [holder.stored for holder in group], self.host_used
        done = self.allocator.swap(group, to_host, spare)
        self._require([holder.stored for holder in group] == stored, "a swap changed what is stored")
        if not done:
            self._require(self._snapshot() == before and self.host_used == host, "a refused swap changed something")
        for holder in group if done else ():
            if to_host:
                del self.holders[holder]
                self._require(holder.row < 0 and not holder.held, f"{holder.name} is on the host and holds slots")
            else:
                self.holders[holder] = None
        self._require(0 <= self.host_used <= self.host_capacity, f"the host pool uses {self.host_used} slots")
        self.check()
        return done

    def free(self, holder: Holder, hold: bool = False) -> None:
        self.allocator.free(holder, hold)
        if not hold:
            self.holders.pop(holder, None)
            self.hits.pop(holder, None)
            self.shadow.free(holder)
            self._require(holder.row < 0 and not holder.held, f"free left slots with {holder.name}")
        self.check()

    def take_moves(self) -> list[Move]:
        """A step begins: its moves run, its tokens are written, and everybody reads all they have."""
        moves = self.allocator.take_moves()
        for move in moves:
            ends = [self.host_capacity if move.kind == kind else self.capacity for kind in ("in", "out")]
            inside = move.source + move.length <= ends[0] and move.target + move.length <= ends[1]
            inside &= move.length > 0 and min(move.source, move.target) >= 0
            self._require(inside, f"{move} is not within the pool")
        self.shadow.move(moves)
        self._write()
        for holder in self.holders:
            self._require(
                self.shadow.reads(holder, self._addresses(holder)),
                f"{holder.name} does not read what it wrote: a move is missing or wrong, or somebody wrote into its "
                "slots",
            )
        return moves

    def memory(self, blocked: Ask | None = None) -> Books:
        books = self.allocator.memory(blocked)
        naive = self._count()
        for column, slots in zip(COLUMNS, naive, strict=True):
            told = getattr(books, column)
            self._require(told == slots, f"the books say {told} slots are {column}; counted one by one: {slots}")
        cached = sum(length for _, length in self.allocator.cached_spans())
        self._require(books.cached == cached, f"the books say {books.cached} slots are cached; there are {cached}")
        self._require(min(books) >= 0, f"a column of the books is negative: {books}")
        total = sum(books)
        self._require(total == self.capacity, f"the books sum to {total} slots, the pool has {self.capacity}")
        return books

    def check(self) -> None:
        """All rules that hold at any time."""
        rows = [holder.row for holder in self.holders]
        self._require(len(set(rows)) == len(rows), "two sequences share a row of the tables")
        self.memory()
        for holder in self.holders:
            slots = self._slots(holder)
            self._require(holder.room <= holder.held, f"{holder.name} has room {holder.room} in {holder.held} slots")
            self._require(
                len(slots) == holder.held, f"{holder.name} holds {len(slots)} slots, the ledger says {holder.held}"
            )
            stored = slots[: holder.stored]
            self._require(
                np.array_equal(self._addresses(holder), stored), f"the table row of {holder.name} is not where it lies"
            )

    def _write(self) -> None:
        """All tokens that are stored are written; what was found at an admission is known by then."""
        for holder, hit in self.hits.items():
            self.shadow.tokens[holder] = np.full(hit, -1)
        for holder in self.holders:
            self.shadow.write(holder, self._addresses(holder))
        for holder, hit in self.hits.items():
            found, own = self._addresses(holder)[:hit], self.shadow.tokens[holder][hit:]
            self.shadow.tokens[holder] = np.concatenate([self.shadow.slots[found], own])
        self.hits.clear()

    def _slots(self, holder: Holder) -> np.ndarray:
        runs = [np.arange(start, start + length) for start, length in self.allocator.spans(holder)]
        slots = np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)
        inside = not len(slots) or (slots.min() >= 0 and slots.max() < self.capacity)
        self._require(bool(inside), f"{holder.name} holds slots outside the pool")
        return slots

    def _addresses(self, holder: Holder) -> np.ndarray:
        """Where the kernels will look for the stored tokens."""
        tokens, row = np.arange(holder.stored), self.tables[holder.row]
        if not self.block_size:
            return row[0] + tokens
        return row[tokens // self.block_size] * self.block_size + tokens % self.block_size

    def _count(self) -> list[int]:
        """Slots in each column of `COLUMNS`, looking at every slot of every sequence; shared slots count once."""
        column = np.full(self.capacity, len(COLUMNS), dtype=np.int64)
        family = np.zeros(self.capacity, dtype=np.int64)
        shares = getattr(self.allocator, "shares", False)
        for holder in self.holders:
            slots, at = self._slots(holder), np.arange(holder.held)
            if holder.finished:
                codes = np.full(len(slots), 1)
            else:
                codes = np.select([at < holder.stored, at < holder.final, at < holder.promise], [0, 2, 3], 4)
            self._require(len(codes) == len(slots), f"{holder.name} holds {len(slots)} slots, not {holder.held}")
            np.minimum.at(column, slots, codes)
            mine = self.family[holder]
            self._require(shares or bool(np.isin(family[slots], (0, mine)).all()), "a slot has two owners")
            self._require(len(np.unique(slots)) == len(slots), f"{holder.name} holds a slot twice: it has two owners")
            family[slots] = mine
        for start, length in self.allocator.cached_spans():
            self._require(not family[start : start + length].any(), "a slot is held and counted as cached")
        return np.bincount(column, minlength=len(COLUMNS) + 1)[: len(COLUMNS)].tolist()

    def _snapshot(self) -> Any:
        books = self.allocator.memory()
        places = {seq: self.allocator.spans(seq) for seq in self.holders}
        return books, self.allocator.free_slots, places, self.allocator.cached_spans(), self.allocator.pending_moves

    @staticmethod
    def _require(holds: bool, rule: str) -> None:
        if not holds:
            raise ContractError(rule)
