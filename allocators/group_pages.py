"""What allocators have in common that keep pages for each group of layers and give back those behind a window."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from allocators.base import Allocator, Ask, Grid, Holder, KVLayout, Part
from allocators.layout import Kept


def page_units(kept: Kept, block_size: int) -> int:
    """Of a page: a block of tokens, or a state."""
    return kept.state_units or block_size * kept.token_units


class GroupPages(Allocator):
    """A table of pages for each group of layers; a state is one page. Where pages come from is left to subclasses.

    Attributes:
        pages: by row and group, the page of each block; -1 = given back.
    """

    grows = True
    reserves = False

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout, grids: Sequence[Grid]) -> None:
        super().__init__(capacity, max_model_len, layout.kept, grids)
        self.by_layers(self.kept)
        self.group_layers = tuple([tuple([n for group in alike for n in group.layers]) for alike in layout.alike()])
        self.pages: dict[int, list[list[int]]] = {}

    @abstractmethod
    def enough(self, counts: Sequence[int], empty: bool) -> bool:
        """Whether so many pages can be had for the groups now, or of an `empty` pool."""

    @abstractmethod
    def take(self, group: int, count: int, row: int) -> list[int]:
        """Pages for a row, of which there are enough."""

    @abstractmethod
    def give(self, group: int, pages: list[int], row: int) -> None:
        """Pages that a row gives back."""

    def footprint(self, tokens: int) -> int | None:
        """Of a prompt in one piece: its window shrinks only afterwards."""
        counts = [-(-tokens // grid.block_size) for grid in self.grids]
        return self._units(counts) if self.enough(counts, True) else None

    def fits(self, prompt: int, tokens: int, whole: bool, piece: int) -> bool:
        return self.enough(self._most(tokens), True)

    def lacks(self, ask: Ask) -> bool:
        need = self.footprint(ask.need)
        gate = self._units(self._most(ask.gate)) if ask.gate > ask.need else 0
        return need is None or self.free_slots - ask.spare < max(need, gate) * ask.count

    def place(self, holder: Holder, tokens: int) -> int | None:
        self.pages[holder.row] = [[] for _ in self.kept]
        taken = self.widen(holder, tokens)
        if not taken:
            del self.pages[holder.row]
        return taken or None

    def widen(self, holder: Holder, tokens: int) -> int:
        mine, added = self.pages[holder.row], 0
        more = [max(-(-tokens // grid.block_size) - len(mine[at]), 0) for at, grid in enumerate(self.grids)]
        if not self.enough(more, False):
            return 0
        for group, count in enumerate(more):
            if count:
                new = self.take(group, count, holder.row)
                self.set_row(holder, len(mine[group]), new, group)
                mine[group] += new
                added += count * self.grids[group].stride
        return added

    def trim(self, holder: Holder) -> int:
        given = 0
        for group, kept in enumerate(self.kept):
            behind = kept.behind(holder.stored)
            if behind:
                pages, gone = self.pages[holder.row][group], list[int]()
                at = min(behind // self.grids[group].block_size, len(pages)) - 1
                while at >= 0 and pages[at] >= 0:
                    gone.append(pages[at])
                    pages[at] = -1
                    self.set_row(holder, at, [-1], group)
                    at -= 1
                if gone:
                    self.give(group, gone, holder.row)
                    given += len(gone) * self.grids[group].stride
        return given

    def occupied(self, holder: Holder) -> list[Part]:
        parts = list[Part]()
        for pages, kept, grid in zip(self.pages[holder.row], self.kept, self.grids, strict=True):
            gone = pages.count(-1) if kept.reach else 0
            units = (len(pages) - gone) * grid.stride
            end = len(pages) * grid.block_size
            parts.append(Part(0, 0, units, 1) if kept.state_units else Part(gone * grid.block_size, end, units))
        return parts

    def release(self, holder: Holder) -> None:
        """In the reverse order in which they were taken, so that a refused group leaves no trace."""
        for group, pages in reversed(list(enumerate(self.pages.pop(holder.row)))):
            self.give(group, [page for page in reversed(pages) if page >= 0], holder.row)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        mine = zip(self.pages[holder.row], self.grids, strict=True)
        return [(grid.origin + page * grid.stride, grid.stride) for pages, grid in mine for page in pages if page >= 0]

    def _units(self, counts: Sequence[int]) -> int:
        return sum([count * grid.stride for count, grid in zip(counts, self.grids, strict=True)])

    def _most(self, tokens: int) -> list[int]:
        """Most pages of each group at any time: a window holds no more than it spans beside the tokens of one step."""
        counts = []
        for kept, grid in zip(self.kept, self.grids, strict=True):
            size, count = grid.block_size, -(-tokens // grid.block_size)
            most = -(-(kept.reach - 1 + self.step_tokens) // size) + 1
            counts.append(min(count, most) if kept.reach else count)
        return counts
