"""Paged placement (PagedAttention): fixed-size blocks, a block table per sequence, growth on demand."""

from __future__ import annotations

from allocators.base import Allocator, Holder


class Paged(Allocator):
    """Blocks of `block_size` slots; waste per sequence is less than one block.

    The free list is a stack whose order is vLLM's (0.33, without prefix caching): first use hands out ascending ids, and
    a freed sequence's last block is the first to be reused. The slots behind the last whole block stay free for ever.

    Args:
        block_size: slots in a block, a power of two from 1 to 256.
    """

    grows = True

    def __init__(self, capacity: int, max_model_len: int, block_size: int = 16) -> None:
        if type(block_size) is not int or block_size not in {1, 2, 4, 8, 16, 32, 64, 128, 256}:
            raise ValueError(f"block_size must be a power of two from 1 to 256, got {block_size!r}")
        self.block_size = block_size
        super().__init__(capacity, max_model_len)
        self.num_blocks = capacity // block_size
        self._free = list(range(self.num_blocks - 1, -1, -1))  # the end of the list is the front of the queue
        self._blocks: dict[int, list[int]] = {}  # by row

    def footprint(self, tokens: int) -> int | None:
        blocks = -(-tokens // self.block_size)
        return blocks * self.block_size if blocks <= self.num_blocks else None

    def place(self, holder: Holder, tokens: int) -> int | None:
        self._blocks[holder.row] = []
        taken = self.widen(holder, tokens)
        if not taken:
            del self._blocks[holder.row]
        return taken or None

    def widen(self, holder: Holder, tokens: int) -> int:
        blocks, free = self._blocks[holder.row], self._free
        count = -(-tokens // self.block_size) - len(blocks)
        if count > len(free):
            return 0
        if count == 1:
            block = free.pop()
            self.set_row(holder, len(blocks), block)
            blocks.append(block)
        else:
            new = free[: -count - 1 : -1]
            del free[-count:]
            self.set_row(holder, len(blocks), new)
            blocks += new
        return count * self.block_size

    def release(self, holder: Holder) -> None:
        self._free += self._blocks.pop(holder.row)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        return [(block * self.block_size, self.block_size) for block in self._blocks[holder.row]]

    @property
    def free_slots(self) -> int:
        return len(self._free) * self.block_size  # the remainder behind the last whole block is never handed out
