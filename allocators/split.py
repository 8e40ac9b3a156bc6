"""Any placement of extents for each group of layers, over its share of the memory. A window's extent is a ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from allocators.base import Allocator, Ask, Grid, Holder, KVLayout, Part
from allocators.buddy import Buddy
from allocators.contiguous import Contiguous
from allocators.layout import Kept, LayerGroup, buffers_of
from allocators.virtual import Virtual

PLACEMENTS = ("slab", "first_fit", "best_fit", "buddy", "virtual")


class Split(Allocator):
    """Layers that keep all tokens, layers with a window and states each have a pool, cut when it is made.

    A window needs no more than it spans, beside the tokens of one step: its extent begins again behind that. So a
    sequence takes little for it, however long it is. An extent never grows, so slots must be reserved; `virtual` ones
    do: page groups are mapped behind a sequence until it is as long as it gets, or its ring is whole.

    Args:
        layout: what the model keeps.
        placement: of tokens: `slab`, `first_fit` or `best_fit` extents, `buddy` chunks, or `virtual` addresses. States
            are lanes.
        piece_tokens: tokens of a sequence that one step may compute; a ring has room for them beside its window.
        shares: part of the memory of each group, by its name; null = as a sequence of `max_model_len` needs them.
        page_bytes, map_us: of `virtual`, see there; all K and V buffers of a group have page groups of that size.

    Raises:
        ValueError: no such placement, or shares that are not those of the groups, or a group without room.
    """

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout,
                 placement: Literal["slab", "first_fit", "best_fit", "buddy", "virtual"] = "first_fit",
                 piece_tokens: int = 2560, shares: Mapping[str, float] | None = None, page_bytes: int = 65536,
                 map_us: float | None = None) -> None:  # fmt: skip
        if placement not in PLACEMENTS:
            raise ValueError(f"placement must be {', '.join(PLACEMENTS[:-1])} or {PLACEMENTS[-1]}, got {placement!r}")
        kept = layout.kept
        self._longest = [_longest(each, max_model_len, piece_tokens) for each in kept]
        wanted = _shares(kept, self._longest, shares)
        self.inner, grids, origin = list[Allocator](), list[Grid](), 0
        for each, alike, longest, share in zip(kept, layout.alike(), self._longest, wanted, strict=True):
            unit = each.state_units or each.token_units
            slots = int(capacity * share / sum(wanted)) // unit
            if slots < 1:
                raise ValueError(f"the pool of {each.name} has no room: {capacity} units are split")
            if placement == "virtual" and not each.state_units:
                inner: Allocator = _virtual(slots, longest, alike, page_bytes, map_us)
            else:
                inner = _extents("slab" if each.state_units else placement, slots, longest)
            ring = inner.max_model_len if each.reach and longest < max_model_len else 0
            size = max_model_len if each.state_units else inner.block_size
            grids.append(Grid(size, unit * (inner.block_size or 1), origin, ring))
            self.inner.append(inner)
            origin += slots * unit
        super().__init__(capacity, max_model_len, kept, grids)
        self.group_tables = [inner.tables.copy() for inner in self.inner]
        self.tables = self.group_tables[0]
        self.by_layers(kept)
        self.units = [each.state_units or each.token_units for each in kept]  # of a slot of each group's placement
        self.piece_tokens, self.grows = piece_tokens, placement == "virtual"
        self._parts: dict[int, list[Holder]] = {}  # by row: whom each group's placement knows

    def limit_step_tokens(self, tokens: int) -> None:
        super().limit_step_tokens(tokens)
        if self.max_step_tokens > self.piece_tokens and any(grid.ring for grid in self.grids):
            raise ValueError(
                f"a ring has room for allocator.piece_tokens={self.piece_tokens} tokens beside its window, and a step "
                f"may compute {self.max_step_tokens} of a sequence: raise it, or lower scheduler.max_num_batched_tokens"
            )

    def footprint(self, tokens: int) -> int | None:
        units = 0
        for at, inner in enumerate(self.inner):
            slots = inner.footprint(min(tokens, self._longest[at]))
            if slots is None:
                return None
            units += slots * self.units[at]
        return units

    def exceeds_free(self, ask: Ask) -> bool:
        """Each group has a pool of its own, so their sum tells nothing but what never fits."""
        need = self.footprint(ask.must_fit if ask.must_fit > ask.need else ask.need)
        return need is None or self.free_slots - ask.spare < need * ask.count

    def place(self, holder: Holder, tokens: int) -> int | None:
        asks = [Ask(min(tokens, longest)) for longest in self._longest]
        if any(inner.exceeds_free(ask) for inner, ask in zip(self.inner, asks, strict=True)):
            return None
        parts, units = list[Holder](), 0
        for at, (inner, ask) in enumerate(zip(self.inner, asks, strict=True)):
            part = Holder(holder.name)
            if inner.admit([part], ask) is None:
                for before, placed in zip(reversed(self.inner[: len(parts)]), reversed(parts), strict=True):
                    before.free(placed)
                return None
            parts.append(part)
            units += part.held * self.units[at]
        self._parts[holder.row] = parts
        self._copy_rows(holder)
        return units

    def widen(self, holder: Holder, tokens: int) -> int:
        """All groups that are to grow or none: what `virtual` placement has free is free for anybody."""
        parts, more = self._parts[holder.row], list[int]()
        for inner, part, longest in zip(self.inner, parts, self._longest, strict=True):
            slots = (inner.footprint(min(tokens, longest)) or 0) - part.held
            if slots > inner.free_slots:
                return 0
            more.append(max(slots, 0))
        if not self.grows:
            return 0
        for inner, part, longest, slots in zip(self.inner, parts, self._longest, more, strict=True):
            if slots:
                inner.grow(part, min(tokens, longest))
        self._copy_rows(holder)
        return sum([slots * unit for slots, unit in zip(more, self.units, strict=True)])

    def _copy_rows(self, holder: Holder) -> None:
        """A sequence lies where the placements of the groups say."""
        for at, (inner, part) in enumerate(zip(self.inner, self._parts[holder.row], strict=True)):
            entries = -(-part.held // inner.block_size) if inner.block_size else 1
            self.set_row(holder, 0, inner.tables[part.row, :entries].tolist(), at)

    def release(self, holder: Holder) -> None:
        for inner, part in reversed(list(zip(self.inner, self._parts.pop(holder.row), strict=True))):
            inner.free(part)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        spans = []
        for at, (inner, part) in enumerate(zip(self.inner, self._parts[holder.row], strict=True)):
            origin, unit = self.grids[at].origin, self.units[at]
            spans += [(origin + start * unit, slots * unit) for start, slots in inner.spans(part)]
        return spans

    def occupied(self, holder: Holder) -> list[Part]:
        parts = list[Part]()
        for part, kept, unit in zip(self._parts[holder.row], self.kept, self.units, strict=True):
            parts.append(Part(0, 0 if kept.state_units else part.held, part.held * unit, int(kept.state_units > 0)))
        return parts

    def _update_ledger(self, holder: Holder, tokens: int) -> None:
        """A ring is never full, and nothing is ever given back."""
        parts, room = self.occupied(holder), self.max_model_len
        for part, kept, grid in zip(parts, self.kept, self.grids, strict=True):
            if kept.token_units and not (grid.ring and part.end >= grid.ring):
                room = min(room, part.end)
        holder.room = max(room, tokens)
        if self._ledger is not None:
            self._ledger.update(holder, parts)

    @property
    def free_slots(self) -> int:
        return sum([inner.free_slots * unit for inner, unit in zip(self.inner, self.units, strict=True)])

    def take_delay(self) -> int:
        return sum([inner.take_delay() for inner in self.inner])


def _longest(kept: Kept, max_model_len: int, piece: int) -> int:
    """Slots of a group's pool that the longest sequence takes."""
    if kept.state_units:
        return 1
    return min(max_model_len, kept.reach - 1 + piece) if kept.reach else max_model_len


def _shares(kept: tuple[Kept, ...], longest: list[int], shares: Mapping[str, float] | None) -> list[float]:
    if shares is None:
        return [float(slots * (k.state_units or k.token_units)) for slots, k in zip(longest, kept, strict=True)]
    names = [each.name for each in kept]
    if set(shares) != set(names) or min(shares.values()) <= 0:
        raise ValueError(f"shares must name {', '.join(names)}, each with a number above 0, got {dict(shares)}")
    return [shares[name] for name in names]


def _extents(placement: str, slots: int, longest: int) -> Allocator:
    if placement == "buddy":
        return Buddy(slots, longest)
    return Contiguous(slots, longest, placement)  # type: ignore[arg-type]


def _virtual(slots: int, longest: int, alike: list[LayerGroup], page_bytes: int, map_us: float | None) -> Virtual:
    """Its longest sequence ends with a whole page group, so that a ring is of whole ones."""
    token_bytes, buffers = buffers_of(alike)
    pages = max(page_bytes // token_bytes, 1)
    return Virtual(slots, -(-longest // pages) * pages, None, page_bytes, token_bytes, buffers, map_us)
