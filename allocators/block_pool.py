"""The blocks of a paged pool: which are free and in what order, which hold known content, and who shares them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """Blocks 0 to `num_blocks` - 1, handed out from the front of one free list, in vLLM's order.

    That list is kept in two parts. Blocks without content only ever join at the front, so they are a stack; blocks with
    content only ever join at the back, so they are a queue, least recently used first, from whose middle a hit takes
    its block in O(1). A block loses its content when it is handed out for something else, and only then.

    Args:
        num_blocks: blocks in the pool.
        freed_to_back: freed blocks join at the back whether they have content or not (vLLM 0.16 - 0.20).

    Attributes:
        shared: holders beyond the first of every block that has more than one.
        first: block of each content, the one registered first where several hold the same.
    """

    def __init__(self, num_blocks: int, freed_to_back: bool = False) -> None:
        self.num_blocks = num_blocks
        self.freed_to_back = freed_to_back
        self._blank = list(range(num_blocks - 1, -1, -1))  # its end is the front of the free list
        self._queue: OrderedDict[int, None] = OrderedDict()
        if freed_to_back:
            self._queue = OrderedDict.fromkeys(range(num_blocks))
            self._blank = []
        self._content: list[Hashable | None] = [None] * num_blocks
        self._num_content = 0  # blocks with content ...
        self._held_content = 0  # ... and those of them that somebody holds
        self.shared: dict[int, int] = {}
        self.num_shared = 0  # its sum
        self.first: dict[Hashable, int] = {}
        self._copies: dict[Hashable, dict[int, None]] = {}  # further blocks of the same content, oldest first

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._blank) + len(self._queue)

    @property
    def num_cached(self) -> int:
        """Free blocks whose content can still be reused."""
        return self._num_content - self._held_content

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks from the front of the free list, or None if there are not so many (nothing changed)."""
        blank = self._blank
        if count == 1 and blank:
            return [blank.pop()]
        if 0 < count <= len(blank):
            blocks = blank[: -count - 1 : -1]
            del blank[-count:]
            return blocks
        if count > len(blank) + len(self._queue):
            return None
        if not count:
            return []
        blocks = blank[::-1]
        blank.clear()
        popitem, contents, copies, first = self._queue.popitem, self._content, self._copies, self.first
        for _ in range(count - len(blocks)):
            block, _ = popitem(last=False)
            blocks.append(block)
            content = contents[block]
            if content is None:
                continue
            contents[block] = None
            self._num_content -= 1
            if content in copies:
                self._drop_copy(block, content)
            else:
                del first[content]
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give back the blocks of one holder, listed in token order; they are walked from the last to the first.

        Those that nobody else holds become free: without content they will be the next to be handed out, the last one
        first; with content they join at the back, so that the end of a prefix is evicted before its beginning.
        """
        if not (self._num_content or self.shared or self.freed_to_back):
            self._blank += blocks
            return
        shared, content, queue, blank = self.shared, self._content, self._queue, []
        for block in reversed(blocks):
            if block in shared:
                self._unshare(block)
            elif content[block] is not None:
                self._held_content -= 1
                queue[block] = None
            elif self.freed_to_back:
                queue[block] = None
            else:
                blank.append(block)
        self._blank += reversed(blank)

    def touch(self, blocks: Iterable[int]) -> None:
        """Become a holder of `blocks` with content, or that others hold: free ones are revived, the others shared."""
        queue, shared = self._queue, self.shared
        for block in blocks:
            if block in queue:
                del queue[block]
                self._held_content += 1
            else:
                shared[block] = shared.get(block, 0) + 1
                self.num_shared += 1

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks, which have content, are held by nobody."""
        return sum(map(self._queue.__contains__, blocks))

    def register(self, blocks: Sequence[int], contents: Sequence[Hashable]) -> None:
        """From now on, each of `blocks`, which somebody holds, can be found by its content (all of them different)."""
        content_of, first = self._content, self.first
        for block, content in zip(blocks, contents, strict=True):
            content_of[block] = content
        if first.keys().isdisjoint(contents):
            first.update(zip(contents, blocks, strict=True))
        else:
            for block, content in zip(blocks, contents, strict=True):
                if first.setdefault(content, block) != block:
                    self._copies.setdefault(content, {})[block] = None
        self._num_content += len(blocks)
        self._held_content += len(blocks)

    def free_list(self) -> list[int]:
        """All free blocks, in the order in which they will be handed out. O(free blocks)."""
        return [*reversed(self._blank), *self._queue]

    def cached(self) -> list[int]:
        """Free blocks whose content can still be reused, least recently used first. O(free blocks)."""
        return [block for block in self._queue if self._content[block] is not None]

    def is_registered(self, block: int) -> bool:
        """Whether it can be found by its content."""
        return self._content[block] is not None

    def _unshare(self, block: int) -> None:
        others = self.shared[block] - 1
        self.num_shared -= 1
        if others:
            self.shared[block] = others
        else:
            del self.shared[block]

    def _drop_copy(self, block: int, content: Hashable) -> None:
        """One of several blocks of the same content is evicted; the oldest of the others can be found instead."""
        copies = self._copies[content]
        if self.first[content] == block:
            self.first[content] = block = next(iter(copies))
        del copies[block]
        if not copies:
            del self._copies[content]
