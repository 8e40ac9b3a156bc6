"""Blocks that are found again by what they contain, written after reading `allocators/base.py`: no fork, no copy."""

from __future__ import annotations

from collections import Counter

from allocators.base import Allocator, Hit, Holder


class PrefixBlocks(Allocator):
    """Full blocks stay when their sequences are gone, the one let go of first is forgotten first."""

    grows = True
    shares = True
    can_fork = False

    def __init__(self, capacity: int, max_model_len: int, block_size: int = 16) -> None:
        self.block_size = block_size
        super().__init__(capacity, max_model_len)
        self.blank = list(range(capacity // block_size - 1, -1, -1))
        self.held: Counter[int] = Counter()  # holders of each block
        self.found: dict[object, int] = {}
        self.content: dict[int, object] = {}
        self.idle: dict[int, None] = {}  # blocks with content that nobody holds, the longest idle first
        self.mine: dict[int, list[int]] = {}

    def footprint(self, tokens: int) -> int | None:
        slots = -(-tokens // self.block_size) * self.block_size
        return slots if slots <= self.capacity // self.block_size * self.block_size else None

    def lookup(self, holder: Holder, most: int) -> Hit:
        blocks = self._chain(holder, most // self.block_size)
        held = sum(self.held[block] > 0 for block in blocks)
        return Hit(len(blocks) * self.block_size, held * self.block_size)

    def place(self, holder: Holder, tokens: int) -> int | None:
        hit = self._chain(holder, holder.stored // self.block_size)
        idle = sum(not self.held[block] for block in hit)
        count = -(-tokens // self.block_size) - len(hit)
        if count + idle > len(self.blank) + len(self.idle):
            return None
        for block in hit:
            self.idle.pop(block, None)
        blocks = hit + [self._take() for _ in range(count)]
        self.held.update(blocks)
        self.mine[holder.row] = blocks
        self.set_row(holder, 0, blocks)
        return len(blocks) * self.block_size

    def widen(self, holder: Holder, tokens: int) -> int:
        mine = self.mine[holder.row]
        count = -(-tokens // self.block_size) - len(mine)
        if count > len(self.blank) + len(self.idle):
            return 0
        blocks = [self._take() for _ in range(count)]
        self.held.update(blocks)
        self.set_row(holder, len(mine), blocks)
        mine += blocks
        return count * self.block_size

    def commit(self, seqs, counts) -> None:  # type: ignore[no-untyped-def]
        super().commit(seqs, counts)
        for seq in seqs:
            full = seq.stored // self.block_size
            for block, content in zip(self.mine[seq.row], seq.block_hashes(self.block_size, full), strict=False):
                if content not in self.found and block not in self.content:
                    self.found[content], self.content[block] = block, content

    def release(self, holder: Holder) -> None:
        for block in reversed(self.mine.pop(holder.row)):
            self.held[block] -= 1
            if not self.held[block]:
                if block in self.content:
                    self.idle[block] = None
                else:
                    self.blank.append(block)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        return [(block * self.block_size, self.block_size) for block in self.mine[holder.row]]

    def shared(self, holder: Holder) -> tuple[int, int]:
        others = [block for block in self.mine[holder.row] if self.held[block] > 1]
        sharers = [h for h in self.holders if h is not holder]
        live = {block for h in sharers if not h.finished for block in self.mine[h.row]}
        return sum(b in live for b in others) * self.block_size, sum(b not in live for b in others) * self.block_size

    @property
    def free_slots(self) -> int:
        return (len(self.blank) + len(self.idle)) * self.block_size

    @property
    def cached_slots(self) -> int:
        return len(self.idle) * self.block_size

    def cached_spans(self) -> list[tuple[int, int]]:
        return [(block * self.block_size, self.block_size) for block in self.idle]

    def _chain(self, holder: Holder, most: int) -> list[int]:
        chain: list[int] = []
        for content in holder.block_hashes(self.block_size, most):
            if content not in self.found:
                break
            chain.append(self.found[content])
        return chain

    def _take(self) -> int:
        if self.blank:
            return self.blank.pop()
        block = next(iter(self.idle))
        del self.idle[block], self.found[self.content.pop(block)]
        return block
