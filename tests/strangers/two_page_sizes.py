"""An allocator written after reading `allocators/base.py`: small pages where windows slide, large ones elsewhere.

The pool is cut when it is made, and a page behind a window is given back as soon as no layer reads it.
"""

from __future__ import annotations

from allocators.base import Allocator, Grid, Holder, KVLayout, Part


class TwoPageSizes(Allocator):
    """Pages of `large` tokens for layers that read everything, of `small` tokens for those with a window.

    Args:
        layout: of a model with layers of both kinds and without states.
        share: part of the pool that the windows get.
    """

    grows = True
    reserves = False

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout, large: int = 64, small: int = 16,
                 share: float = 0.5) -> None:  # fmt: skip
        kept = layout.kept
        if len(kept) != 2 or sum(each.reach > 0 for each in kept) != 1 or layout.state_bytes:
            raise ValueError("two page sizes are for models with one window beside full attention")
        grids, self.empty, origin = [], [], 0
        for each in kept:
            size, part = (small, share) if each.reach else (large, 1 - share)
            stride = size * each.token_units
            pages = int(part * capacity) // stride
            grids.append(Grid(size, stride, origin))
            self.empty.append(list(range(pages - 1, -1, -1)))
            origin += pages * stride
        super().__init__(capacity, max_model_len, kept, grids)
        self.pages: dict[int, list[list[int]]] = {}  # by row: for each group the page of each block, -1 = given back
        self.most = [len(free) for free in self.empty]

    @property
    def free_slots(self) -> int:
        return sum(len(free) * grid.stride for free, grid in zip(self.empty, self.grids, strict=True))

    def footprint(self, tokens: int) -> int | None:
        """Of a prompt in one piece: its window shrinks only afterwards."""
        pages = [-(-tokens // grid.block_size) for grid in self.grids]
        if any(wanted > most for wanted, most in zip(pages, self.most, strict=True)):
            return None
        return sum(count * grid.stride for count, grid in zip(pages, self.grids, strict=True))

    def place(self, holder: Holder, tokens: int) -> int | None:
        self.pages[holder.row] = [[] for _ in self.grids]
        taken = self.widen(holder, tokens)
        if not taken:
            del self.pages[holder.row]
        return taken or None

    def widen(self, holder: Holder, tokens: int) -> int:
        mine = self.pages[holder.row]
        more = [-(-tokens // grid.block_size) - len(pages) for pages, grid in zip(mine, self.grids, strict=True)]
        if any(count > len(free) for count, free in zip(more, self.empty, strict=True)):
            return 0
        for group, count in enumerate(more):
            new = [self.empty[group].pop() for _ in range(count)]
            self.set_row(holder, len(mine[group]), new, group)
            mine[group] += new
        return sum(max(count, 0) * grid.stride for count, grid in zip(more, self.grids, strict=True))

    def trim(self, holder: Holder) -> int:
        given = 0
        for group, (kept, grid) in enumerate(zip(self.kept, self.grids, strict=True)):
            pages = self.pages[holder.row][group]
            for block in range(kept.behind(holder.stored) // grid.block_size):
                if pages[block] >= 0:
                    self.empty[group].append(pages[block])
                    pages[block] = -1
                    self.set_row(holder, block, -1, group)
                    given += grid.stride
        return given

    def occupied(self, holder: Holder) -> list[Part]:
        parts = []
        for pages, grid in zip(self.pages[holder.row], self.grids, strict=True):
            gone = pages.count(-1)
            units = (len(pages) - gone) * grid.stride
            parts.append(Part(gone * grid.block_size, len(pages) * grid.block_size, units))
        return parts

    def release(self, holder: Holder) -> None:
        for free, pages in zip(self.empty, self.pages.pop(holder.row), strict=True):
            free += [page for page in reversed(pages) if page >= 0]  # so that a refused group leaves no trace

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        mine = zip(self.pages[holder.row], self.grids, strict=True)
        return [(grid.origin + page * grid.stride, grid.stride) for pages, grid in mine for page in pages if page >= 0]
