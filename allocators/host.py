"""The host pool: blocks of swapped sequences, with books of its own. What sequences share stays shared."""

from __future__ import annotations

from collections.abc import Sequence

from allocators.base import AllocatorError, Holder


class Host:
    """Blocks 0 to `num_blocks` - 1 in host memory.

    Attributes:
        used: blocks that hold something.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._blocks: dict[Holder, list[int]] = {}
        self._holders: dict[int, int] = {}  # by block

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.num_blocks - len(self._free)

    def take(self, blocks: Sequence[int], group: Sequence[tuple[Holder, list[int]]]) -> list[int]:
        """Blocks here for each of the device's `blocks`, which the sequences of `group` hold; there must be room."""
        here = {block: self._free.pop() for block in blocks}
        for holder, held in group:
            self._blocks[holder] = [here[block] for block in held]
            for block in self._blocks[holder]:
                self._holders[block] = self._holders.get(block, 0) + 1
        return list(here.values())

    def blocks_of(self, group: Sequence[Holder]) -> list[int]:
        """The different blocks of a group, in order.

        Raises:
            AllocatorError: one of them is not here.
        """
        for holder in group:
            if holder not in self._blocks:
                raise AllocatorError(f"{holder.name} is not on the host")
        return list(dict.fromkeys(block for holder in group for block in self._blocks[holder]))

    def forget(self, holder: Holder) -> list[int]:
        """Give back the blocks of a sequence that nobody else holds; all that it had, in token order."""
        self.blocks_of([holder])
        blocks = self._blocks.pop(holder)
        for block in blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._free.append(block)
        return blocks
