"""Jenga (arXiv 2503.18292): large pages of the least common multiple of what groups need, with small pages inside."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import lcm

from allocators.base import Grid, Holder, KVLayout
from allocators.books import check_block_size
from allocators.group_pages import GroupPages, page_units


class Jenga(GroupPages):
    """Any group can have any large page, which is then cut into small ones of that group; no page is padded.

    A small page comes from a large one of the same sequence, else from a new large one, else from that of another
    sequence, so that what ends together becomes free together. A large page is free again when all in it is. With
    prefix caching, a large page is *idle* when no sequence holds any of it but some of it can still be found by its
    content: then any group can have it, and all of it is evicted.

    Args:
        layout: what the model keeps.
        block_size: tokens in a small page, a power of two or a multiple of 16; a state is one small page.
        enable_prefix_caching: whether pages are kept and shared by their content, see `GroupPages`.

    Raises:
        ValueError: a pool without one large page.
    """

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout, block_size: int = 16,
                 enable_prefix_caching: bool = False) -> None:  # fmt: skip
        check_block_size(block_size)
        sizes = [page_units(kept, block_size) for kept in layout.kept]
        self.large = lcm(*sizes)
        if self.large > capacity:
            raise ValueError(
                f"the least common multiple of pages of {', '.join(map(str, sizes))} units is {self.large}, more than "
                f"the pool of {capacity}"
            )
        grids = [Grid(max_model_len if kept.state_units else block_size, size)
                 for kept, size in zip(layout.kept, sizes, strict=True)]  # fmt: skip
        super().__init__(capacity, max_model_len, layout, grids, enable_prefix_caching)
        self.block_size = block_size
        self.num_large = capacity // self.large
        self._small = [self.large // size for size in sizes]  # in a large page
        self._free = list(range(self.num_large - 1, -1, -1))
        self._partial: list[dict[int, list[int]]] = [{} for _ in sizes]  # by group and large page: free small ones
        self._spare = [0] * len(sizes)  # their number, but for idle large pages
        self._idle = [0] * len(sizes)  # small pages that are kept for reuse, but for idle large pages
        self._pins: dict[int, int] = {}  # by large page: small ones of it that are held
        self._idle_large: dict[int, tuple[int, int, list[int]]] = {}  # by large page: last use, group, free small ones
        self._oldest: list[tuple[int, int]] = []  # of them: (last use, large page)
        self._of: dict[int, int] = {}  # by large page: for whom it was taken
        self._mine: dict[tuple[int, int], dict[int, None]] = {}  # by group and sequence: its large pages with room
        self._number: dict[int, int] = {}  # by row: which of all sequences it is
        self._placed = 0
        self._wanted = [0] * len(sizes)

    @property
    def free_slots(self) -> int:
        inside = [(spare + idle) * grid.stride
                  for spare, idle, grid in zip(self._spare, self._idle, self.grids, strict=True)]  # fmt: skip
        return (len(self._free) + len(self._idle_large)) * self.large + sum(inside)

    def place(self, holder: Holder, tokens: int) -> int | None:
        self._number[holder.row] = self._placed
        self._placed += 1
        return super().place(holder, tokens)

    def release(self, holder: Holder) -> None:
        super().release(holder)
        number = self._number.pop(holder.row)
        for group in range(len(self._small)):
            self._mine.pop((group, number), None)

    def can_allocate(self, counts: Sequence[int], empty: bool) -> bool:
        if empty:
            return self._new_large(counts, [0] * len(counts)) <= self.num_large
        self._wanted = list(counts)
        there = [spare + idle for spare, idle in zip(self._spare, self._idle, strict=True)]
        return self._new_large(counts, there) <= len(self._free) + len(self._idle_large)

    def evict(self, counts: Sequence[int]) -> None:
        """The small page, of a group that needs some, or the large one that was not used for longest."""
        while self._new_large(counts, self._spare) > len(self._free):
            small = [self._oldest_small(group) for group, count in enumerate(counts)
                     if count > self._spare[group] and self._idle[group]]  # fmt: skip
            large = self._oldest_large()
            if not small or (large and large < min(small)):
                self._evict_large(large[1])
            elif self.contents is not None:
                _, page, group = min(small)
                self.contents.forget(group, page)
                self._idle[group] -= 1
                self._add_free(group, page)

    def _oldest_small(self, group: int) -> tuple[int, int, int]:
        """(last use, page, group) of what was not used for longest, but for idle large pages."""
        contents, size = self.contents, self._small[group]
        assert contents is not None
        while contents.oldest(group)[1] // size in self._idle_large:
            contents.skip(group)
        return (*contents.oldest(group), group)

    def _oldest_large(self) -> tuple[int, ...]:
        """(last use, large page) of what was not used for longest, of the idle ones; () = there is none."""
        oldest = self._oldest
        while oldest and (oldest[0][1] not in self._idle_large or self._idle_large[oldest[0][1]][0] != oldest[0][0]):
            heappop(oldest)
        return oldest[0] if oldest else ()

    def _new_large(self, counts: Sequence[int], spare: Sequence[int]) -> int:
        """Large pages that so many small ones need at least, beside the free small ones."""
        new = [-(-max(count - have, 0) // size) for count, have, size in zip(counts, spare, self._small, strict=True)]
        return sum(new)

    def allocate_pages(self, group: int, count: int, row: int) -> list[int]:
        pages, partial, owner = list[int](), self._partial[group], self._number[row]
        wanted = [0 if at <= group else count for at, count in enumerate(self._wanted)]
        later = self._new_large(wanted, self._spare)
        while len(pages) < count:
            mine = self._mine.get((group, owner))
            if not mine and len(self._free) > later:
                self._cut(group, owner)
                mine = self._mine[group, owner]
            large = next(reversed(mine)) if mine else next(reversed(partial))
            inside = partial[large]
            pages.append(inside.pop())
            self._pins[large] += 1
            self._spare[group] -= 1
            if not inside:
                del partial[large]
                self._mark_full(group, large)
        return pages

    def _mark_full(self, group: int, large: int) -> None:
        """A large page has no room any more, or belongs to nobody."""
        mine = self._mine.get((group, self._of[large]))
        if mine:
            mine.pop(large, None)

    def _mark_open(self, group: int, large: int) -> None:
        """A large page has room, for its sequence first."""
        mine = self._mine.get((group, self._of[large]))
        if mine is not None:
            mine[large] = None

    def free_pages(self, group: int, pages: list[int], row: int) -> None:
        for page in pages:
            self._add_free(group, page)
            self._unpin(group, page // self._small[group])

    def on_idle(self, group: int, page: int) -> None:
        self._idle[group] += 1
        self._unpin(group, page // self._small[group])

    def on_reused(self, group: int, page: int) -> None:
        large, contents = page // self._small[group], self.contents
        if large in self._idle_large and contents is not None:
            _, _, inside = self._idle_large.pop(large)
            self._idle[group] += self._small[group] - len(inside)
            self._spare[group] += len(inside)
            if inside:
                self._partial[group][large] = inside
                self._mark_open(group, large)
            for other in self._inside(group, large):
                contents.rest(group, other, contents.idle[group][other])
        self._idle[group] -= 1
        self._pins[large] += 1

    def _add_free(self, group: int, page: int) -> None:
        large = page // self._small[group]
        self._partial[group].setdefault(large, []).append(page)
        self._spare[group] += 1
        self._mark_open(group, large)

    def _unpin(self, group: int, large: int) -> None:
        """A small page of a large one is held no more; when none is, the large page is free or idle."""
        self._pins[large] -= 1
        if self._pins[large]:
            return
        inside = self._partial[group].pop(large, [])
        self._spare[group] -= len(inside)
        self._mark_full(group, large)
        if len(inside) == self._small[group]:
            self._merge(large)
        elif self.contents is not None:
            self._idle[group] -= self._small[group] - len(inside)
            idle = self.contents.idle[group]
            used = max([idle[page] for page in self._inside(group, large)])
            self._idle_large[large] = used, group, inside
            heappush(self._oldest, (used, large))

    def _inside(self, group: int, large: int) -> list[int]:
        """Small pages of a large one that are kept for reuse only."""
        assert self.contents is not None
        idle, size = self.contents.idle[group], self._small[group]
        return [page for page in range(large * size, (large + 1) * size) if page in idle]

    def _evict_large(self, large: int) -> None:
        _, group, _ = self._idle_large.pop(large)
        for page in self._inside(group, large):
            if self.contents is not None:
                self.contents.forget(group, page)
        self._merge(large)

    def _merge(self, large: int) -> None:
        del self._of[large], self._pins[large]
        self._free.append(large)

    def _cut(self, group: int, owner: int) -> None:
        large, size = self._free.pop(), self._small[group]
        self._partial[group][large] = list(range((large + 1) * size - 1, large * size - 1, -1))
        self._spare[group] += size
        self._of[large], self._pins[large] = owner, 0
        self._mine.setdefault((group, owner), {})[large] = None
