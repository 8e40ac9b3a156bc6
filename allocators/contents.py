"""What the pages of groups of layers contain: who holds them, how they are found, and which are kept for reuse only.

A content is what all tokens up to the end of a page are, so equal ones may be shared; one page of a group is found by
it, that which had it first.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from allocators.base import AllocatorError, Grid, Holder
from allocators.layout import Kept
from allocators.vllm_books import shared_columns


class Found(NamedTuple):
    """The beginning of a sequence that lies in the pool.

    Attributes:
        tokens: of it.
        tables: by group, its pages; -1 where no layer will read them.
    """

    tokens: int
    tables: list[list[int]]


class Contents:
    """By group and page.

    Attributes:
        idle: pages that nobody holds and that can still be found, with the time of their last use.
        users: rows of those who hold it.
    """

    def __init__(self, kept: Sequence[Kept], grids: Sequence[Grid]) -> None:
        self.kept, self.grids = kept, grids
        self.idle: list[dict[int, int]] = [{} for _ in kept]
        self.users: list[dict[int, list[int]]] = [{} for _ in kept]
        self._pages: list[dict[Hashable, int]] = [{} for _ in kept]
        self._content: list[dict[int, Hashable]] = [{} for _ in kept]
        self._shared: list[dict[int, None]] = [{} for _ in kept]
        self._oldest: list[list[tuple[int, int]]] = [[] for _ in kept]
        self._time = 0

    def longest(self, holder: Holder, most: int) -> Found:
        """The longest beginning, of at most `most` tokens, of which every group has all that will be read again."""
        size = self.grids[0].block_size
        contents = holder.block_hashes(size, most // size)
        runs = [0] * len(self.kept)  # by group, where the run of pages begins that ends here
        pages: list[list[int]] = [[] for _ in self.kept]
        best = 0
        for at, content in enumerate(contents):
            tokens, whole = (at + 1) * size, True
            for group, kept in enumerate(self.kept):
                page = self._pages[group].get(content, -1)
                pages[group].append(page)
                if page < 0:
                    if not kept.reach:
                        return self._cut(pages, best)
                    runs[group] = at + 1
                if runs[group] > kept.behind(tokens) // size:
                    whole = False
            if whole:
                best = at + 1
        return self._cut(pages, best)

    def _cut(self, pages: list[list[int]], count: int) -> Found:
        size, tables = self.grids[0].block_size, list[list[int]]()
        for kept, mine in zip(self.kept, pages, strict=True):
            gone = min(kept.behind(count * size) // size, count)
            tables.append([-1] * gone + mine[gone:count])
        return Found(count * size, tables)

    def claimed(self, holder: Holder) -> Found:
        """The pages of a hit that an admission claims.

        Raises:
            AllocatorError: it is not there.
        """
        found = self.longest(holder, holder.stored)
        if found.tokens != holder.stored:
            raise AllocatorError(
                f"{holder.name} claims a prefix hit of {holder.stored} tokens; the pool holds {found.tokens}"
            )
        return found

    def held(self, found: Found) -> list[int]:
        """By group, how many of the pages somebody holds."""
        return [
            sum([page >= 0 and page in users for page in table])
            for table, users in zip(found.tables, self.users, strict=True)
        ]

    def touch(self, group: int, page: int, row: int) -> int:
        """One more holds a page; when it was used last, if nobody did, else 0."""
        users = self.users[group].setdefault(page, [])
        users.append(row)
        if len(users) == 2:
            self._shared[group][page] = None
        return self.idle[group].pop(page, 0)

    def release(self, group: int, page: int, row: int, used: int = 0) -> bool:
        """One less holds a page; whether nobody does any more. If it can be found it is idle from then on.

        Args:
            used: when it was used last; 0 = now.
        """
        users = self.users[group][page]
        users.remove(row)
        if users:
            if len(users) == 1:
                del self._shared[group][page]
            return False
        del self.users[group][page]
        if page in self._content[group]:
            self._time += 1
            self.rest(group, page, used or self._time)
        return True

    def rest(self, group: int, page: int, used: int) -> None:
        """A page is idle, and is to be evicted when it is the one not used for longest."""
        self.idle[group][page] = used
        heap = self._oldest[group]
        heappush(heap, (used, page))
        if len(heap) > 64 + 4 * len(self.idle[group]):  # mostly of pages that were found again
            heap[:] = [(used, page) for page, used in self.idle[group].items()]
            heapify(heap)

    def oldest(self, group: int) -> tuple[int, int]:
        """(time of last use, page) of the idle page not used for longest, of which there must be one."""
        heap, idle = self._oldest[group], self.idle[group]
        while idle.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0]

    def skip(self, group: int) -> None:
        """Pass over the `oldest` until it `rest`s again."""
        heappop(self._oldest[group])

    def forget(self, group: int, page: int) -> None:
        """An idle page can be found no more."""
        del self.idle[group][page]
        del self._pages[group][self._content[group].pop(page)]

    def register(self, group: int, pages: Sequence[int], contents: Sequence[Hashable]) -> None:
        """Pages that somebody holds are found by their contents, unless others are; -1 = none."""
        known, of = self._pages[group], self._content[group]
        for page, content in zip(pages, contents, strict=True):
            if page >= 0 and page not in of and content not in known:
                known[content] = page
                of[page] = content

    def spans(self) -> list[tuple[int, int]]:
        """(first unit, units) of each idle page."""
        return [
            (grid.origin + page * grid.stride, grid.stride)
            for grid, idle in zip(self.grids, self.idle, strict=True)
            for page in sorted(idle)
        ]

    @property
    def sharing(self) -> bool:
        """Whether anybody shares a page."""
        return any(self._shared)

    def units(self) -> list[int]:
        """Of idle pages, by group."""
        return [len(idle) * grid.stride for grid, idle in zip(self.grids, self.idle, strict=True)]

    def saved(self) -> int:
        """Units of pages that would be there besides if nobody shared any."""
        saved = 0
        for grid, users, shared in zip(self.grids, self.users, self._shared, strict=True):
            saved += grid.stride * sum([len(users[page]) - 1 for page in shared])
        return saved

    def correct(self, books: list[list[int]], holders: dict[int, Holder], pages: dict[int, list[list[int]]]) -> None:
        """Enter what is idle into the books of the groups, and take out what they count for each who shares it.

        Args:
            holders, pages: by row; the pages by group, too.
        """
        for group, (columns, idle) in enumerate(zip(books, self.units(), strict=True)):
            columns[5] = idle
            for page in self._shared[group]:
                tables = [(holders[row], pages[row][group]) for row in self.users[group][page]]
                for at, units in shared_columns(self.kept[group], self.grids[group], page, tables):
                    columns[at] -= units
