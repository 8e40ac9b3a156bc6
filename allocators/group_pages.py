"""What allocators have in common that keep pages for each group of layers and give back those behind a window."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from allocators.base import NO_HIT, Allocator, Ask, Grid, Growth, Hit, Holder, KVLayout, Part
from allocators.contents import Contents, Found
from allocators.layout import Kept


def page_units(kept: Kept, block_size: int) -> int:
    """Of a page: a block of tokens, or a state."""
    return kept.state_units or block_size * kept.token_units


class GroupPages(Allocator):
    """A table of pages for each group of layers; a state is one page. Where pages come from is left to subclasses.

    With prefix caching, pages full of stored tokens are found by their content and shared, also after their sequences
    are gone or have left them behind their windows, and until they are evicted, the one not used for longest first. A
    prefix counts as far as *every* group still has all of it that will be read.

    Args:
        enable_prefix_caching: whether pages are kept and shared by their content; not beside states, which belong to
            the end of a sequence only.

    Attributes:
        pages: by row and group, the page of each block; -1 = given back.
        contents: what they contain; None = nobody keeps it.
    """

    grows = True
    reserves = False

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout, grids: Sequence[Grid],
                 enable_prefix_caching: bool = False) -> None:  # fmt: skip
        super().__init__(capacity, max_model_len, layout.kept, grids)
        if enable_prefix_caching and any(kept.state_units for kept in self.kept):
            raise ValueError("enable_prefix_caching: states of recurrent layers are not kept for reuse here; use "
                             "vllm_hybrid, or enable_prefix_caching=false")  # fmt: skip
        self.shares = enable_prefix_caching
        self.contents = Contents(self.kept, self.grids) if enable_prefix_caching else None
        self._registered: dict[int, int] = {}  # by row: leading pages that can be found, if they are to be
        self.by_layers(self.kept)
        self.group_layers = tuple([tuple([n for group in alike for n in group.layers]) for alike in layout.alike()])
        self.pages: dict[int, list[list[int]]] = {}

    @abstractmethod
    def can_allocate(self, counts: Sequence[int], empty: bool) -> bool:
        """Whether so many pages can be had for the groups now, by evicting others if need be, or of an `empty` pool."""

    @abstractmethod
    def evict(self, counts: Sequence[int]) -> None:
        """Make room for so many pages, of which there are enough; asked where pages are kept for reuse."""

    @abstractmethod
    def allocate_pages(self, group: int, count: int, row: int) -> list[int]:
        """Pages for a row, of which there are enough that are free."""

    @abstractmethod
    def free_pages(self, group: int, pages: list[int], row: int) -> None:
        """Pages that a row gives back."""

    def on_idle(self, group: int, page: int) -> None:
        """A page that a row gave back is kept for reuse."""

    def on_reused(self, group: int, page: int) -> None:
        """A page that was kept for reuse is held again."""

    def footprint(self, tokens: int) -> int | None:
        """Of a prompt in one piece: its window shrinks only afterwards."""
        counts = [-(-tokens // grid.block_size) for grid in self.grids]
        return self._units(counts) if self.can_allocate(counts, True) else None

    def fits(self, prompt: int, tokens: int, whole: bool, piece: int) -> bool:
        return self.can_allocate(self._most(tokens), True)

    def lookup(self, holder: Holder, most: int) -> Hit:
        if self.contents is None or most <= 0:
            return NO_HIT
        found = self.contents.longest(holder, most)
        return Hit(found.tokens, self._units(self.contents.held(found)), found) if found.tokens else NO_HIT

    def exceeds_free(self, ask: Ask) -> bool:
        need = self.footprint(ask.need)
        must_fit = self._units(self._most(ask.must_fit)) if ask.must_fit > ask.need else 0
        found, gone = ask.hit.found, 0
        if isinstance(found, Found):
            gone = self._units([table.count(-1) for table in found.tables]) + ask.hit.held
        return need is None or self.free_slots - ask.spare < (max(need, must_fit) - gone) * ask.count

    def place(self, holder: Holder, tokens: int) -> int | None:
        row, mine = holder.row, list[list[int]]([[] for _ in self.kept])
        joined, units = list[tuple[int, int, int]](), 0
        if holder.stored and self.contents is not None:
            mine = self.contents.claimed(holder).tables
            for group, pages in enumerate(mine):
                joined += [(group, page, self._join_page(group, page, row)) for page in pages if page >= 0]
                units += sum([page >= 0 for page in pages]) * self.grids[group].stride
        self.pages[row] = mine
        taken = self.widen(holder, tokens)
        if taken or (mine[0] and self._covers(mine, tokens)):
            self._registered[row] = len(mine[0]) if joined else 0
            for group, pages in enumerate(mine if joined else ()):
                self.set_row(holder, 0, pages, group)
            return units + taken
        for group, page, used in reversed(joined):
            self._drop_page(group, page, row, used)
        del self.pages[row]
        return None

    def _covers(self, mine: list[list[int]], tokens: int) -> bool:
        return all(len(pages) * grid.block_size >= tokens for pages, grid in zip(mine, self.grids, strict=True))

    def widen(self, holder: Holder, tokens: int) -> int:
        mine, added = self.pages[holder.row], 0
        more = [max(-(-tokens // grid.block_size) - len(mine[at]), 0) for at, grid in enumerate(self.grids)]
        if not self.can_allocate(more, False):
            return 0
        if self.contents is not None:
            self.evict(more)
        for group, count in enumerate(more):
            if count:
                new = self.allocate_pages(group, count, holder.row)
                if self.contents is not None:
                    for page in new:
                        self.contents.touch(group, page, holder.row)
                self.set_row(holder, len(mine[group]), new, group)
                mine[group] += new
                added += count * self.grids[group].stride
        return added

    def _join_page(self, group: int, page: int, row: int) -> int:
        """A row holds a page that was found; when it was used last, if nobody holds it, else 0."""
        assert self.contents is not None
        used = self.contents.touch(group, page, row)
        if used:
            self.on_reused(group, page)
        return used

    def _drop_page(self, group: int, page: int, row: int, used: int = 0) -> None:
        """A row holds a page no more, which was `used` last then; 0 = now."""
        assert self.contents is not None
        if self.contents.release(group, page, row, used):
            if page in self.contents.idle[group]:
                self.on_idle(group, page)
            else:
                self.free_pages(group, [page], row)

    def _give(self, group: int, pages: list[int], row: int) -> None:
        """Pages that a row holds no more, in the order in which they are to be evicted."""
        if self.contents is None:
            self.free_pages(group, pages, row)
        else:
            for page in pages:
                self._drop_page(group, page, row)

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        super().commit(seqs, counts)
        if self.contents is not None:
            size = self.grids[0].block_size
            for holder in seqs:
                done, full = self._registered[holder.row], holder.stored // size
                if full > done:
                    new = holder.block_hashes(size, full)[done:]
                    for group, pages in enumerate(self.pages[holder.row]):
                        self.contents.register(group, pages[done : done + len(new)], new)
                    self._registered[holder.row] = done + len(new)

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """Where pages are shared it ends before anybody asks: what is saved by that may change then."""
        if self.contents is not None and self.contents.sharing:
            rounds = min([rounds, *[seq.room - seq.stored for seq in seqs]])
        return super().extend(seqs, rounds)

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
                    self._give(group, gone, holder.row)
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
            self._give(group, [page for page in reversed(pages) if page >= 0], holder.row)
        self._registered.pop(holder.row, None)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        mine = zip(self.pages[holder.row], self.grids, strict=True)
        return [(grid.origin + page * grid.stride, grid.stride) for pages, grid in mine for page in pages if page >= 0]

    @property
    def cached_slots(self) -> int:
        return 0 if self.contents is None else sum(self.contents.units())

    def cached_spans(self) -> list[tuple[int, int]]:
        return [] if self.contents is None else self.contents.spans()

    @property
    def saved_slots(self) -> int:
        return 0 if self.contents is None else self.contents.saved()

    def group_books(self) -> list[list[int]]:
        groups = super().group_books()
        if self.contents is not None:
            self.contents.correct(groups, self._holders, self.pages)
        return groups

    def _units(self, counts: Sequence[int]) -> int:
        return sum([count * grid.stride for count, grid in zip(counts, self.grids, strict=True)])

    def _most(self, tokens: int) -> list[int]:
        """Most pages of each group at any time: a window holds no more than it spans beside the tokens of one step."""
        counts = []
        for kept, grid in zip(self.kept, self.grids, strict=True):
            size, count = grid.block_size, -(-tokens // grid.block_size)
            most = -(-(kept.reach - 1 + self.max_step_tokens) // size) + 1
            counts.append(min(count, most) if kept.reach else count)
        return counts
