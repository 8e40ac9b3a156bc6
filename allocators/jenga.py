"""Jenga (arXiv 2503.18292): large pages of the least common multiple of what groups need, with small pages inside."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from allocators.base import Grid, Holder, KVLayout
from allocators.books import check_block_size
from allocators.group_pages import GroupPages, page_units


class Jenga(GroupPages):
    """Any group can have any large page, which is then cut into small ones of that group; no page is padded.

    A small page comes from a large one of the same sequence, else from a new large one, else from that of another
    sequence, so that what ends together becomes free together. A large page is free again when all in it is.

    Args:
        layout: what the model keeps.
        block_size: tokens in a small page, a power of two or a multiple of 16; a state is one small page.

    Raises:
        ValueError: a pool without one large page.
    """

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout, block_size: int = 16) -> None:
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
        super().__init__(capacity, max_model_len, layout, grids)
        self.block_size = block_size
        self.num_large = capacity // self.large
        self._small = [self.large // size for size in sizes]  # in a large page
        self._free = list(range(self.num_large - 1, -1, -1))
        self._partial: list[dict[int, list[int]]] = [{} for _ in sizes]  # by group and large page: free small ones
        self._spare = [0] * len(sizes)  # their number
        self._of: dict[int, int] = {}  # by large page: for whom it was taken
        self._mine: dict[tuple[int, int], dict[int, None]] = {}  # by group and sequence: its large pages with room
        self._number: dict[int, int] = {}  # by row: which of all sequences it is
        self._placed = 0
        self._wanted = [0] * len(sizes)

    @property
    def free_slots(self) -> int:
        inside = [count * grid.stride for count, grid in zip(self._spare, self.grids, strict=True)]
        return len(self._free) * self.large + sum(inside)

    def place(self, holder: Holder, tokens: int) -> int | None:
        self._number[holder.row] = self._placed
        self._placed += 1
        return super().place(holder, tokens)

    def release(self, holder: Holder) -> None:
        super().release(holder)
        number = self._number.pop(holder.row)
        for group in range(len(self._small)):
            self._mine.pop((group, number), None)

    def enough(self, counts: Sequence[int], empty: bool) -> bool:
        if empty:
            return self._new_large(counts, [0] * len(counts)) <= self.num_large
        self._wanted = list(counts)
        return self._new_large(counts, self._spare) <= len(self._free)

    def _new_large(self, counts: Sequence[int], spare: Sequence[int]) -> int:
        """Large pages that so many small ones need at least, beside the free small ones."""
        new = [-(-max(count - have, 0) // size) for count, have, size in zip(counts, spare, self._small, strict=True)]
        return sum(new)

    def take(self, group: int, count: int, row: int) -> list[int]:
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
            self._spare[group] -= 1
            if not inside:
                del partial[large]
                self._shut(group, large)
        return pages

    def _shut(self, group: int, large: int) -> None:
        """A large page has no room any more, or belongs to nobody."""
        mine = self._mine.get((group, self._of[large]))
        if mine:
            mine.pop(large, None)

    def give(self, group: int, pages: list[int], row: int) -> None:
        for page in pages:
            large = page // self._small[group]
            inside = self._partial[group].setdefault(large, [])
            inside.append(page)
            self._spare[group] += 1
            if len(inside) == self._small[group]:
                self._merge(group, large)
            else:
                mine = self._mine.get((group, self._of[large]))
                if mine is not None:
                    mine[large] = None

    def _cut(self, group: int, owner: int) -> None:
        large, size = self._free.pop(), self._small[group]
        self._partial[group][large] = list(range((large + 1) * size - 1, large * size - 1, -1))
        self._spare[group] += size
        self._of[large] = owner
        self._mine.setdefault((group, owner), {})[large] = None

    def _merge(self, group: int, large: int) -> None:
        del self._partial[group][large]
        self._spare[group] -= self._small[group]
        self._shut(group, large)
        del self._of[large]
        self._free.append(large)
