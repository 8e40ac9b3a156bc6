"""A passive checker around any allocator: recomputes the books from scratch and enforces the contract after each call.

It plays the device, too: moves and writes are carried out on a `Shadow`, and every sequence must read its own tokens.
Slow on purpose (it looks at every slot). On in the tests and with `debug=true`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from allocators.base import Allocator, Ask, Books, Growth, Hit, Holder, LayoutBooks, Move
from allocators.recount import COLUMNS, Faulty, Recount, column_values
from allocators.shadow import Device


class ContractError(AssertionError):
    """An allocator broke the contract; the message says which rule, for which sequence."""


class Checked(Allocator):
    """`allocator`, whose every call that changes something is checked; all else of it is as it is."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.seqs: dict[Holder, None] = {}  # in the order of admission
        self.family: dict[Holder, int] = {}  # only forks of one sequence may share slots without prefix reuse
        self.count = Recount(allocator)
        self.groups = range(len(self.count.kept))
        self.device = Device(allocator, self.count)
        self.free_at_first: int = allocator.free_slots

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocator, name)

    def lookup(self, holder: Holder, most: int) -> Hit:
        before = self._snapshot()
        hit = self.allocator.lookup(holder, most)
        units = hit.tokens if self._ledger is None else self.capacity
        sound = 0 <= hit.held <= units and 0 <= hit.tokens <= most
        self._require(sound, f"a lookup of {most} tokens of {holder.name} finds {hit}")
        self._require(self._snapshot() == before, "a lookup changed something")
        return hit

    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        before, empty = self._snapshot(), not self.seqs
        hit = self.allocator.admit(seqs, ask)
        if hit is None:
            fits = self.allocator.footprint(max(ask.need, ask.must_fit)) is not None
            alone = empty and len(seqs) == 1 and not ask.spare
            self._require(not (alone and fits), f"an empty pool refused {seqs[0].name}, which has a footprint in it")
            self._require(self._snapshot() == before, "a refused admit changed something")
            self._require(all(s.row < 0 and not s.held for s in seqs), "a refused admit left slots with its sequence")
            return None
        self._require(hit == ask.hit.tokens, f"admit must return the hit asked for, {ask.hit.tokens}, not {hit!r}")
        for seq in seqs:
            self.seqs[seq] = None
            self.device.admit(seq, hit)
            self.family[seq] = max(self.family.values(), default=0) + 1
            self._require(seq.stored == hit, f"{seq.name} was admitted with {seq.stored} stored tokens, not {hit}")
            room = seq.room
            self._require(room >= ask.need, f"{seq.name} was admitted with room for {room} of {ask.need} tokens")
        if empty and seqs:
            footprint = self.allocator.footprint(ask.need)
            held = seqs[0].held
            less = held < (footprint or 0) and self.count.forgets  # what was found may be without what nobody reads
            self._require(less or held == footprint, f"{seqs[0].name} took {held} slots, not its {footprint}")
        self.check()
        return hit

    def grow(self, holder: Holder, tokens: int) -> int:
        self.free_unread(holder)
        before = self._snapshot()
        room = self.allocator.grow(holder, tokens)
        if room:
            self._require(room >= tokens, f"grow gave {holder.name} room {room} for {tokens} tokens")
            self._require(room == holder.room, f"grow returned {room}, but {holder.name}.room is {holder.room}")
        else:
            self._require(self._snapshot() == before, "a refused grow changed something")
        self.check()
        return room

    def free_unread(self, holder: Holder) -> None:
        free, held = self.allocator.free_slots, holder.held
        self.allocator.free_unread(holder)
        given = held - holder.held
        self._require(given >= 0, f"{holder.name} holds more after it gave back what no layer reads")
        own = given == self.allocator.free_slots - free or self.allocator.shares
        self._require(own, f"{holder.name} gave {given} units back, and {self.allocator.free_slots - free} became free")
        self.check()

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        before, books = [seq.stored for seq in seqs], self.allocator.memory()
        growth = self.allocator.extend(seqs, rounds)
        done = growth.rounds
        self._require(done <= rounds, f"extend granted {done} of {rounds} rounds")
        for seq, stored in zip(seqs, before, strict=True):
            self._require(seq.stored == stored + done, f"extend left {seq.name} with {seq.stored} stored tokens")
            self._require(seq.stored <= seq.room, f"{seq.name} stores {seq.stored} tokens in room for {seq.room}")
        self.device.skip(seqs, done, done < rounds)
        after = growth.books(books, len(seqs))
        self._require(done < rounds or not after or after[-1] == self.allocator.memory(), "extend told other books")
        self.check()
        if not self.allocator.pending_moves:  # then the step before is under way, and the further ones are computed
            self._step()
        return growth

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        before = [seq.stored for seq in seqs]
        self.allocator.commit(seqs, counts)
        for seq, stored, count in zip(seqs, before, counts, strict=True):
            self._require(seq.stored == stored + count, f"commit left {seq.name} with {seq.stored} stored tokens")
            self._require(seq.stored <= seq.room, f"{seq.name} stores {seq.stored} tokens in room for {seq.room}")
        self.check()

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        before = self._snapshot()
        lay = self.device.lay(parent) if parent in self.seqs else None
        done = self.allocator.fork(parent, child, common)
        if done:
            self.seqs[child] = None
            self.device.fork(parent, child, lay)
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
                del self.seqs[holder]
                self._require(holder.row < 0 and not holder.held, f"{holder.name} is on the host and holds slots")
            else:
                self.seqs[holder] = None
        self._require(0 <= self.host_used <= self.host_capacity, f"the host pool uses {self.host_used} slots")
        self.check()
        return done

    def free(self, holder: Holder, hold: bool = False) -> None:
        self.allocator.free(holder, hold)
        if not hold:
            self.seqs.pop(holder, None)
            self.device.free(holder)
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
        self.device.shadow.move(moves)
        self._step()
        return moves

    def memory(self, blocked: Ask | None = None) -> Books | LayoutBooks:
        books = self.allocator.memory(blocked)
        with _as_contract():
            naive = self.count.books({seq: self.family[seq] for seq in self.seqs}, self.allocator.shares)
            naive = self.count.in_units(naive, self.seqs)
        for column, slots, said in zip(COLUMNS, naive, column_values(books), strict=True):
            self._require(said == slots, f"the books say {said} slots are {column}; counted one by one: {slots}")
        cached = self.count.units(sum(length for _, length in self.allocator.cached_spans()))
        self._require(books.cached == cached, f"the books say {books.cached} slots are cached; there are {cached}")
        self._require(min(books) >= 0, f"a column of the books is negative: {books}")
        total = sum(books)
        self._require(total == self.total, f"the books sum to {total} slots, the pool has {self.total}")
        return books

    def check(self) -> None:
        """All rules that hold at any time."""
        rows = [holder.row for holder in self.seqs]
        self._require(len(set(rows)) == len(rows), "two sequences share a row of the tables")
        if not rows:
            free, first = self.allocator.free_slots, self.free_at_first
            self._require(free == first, f"nobody holds anything, and {free} slots are free; at first it were {first}")
        self.memory()
        for holder in self.seqs:
            held, room = 0, holder.room if self._ledger is None else 0
            self._require(room <= holder.held, f"{holder.name} has room {room} in {holder.held} slots")
            for group in self.groups:
                with _as_contract():
                    cells = self.count.held(holder, group)
                held += len(cells) * self.count.cell
                where = self.device.where(holder, group)
                lies = cells[: holder.stored] if self._ledger is None else np.intersect1d(where, cells)
                right = np.array_equal(where, lies) if self._ledger is None else len(lies) == len(where)
                self._require(right, f"the table row of {holder.name} is not where it lies")
            self._require(held == holder.held, f"{holder.name} holds {held} slots, the ledger says {holder.held}")
            if self._ledger is not None:
                with _as_contract():
                    tables = [cell for group in self.groups for cell in self.count.held(holder, group).tolist()]
                spans = sorted(self.count.runs(self.spans(holder)).tolist())
                self._require(sorted(tables) == spans, f"the table rows of {holder.name} are not where it lies")

    def _step(self) -> None:
        lost = self.device.step(self.seqs)
        self._require(
            lost is None,
            f"{lost and lost.name} does not read what it wrote: a move is missing or wrong, or somebody wrote into its "
            "slots",
        )

    def _snapshot(self) -> Any:
        books = self.allocator.memory()
        places = {seq: [self.count.held(seq, group).tolist() for group in self.groups] for seq in self.seqs}
        return books, self.allocator.free_slots, places, self.allocator.cached_spans(), self.allocator.pending_moves

    @staticmethod
    def _require(holds: bool, rule: str) -> None:
        if not holds:
            raise ContractError(rule)


def _passed_on(name: str) -> property:
    return property(lambda self: getattr(self.allocator, name))


for _name in dir(Allocator):
    if not _name.startswith("__") and _name not in vars(Checked):
        setattr(Checked, _name, _passed_on(_name))
_checked: Any = Checked  # compiled, the base is no ABC and has no such attribute
_checked.__abstractmethods__ = frozenset()


@contextmanager
def _as_contract() -> Iterator[None]:
    try:
        yield
    except Faulty as error:
        raise ContractError(str(error)) from None
