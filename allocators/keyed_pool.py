"""The blocks that all groups of a hybrid model share: one free list in vLLM's order, and blocks with several keys.

Block 0 is the null block: it stands where nothing is stored any more, and nobody ever gets it. A key is (group, what
the tokens up to some token are). A block may have several; the first is its *primary* one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple


class Key(NamedTuple):
    """What a block can be found by.

    Attributes:
        group: equal tokens in two groups are two contents.
        content: what all tokens up to `end` are.
        end: tokens that it covers.
    """

    group: int
    content: Hashable
    end: int


class KeyedPool:
    """Blocks 1 to `num_blocks` - 1 with their holders and their keys.

    Blocks without a key only ever join the free list at its front, so they are a stack; those with one only ever at its
    back, from whose middle a hit takes its block. A block loses its keys when it is handed out for something else.

    Attributes:
        users: by block, the rows that hold it, and -1 for each copy that is still to be made from or to it.
        group: by block, whose it was last.
        shared: blocks that several rows hold.
        cached: by group, free blocks that can still be found.
        young: blocks that got a key in this step.
    """

    def __init__(self, num_blocks: int, groups: int) -> None:
        self.num_blocks = num_blocks
        self._blank = list(range(num_blocks - 1, 0, -1))  # its end is the front of the free list
        self._queue: dict[int, None] = {}
        self.users: list[list[int]] = [[] for _ in range(num_blocks)]
        self.group = [0] * num_blocks
        self.keys: dict[int, list[Key]] = {}
        self.found: dict[tuple[int, Hashable], dict[int, None]] = {}  # by key, the blocks that have it, oldest first
        self.shared: set[int] = set()
        self.num_shared = 0  # users beyond the first, in sum
        self.cached = [0] * groups
        self.young: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._blank) + len(self._queue)

    def allocate(self, count: int, group: int, row: int) -> list[int]:
        """The first `count` of the free list, which must be there, for a row."""
        blank, blocks = self._blank, list[int]()
        for _ in range(count):
            if blank:
                block = blank.pop()
            else:
                block = next(iter(self._queue))
                del self._queue[block]
                self.cached[self.group[block]] -= 1
                self.drop_keys(block)
            self.users[block] = [row]
            self.group[block] = group
            blocks.append(block)
        return blocks

    def touch(self, block: int, row: int) -> None:
        """One more holds a block: a free one is taken out of the free list, keys and all."""
        users = self.users[block]
        if not users:
            del self._queue[block]
            self.cached[self.group[block]] -= 1
        else:
            self._count_shared(block, 1)
        users.append(row)

    def free(self, blocks: Iterable[int], row: int) -> None:
        """Blocks lose one who holds them, in the order given; null ones are passed over.

        Those that nobody holds any more become free: without a key they will be the next to be handed out, in that
        order, with one they join at the back.
        """
        blank = list[int]()
        for block in blocks:
            if not block:
                continue
            users = self.users[block]
            users.remove(row)
            if users:
                self._count_shared(block, -1)
            elif block in self.keys:
                self._queue[block] = None
                self.cached[self.group[block]] += 1
            else:
                blank.append(block)
        blank.reverse()
        self._blank += blank

    def _count_shared(self, block: int, more: int) -> None:
        self.num_shared += more
        if more > 0 or len(self.users[block]) > 1:
            self.shared.add(block)
        else:
            self.shared.discard(block)

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these, null ones aside, are in the free list."""
        return sum([block > 0 and not self.users[block] for block in blocks])

    def cached_block(self, group: int, content: Hashable) -> int:
        """The block that got a key first, of those that have it; 0 = none."""
        blocks = self.found.get((group, content))
        return next(iter(blocks)) if blocks else 0

    def covers(self, block: int) -> int:
        """Tokens that a block's primary key covers; 0 without one."""
        keys = self.keys.get(block)
        return keys[0].end if keys else 0

    def drop_keys(self, block: int) -> None:
        """A block can be found no more."""
        for key in self.keys.pop(block, ()):
            self._forget(block, key)

    def replace(self, block: int, key: Key) -> None:
        """From now on a block that somebody holds is found by `key` alone."""
        self.drop_keys(block)
        self._add(block, key)

    def add(self, block: int, key: Key) -> None:
        """A block that somebody holds is found by `key`, whose end may lie inside it, too; instead of a shorter one."""
        keys = self.keys.get(block)
        if keys and key in keys:
            return
        if keys and keys[0].end < key.end:
            self.drop_keys(block)
        self._add(block, key)

    def hand_over(self, source: int, target: int) -> None:
        """`target` is found from now on where `source` was, by all its keys."""
        keys = self.keys.pop(source, [])
        for key in keys:
            at = key.group, key.content
            blocks = [target if block == source else block for block in self.found[at]]
            self.found[at] = dict.fromkeys(blocks)
        if keys:
            self.keys[target] = keys

    def free_list(self) -> list[int]:
        """All free blocks, in the order in which they will be handed out. O(free blocks)."""
        return [*reversed(self._blank), *self._queue]

    def cached_blocks(self) -> list[int]:
        """Free blocks that can still be found, least recently used first. O(free blocks)."""
        return list(self._queue)

    def _add(self, block: int, key: Key) -> None:
        self.keys.setdefault(block, []).append(key)
        self.found.setdefault((key.group, key.content), {})[block] = None
        self.young.add(block)

    def _forget(self, block: int, key: Key) -> None:
        at = key.group, key.content
        blocks = self.found[at]
        del blocks[block]
        if not blocks:
            del self.found[at]
