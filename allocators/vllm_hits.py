"""The longest prefix that every group of a hybrid model still has, as vLLM 0.33 looks for it (rules 35 to 42)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from allocators.keyed_pool import KeyedPool
from allocators.vllm_groups import Spec
from allocators.vllm_pool import Geometry


class Found(NamedTuple):
    """What of a sequence lies in the pool.

    Attributes:
        tokens: its leading tokens that need not be computed.
        tables: by group, the blocks that hold them; 0 where nothing is needed.
        junction: tokens up to which some group had more, so that it is worth keeping all there for the next; 0 = none.
    """

    tokens: int
    tables: list[list[int]]
    junction: int = 0


class Hits:
    """Looks prefixes up in a pool.

    Attributes:
        kinds: groups that keep the same, which are looked up as one; those that keep all tokens first.
    """

    def __init__(self, geometry: Geometry, pool: KeyedPool) -> None:
        self.pool = pool
        self.specs = [group.spec for group in geometry.groups]
        self.several = len(self.specs) > 1
        self.unit, self.fine = geometry.hash_unit, geometry.fine
        kinds: dict[tuple[object, ...], list[int]] = {}
        for group, spec in enumerate(self.specs):
            kinds.setdefault((spec.kind, spec.reach, spec.block_size, spec.shape), []).append(group)
        self.kinds = sorted(kinds.values(), key=lambda groups: not self._full(groups))
        self.alignment = geometry.alignment if self.several else self.specs[0].block_size

    def look_up(self, contents: Sequence[Hashable], limit: int) -> Found:
        """The longest prefix of at most `limit` tokens.

        Args:
            contents: what the tokens are up to each multiple of the hash unit.
        """
        length, longest, simple = limit, 0, len(self.kinds) == 2 and self._full(self.kinds[0])
        tables: list[list[int]] = [[] for _ in self.specs]
        looked = set[int]()
        while True:
            now = length
            for groups in self.kinds:
                if groups[0] in looked and self._full(groups):
                    continue
                looked.add(groups[0])
                now, columns = self._find(groups, contents, now)
                longest = max(longest, now)
                for at, group in enumerate(groups):
                    tables[group] = [column[at] if column else 0 for column in columns]
            shorter, length = now < length, now
            if not shorter or simple or len(self.kinds) == 1:
                break
        for group, spec in enumerate(self.specs):
            if spec.kind in ("full", "mla"):
                del tables[group][-(-length // spec.block_size) :]
        return Found(length, tables, longest if self.several and longest > length else 0)

    def _full(self, groups: Sequence[int]) -> bool:
        return self.specs[groups[0]].kind in ("full", "mla")

    def _there(self, groups: Sequence[int], contents: Sequence[Hashable], end: int) -> list[int]:
        """The blocks in which these groups end a prefix of `end` tokens; none if one of them has not."""
        at = end // self.unit - 1
        if at >= len(contents):
            return []
        blocks = list[int]()
        for group in groups:
            block = self.pool.cached_block(group, contents[at])
            if not block:
                return []
            blocks.append(block)
        return blocks

    def _find(self, groups: Sequence[int], contents: Sequence[Hashable], limit: int) -> tuple[int, list[list[int]]]:
        """How much of at most `limit` tokens groups of one kind have, and their blocks by column; [] = not needed."""
        spec = self.specs[groups[0]]
        if spec.kind == "sliding":
            return self._window(groups, spec, contents, limit)
        if spec.kind == "mamba":
            return self._state(groups, spec, contents, limit)
        first = limit // spec.reach * spec.reach // spec.block_size if spec.kind == "chunked" else 0
        columns: list[list[int]] = [[] for _ in range(first)]
        return self._chain(groups, spec, contents, limit, columns)

    def _chain(self, groups: Sequence[int], spec: Spec, contents: Sequence[Hashable], limit: int,
               columns: list[list[int]]) -> tuple[int, list[list[int]]]:  # fmt: skip
        """Whole blocks until the first that is missing; then as much of that one as was registered."""
        size, alignment = spec.block_size, self.alignment
        while (len(columns) + 1) * size <= limit:
            blocks = self._there(groups, contents, (len(columns) + 1) * size)
            if not blocks:
                break
            columns.append(blocks)
        whole = len(columns) * size
        if spec.kind == "chunked":
            return whole, columns
        if self.fine:
            most = min(limit, whole + size - 1)
            for end in range(most // alignment * alignment, whole, -alignment):
                blocks = self._there(groups, contents, end)
                if blocks:
                    return end, [*columns, blocks]
        while len(columns) * size % alignment:
            columns.pop()
        return len(columns) * size, columns

    def _window(self, groups: Sequence[int], spec: Spec, contents: Sequence[Hashable],
                limit: int) -> tuple[int, list[list[int]]]:  # fmt: skip
        """The last run of blocks that fills a window; else the one at the beginning, however short."""
        size, alignment, run = spec.block_size, self.alignment, 0
        wanted = -(-(spec.reach - 1) // size)
        columns: list[list[int]] = [[] for _ in range(limit // size)]
        for at in range(limit // size - 1, -1, -1):
            blocks = self._there(groups, contents, (at + 1) * size)
            if not blocks:
                run = 0
            elif run or not (at + 1) * size % alignment:
                columns[at] = blocks
                run += 1
                if run >= wanted:
                    return (at + run) * size, [[] if i < at else columns[i] for i in range(at + run)]
        while run * size % alignment:
            run -= 1
        return run * size, columns[:run]

    def _state(self, groups: Sequence[int], spec: Spec, contents: Sequence[Hashable],
               limit: int) -> tuple[int, list[list[int]]]:  # fmt: skip
        """The latest state that is there."""
        alignment = self.alignment
        for end in range(limit // alignment * alignment, 0, -alignment):
            blocks = self._there(groups, contents, end)
            if blocks:
                return end, [*[[] for _ in range(-(-end // spec.block_size) - 1)], blocks]
        return 0, []
