"""What a block that several sequences hold counts for: once, in the first column in which any of them has it."""

from __future__ import annotations

from collections.abc import Sequence

from allocators.base import Grid, Holder
from allocators.layout import Kept

USED, FINISHED, UNREAD, PADDING, STATE = 0, 1, 6, 7, 8  # columns of `Ledger.books`


def shared_columns(kept: Kept, grid: Grid, block: int, tables: Sequence[tuple[Holder, list[int]]]
                   ) -> list[tuple[int, int]]:  # fmt: skip
    """(column, units) that were counted too often for a block.

    Args:
        tables: who holds it, and their tables of the group whose block it is. It is full of stored tokens.
    """
    size = grid.block_size * kept.token_units or kept.state_units
    twice = list[tuple[int, int]]()
    live = list[tuple[Holder, list[int]]]()
    for holder, table in tables:
        if holder.finished:
            twice.append((FINISHED, grid.stride))
        else:
            live.append((holder, table))
    if not live:
        return twice[1:]
    twice += [(PADDING, grid.stride - size)] * (len(live) - 1)
    if kept.state_units:
        old = [any(table[table.index(block) + 1 :]) for _, table in live]
        columns = [UNREAD if each else STATE for each in old]
        columns.remove(min(columns))
        return twice + [(column, size) for column in columns]
    behind = list[int]()
    for holder, table in live:
        first = table.index(block) * grid.block_size
        behind.append(min(max(kept.behind(holder.stored) - first, 0), grid.block_size))
    for tokens in behind:
        twice.append((UNREAD, tokens * kept.token_units))
        twice.append((USED, (grid.block_size - tokens) * kept.token_units))
    unread = min(behind)
    twice.append((UNREAD, -unread * kept.token_units))
    twice.append((USED, (unread - grid.block_size) * kept.token_units))
    return twice
