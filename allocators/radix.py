"""Radix placement (SGLang's RadixAttention): tokens anywhere in the pool, found by their contents in a radix tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allocators.base import NO_KEYS, Allocator, AllocatorError, Growth, Hit, Holder
from allocators.books import pieces
from allocators.layout import Kept
from allocators.radix_tree import Node, RadixTree


class Radix(Allocator):
    """A slot for each token, taken on demand; whatever was stored stays in a radix tree until its slots are needed.

    Running and cached tokens share the pool. A hit is as long as the contents agree, to the token. What a sequence
    stored of its `common_tokens` can be found from `commit` on; all of it is kept when it is finished or preempted,
    until the slots are needed. Where two sequences computed the
    same tokens at the same time, only the first one's are found; the second keeps its copies, and what it stored after
    them is found once it is gone (its copies are given back then).

    Args:
        page_size: slots that are taken, compared and evicted together, a power of two from 1 to 256. Forks need 1.
    """

    grows = True
    shares = True
    forks_share = True

    def __init__(self, capacity: int, max_model_len: int, page_size: int = 1) -> None:
        if type(page_size) is not int or page_size not in {1, 2, 4, 8, 16, 32, 64, 128, 256}:
            raise ValueError(f"page_size must be a power of two from 1 to 256, got {page_size!r}")
        self.block_size = self.page_size = page_size
        super().__init__(capacity, max_model_len)
        self.can_fork = page_size == 1
        self.num_pages = capacity // page_size
        self.tree = RadixTree(page_size)
        self._free = np.arange(self.num_pages - 1, -1, -1, dtype=np.int32)  # a stack: its first `_num_free` entries
        self._num_free = self.num_pages
        self._lanes: dict[int, tuple[Node, int]] = {}  # by row: where its findable pages end in the tree, their number
        self._behind: dict[Holder, None] = {}  # sequences with stored tokens that the tree may not know of

    def footprint(self, tokens: int) -> int | None:
        pages = self._pages(tokens)
        return pages * self.page_size if pages <= self.num_pages else None

    def describe_footprint(self, tokens: int) -> str:
        return "" if tokens > self.capacity else pieces(tokens, self.page_size, "page")

    def lookup(self, holder: Holder, most: int) -> Hit:
        for seq in self._behind:
            self._show(seq, min(seq.stored, seq.common_tokens))
        self._behind.clear()
        found = self.tree.match(holder.token_keys(most), most // self.page_size)
        return Hit(found.pages * self.page_size, found.held * self.page_size)

    def place(self, holder: Holder, tokens: int) -> int | None:
        tree, size = self.tree, self.page_size
        hit, rest = divmod(holder.stored, size)
        found = tree.match(holder.token_keys(holder.stored), hit)
        if rest or found.pages < hit:
            raise AllocatorError(
                f"{holder.name} claims a prefix hit of {holder.stored} tokens; the pool holds {found.pages * size}"
            )
        pages = self._pages(tokens)
        if pages - found.held > self._num_free + tree.num_cached:
            return None
        node = tree.reach(found)
        tree.hold(node)
        self._lanes[holder.row] = node, hit
        self._write(holder, 0, tree.pages_to(node))
        self._write(holder, hit, self._take(pages - hit))
        return pages * size

    def widen(self, holder: Holder, tokens: int) -> int:
        have = holder.held // self.page_size
        count = self._pages(tokens) - have
        if count > self._num_free + self.tree.num_cached:
            return 0
        if count == 1:  # what each decode step asks for
            if self._num_free:
                self._num_free -= 1
                self.tables[holder.row, have] = self._free[self._num_free]
            else:
                self.tables[holder.row, have] = self.tree.evict_one()
            self._dirty.add(holder.row)
            return self.page_size
        self._write(holder, have, self._take(count))
        return count * self.page_size

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """In bulk: the slots that growing round by round would take, in the same order."""
        left = np.array([seq.room - seq.stored for seq in seqs])
        declared = all(seq.final - seq.stored >= rounds and not seq.promise for seq in seqs)
        if left.min(initial=rounds) >= rounds or self.page_size > 1 or not declared or self._by_layer:
            return super().extend(seqs, rounds)
        wanted = np.arange(rounds)[:, None] >= left  # in which round which sequence needs a slot
        number = wanted.cumsum().reshape(wanted.shape)
        granted = number <= self._num_free + self.tree.num_cached
        rounds = int(granted.all(axis=1).sum())
        wanted &= granted
        taken = np.where(wanted, number, 0)
        evicted = (taken > self._num_free).sum(axis=1)
        slots = np.empty(wanted.shape, dtype=np.int32)
        slots[wanted] = self._take(int(wanted.sum()))
        for i, seq in enumerate(seqs):
            mine = slots[wanted[:, i], i]
            self._write(seq, seq.held, mine)
            seq.held += len(mine)
            seq.room += len(mine)
        each = zip(wanted.sum(axis=1).tolist(), evicted.tolist(), strict=True)
        shifts: list[tuple[int, ...]] = [(at, 0, 0, more, 0, 0, -gone) for at, (more, gone) in enumerate(each) if more]
        self._reserved += int(wanted.sum())
        self.commit(seqs, [rounds] * len(seqs))
        return Growth(rounds, shifts)

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        """Share all stored tokens through the tree, as far as their contents are known; copy the rest."""
        self._known(parent)
        if child is parent or not self.can_fork:
            raise AllocatorError(f"{child.name} can't be forked from {parent.name} with page_size={self.page_size}")
        node, shown = self._settle_in_tree(parent)
        rest = self.tables[parent.row, shown : parent.stored].copy()
        if len(rest) > self._num_free + self.tree.num_cached:
            return False
        self.tree.hold(node)
        if child.row >= 0:
            self.free(child)
        child.row = self._take_row()
        child.stored = child.held = child.room = parent.stored
        child.final = parent.final
        self._lanes[child.row] = node, shown
        self._write(child, 0, self.tree.pages_to(node))
        copies = self._take(len(rest))
        self._write(child, shown, copies)
        self._queue_copy(self._runs(rest), self._runs(copies), 0, len(rest))
        self._enter(child)
        return True

    @property
    def saved_slots(self) -> int:
        return self.tree.num_shared * self.page_size

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        super().commit(seqs, counts)
        self._behind |= dict.fromkeys(seqs)

    def free(self, holder: Holder, hold: bool = False) -> None:
        if hold and self._holders.get(holder.row) is holder and not holder.finished:
            self._show(holder, holder.stored)
            self._behind.pop(holder, None)
            super().free(holder, hold)
            for node in self.tree.path(self._lanes[holder.row][0]):
                node.finished += 1
        else:
            super().free(holder, hold)

    def release(self, holder: Holder) -> None:
        size, held = self.page_size, holder.held // self.page_size
        node, shown = self._lanes.pop(holder.row)
        self._behind.pop(holder, None)
        pages = self.tables[holder.row, :held].copy()
        keys = holder.token_keys(holder.stored) if holder.stored // size > shown else NO_KEYS
        known = max(min(len(keys), holder.stored) // size, shown)
        twice = self.tree.insert(node, keys[shown * size : known * size], pages[shown:known])
        self.tree.let_go(node, holder.finished)
        self._give(pages[shown : shown + twice])
        self._give(pages[known:])

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        node, shown = self._lanes[holder.row]
        own = self.tables[holder.row, shown : holder.held // self.page_size]
        return self._runs(np.concatenate((self.tree.pages_to(node), own)))

    def shared(self, holder: Holder) -> tuple[int, int]:
        live = finished = 0
        for node in self.tree.path(self._lanes[holder.row][0]):
            if node.refs > 1:
                others = node.refs - node.finished - (not holder.finished)
                live += len(node.pages) if others else 0
                finished += 0 if others else len(node.pages)
        return live * self.page_size, finished * self.page_size

    def unread(self, kept: Kept) -> int:
        count, nodes = super().unread(kept), dict[Node, list[int]]()  # unread tokens of a node, by live holder
        for holder in self._holders.values():
            end, behind = self._lanes[holder.row][1] * self.page_size, kept.behind(holder.stored)
            for node in self.tree.path(self._lanes[holder.row][0]) if not holder.finished else ():
                slots = len(node.pages) * self.page_size
                end -= slots
                if node.refs > 1:
                    nodes.setdefault(node, []).append(min(max(behind - end, 0), slots))
        return count + sum(min(unread) - sum(unread) for unread in nodes.values())

    @property
    def free_slots(self) -> int:
        return (self._num_free + self.tree.num_cached) * self.page_size

    @property
    def cached_slots(self) -> int:
        return self.tree.num_cached * self.page_size

    def cached_spans(self) -> list[tuple[int, int]]:
        return [run for node in self.tree.nodes() if not node.refs for run in self._runs(node.pages)]

    def free_pages(self) -> list[int]:
        """The pages that hold nothing, in the order in which they will be handed out."""
        return self._free[: self._num_free][::-1].tolist()

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _show(self, holder: Holder, tokens: int) -> None:
        """Let the tree know of the first `tokens` tokens of a sequence, as far as their contents are known."""
        size, (node, shown) = self.page_size, self._lanes[holder.row]
        if tokens // size <= shown:
            return
        keys = holder.token_keys(tokens)
        known = min(len(keys), tokens) // size
        if known > shown:
            own = self.tables[holder.row, shown:known]
            end = self.tree.grow(node, keys[shown * size : known * size], own)
            if end is not None:
                self._lanes[holder.row] = end, known

    def _settle_in_tree(self, holder: Holder) -> tuple[Node, int]:
        """Have what a sequence stored in the tree, its copies of what was there given back; where it ends there."""
        self._show(holder, holder.stored)
        node, shown = self._lanes[holder.row]
        keys = holder.token_keys(holder.stored)
        known = min(len(keys), holder.stored)
        if shown >= known:
            return node, shown
        live, finished = self.shared(holder)
        self._leave(holder)
        self._used += live
        self._finished += finished
        own = self.tables[holder.row, : holder.held].copy()
        found = self.tree.match(keys, known)
        end = self.tree.reach(found)
        self.tree.hold(end)
        self.tree.let_go(node)
        if found.pages < known:
            end = self.tree.grow(end, keys[found.pages : known], own[found.pages : known]) or end
        self._lanes[holder.row] = end, known
        self._give(own[shown : found.pages])
        self._write(holder, 0, self.tree.pages_to(end))
        self._enter(holder)
        return end, known

    def _take(self, count: int) -> np.ndarray:
        """`count` pages: the ones given back last, then evicted ones. There must be as many."""
        left = max(self._num_free - count, 0)
        pages = self._free[left : self._num_free][::-1].copy()
        self._num_free = left
        if count > len(pages):
            pages = np.concatenate((pages, self.tree.evict(count - len(pages))))
        return pages

    def _give(self, pages: np.ndarray) -> None:
        self._free[self._num_free : self._num_free + len(pages)] = pages
        self._num_free += len(pages)

    def _write(self, holder: Holder, first: int, pages: np.ndarray) -> None:
        self.tables[holder.row, first : first + len(pages)] = pages
        self._dirty.add(holder.row)

    def _runs(self, pages: np.ndarray) -> list[tuple[int, int]]:
        """(first slot, slots) of each run of pages that lie one after another."""
        if not len(pages):
            return []
        size, ends = self.page_size, np.flatnonzero(np.diff(pages) != 1) + 1
        starts = [0, *ends.tolist()]
        lengths = np.diff([*starts, len(pages)]).tolist()
        return [(int(pages[at]) * size, length * size) for at, length in zip(starts, lengths, strict=True)]
