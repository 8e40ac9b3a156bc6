"""A fixed split of the memory between layers that keep all tokens and those with a window, as SGLang has it."""

from __future__ import annotations

from collections.abc import Sequence

from allocators.base import Grid, KVLayout
from allocators.books import check_block_size
from allocators.group_pages import GroupPages, page_units


class DualPool(GroupPages):
    """Each group of layers has a pool of its own, cut when it is made; none helps another out.

    Args:
        layout: what the model keeps.
        page_size: tokens in a page, a power of two or a multiple of 16.
        window_ratio: tokens of a window's pool for each token of the full layers' (`--swa-full-tokens-ratio`).
        state_ratio: bytes of the states' pool for each byte of the others (`--mamba-full-memory-ratio`).
        enable_prefix_caching: whether pages are kept and shared by their content, see `GroupPages`.

    Raises:
        ValueError: a pool that holds no page.
    """

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout, page_size: int = 1,
                 window_ratio: float = 0.8, state_ratio: float = 0.9,
                 enable_prefix_caching: bool = False) -> None:  # fmt: skip
        check_block_size(page_size)
        kept = layout.kept
        if window_ratio <= 0 or state_ratio <= 0:
            raise ValueError(f"window_ratio={window_ratio} and state_ratio={state_ratio} must be above 0")
        states, tokens = [k.state_units for k in kept], [k.token_units for k in kept]
        full = any(k.token_units and not k.reach for k in kept)
        ratios = [window_ratio if k.reach and full else 1.0 for k in kept]
        left: float = capacity if not any(states) else capacity / (1 + state_ratio) if any(tokens) else 0
        each = left / max(sum([units * ratio for units, ratio in zip(tokens, ratios, strict=True)]), 1)
        grids, self._empty, origin = list[Grid](), list[list[int]](), 0
        for at, one in enumerate(kept):
            share = (capacity - left) * states[at] / sum(states) if states[at] else each * ratios[at] * tokens[at]
            stride = page_units(one, page_size)
            pages = int(share) // stride
            if not pages:
                raise ValueError(f"the pool of {one.name} gets {int(share)} of {capacity} units and holds no page of "
                                 f"{stride}")  # fmt: skip
            grids.append(Grid(max_model_len if one.state_units else page_size, stride, origin))
            self._empty.append(list(range(pages - 1, -1, -1)))
            origin += pages * stride
        super().__init__(capacity, max_model_len, layout, grids, enable_prefix_caching)
        self.block_size = page_size
        self._pages = [len(pages) for pages in self._empty]

    @property
    def free_slots(self) -> int:
        empty = sum([len(pages) * grid.stride for pages, grid in zip(self._empty, self.grids, strict=True)])
        return empty + self.cached_slots

    def can_allocate(self, counts: Sequence[int], empty: bool) -> bool:
        there = self._pages if empty else [len(pages) for pages in self._empty]
        if self.contents is not None and not empty:
            there = [len(pages) + len(idle) for pages, idle in zip(self._empty, self.contents.idle, strict=True)]
        return all(count <= have for count, have in zip(counts, there, strict=True))

    def evict(self, counts: Sequence[int]) -> None:
        if self.contents is not None:
            for group, (count, empty) in enumerate(zip(counts, self._empty, strict=True)):
                while len(empty) < count:
                    _, page = self.contents.oldest(group)
                    self.contents.forget(group, page)
                    empty.append(page)

    def allocate_pages(self, group: int, count: int, row: int) -> list[int]:
        empty = self._empty[group]
        pages = empty[: -count - 1 : -1]
        del empty[-count:]
        return pages

    def free_pages(self, group: int, pages: list[int], row: int) -> None:
        self._empty[group] += pages
