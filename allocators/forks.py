"""Copy-on-write between forks: who shares a block that is not full, and how much of it each of them holds."""

from __future__ import annotations

from collections.abc import Sequence

from allocators.base import Holder


class Forks:
    """Last blocks that were shared before they were full.

    One of its sharers, the owner, holds all of such a block and goes on writing into it in place. The others borrow it:
    each holds the slots with the tokens it has stored there, never looks at what the owner writes behind them, and gets
    a copy of its own before it writes. When only borrowers are left, the one with most tokens becomes the owner.

    Attributes:
        blocks: by block that somebody borrows: slots of it that each of its sharers holds.
        ever: whether any two sequences ever had a block in common by descent.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[int, dict[Holder, int]] = {}
        self.ever = False

    def borrow(self, block: int, owner: Holder, child: Holder, slots: int) -> None:
        """`child` shares the first `slots` slots of `block`; if nobody else borrows it, `owner` holds all of it."""
        self.blocks.setdefault(block, {owner: self.block_size})[child] = slots

    def join(self, blocks: Sequence[int], holder: Holder) -> None:
        """`holder` becomes a holder of all slots of `blocks`, some of which others may borrow."""
        if self.blocks:
            for block in self.blocks.keys() & set(blocks):
                self.blocks[block][holder] = self.block_size

    def leave(self, block: int, holder: Holder) -> Holder | None:
        """`holder` shares `block` no more; the borrower that owns it from now on, if nobody else does."""
        sharers = self.blocks[block]
        del sharers[holder]
        heir = None
        if max(sharers.values()) < self.block_size:
            heir = max(sharers, key=lambda sharer: sharers[sharer])
            sharers[heir] = self.block_size
        if min(sharers.values()) == self.block_size:
            del self.blocks[block]
        return heir

    def overlap(self, block: int, holder: Holder) -> tuple[int, int]:
        """Slots of `holder` in `block` that another live sequence holds too, and those that only finished ones do."""
        sharers = self.blocks[block]
        live = finished = 0
        for sharer, slots in sharers.items():
            if sharer is not holder:
                slots = min(slots, sharers[holder])
                live, finished = (live, max(finished, slots)) if sharer.finished else (max(live, slots), finished)
        return live, max(finished - live, 0)
