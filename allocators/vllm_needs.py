"""How many blocks a sequence of a hybrid model needs, before anything is taken (rules 15 to 17, 27)."""

from __future__ import annotations

from allocators.base import Holder
from allocators.keyed_pool import KeyedPool
from allocators.vllm_chunks import Chunks
from allocators.vllm_groups import Spec
from allocators.vllm_held import Held
from allocators.vllm_pool import Geometry


class Needs:
    """Counts blocks.

    Args:
        caching: whether what was computed is kept for reuse.
    """

    def __init__(self, geometry: Geometry, pool: KeyedPool, chunks: Chunks, max_model_len: int, caching: bool) -> None:
        self.pool, self.chunks, self.max_model_len = pool, chunks, max_model_len
        self.specs = [group.spec for group in geometry.groups]
        self.states = [spec.aligned for spec in self.specs]
        self.caching = caching and bool(chunks.states)

    def whole(self, tokens: int) -> int:
        """Of a prompt in one piece: its window shrinks only afterwards."""
        blocks = 0
        for at, spec in enumerate(self.specs):
            count = -(-tokens // spec.block_size)
            blocks += min(count, 2 + spec.checkpoints) if self.states[at] else count
        return blocks

    def alone(self, end: int, start: int, capped: bool, step: int) -> list[int]:
        """Blocks that a sequence alone holds, by group, when it goes from `start` to `end`.

        Args:
            capped: whether a window counts no more blocks than it ever takes.
            step: most tokens of a sequence that are computed in one step.
        """
        wanted = []
        for at, spec in enumerate(self.specs):
            count, before = -(-end // spec.block_size), -(-start // spec.block_size)
            if self.states[at]:
                wanted.append(min(count, 1 + (before > 0 and count > before)))
            else:
                wanted.append(
                    (self._capped(spec, count, step) if capped else count) - spec.behind(start) // spec.block_size
                )
        return wanted

    def _capped(self, spec: Spec, count: int, step: int) -> int:
        """Blocks of a group, no more than its window ever takes."""
        if spec.kind in ("sliding", "chunked"):
            most = spec.blocks(self.max_model_len, step)
            return count if count < most else most
        return count

    def of(self, held: Held, holder: Holder, tokens: int, start: int, hits: list[list[int]],
           capped: bool, step: int) -> int:  # fmt: skip
        """Blocks that must be free so that a sequence can go from `start` tokens to `tokens`."""
        total, free_among = 0, self.pool.free_among
        for group, spec in enumerate(self.specs):
            size, found, have = spec.block_size, hits[group], len(held.tables[group])
            count, inside = -(-tokens // size), len(found) > 0 and start % size > 0
            if self.states[group]:
                if found and found[-1] and found[-1] in self.pool.young:
                    return self.pool.num_blocks  # its state is written in this very step
                extra = int(inside or held.pending[group] > 0)
                new = max(count - len(found) - have, 0) + extra
                if new > 1 + extra:
                    new = min(new, 1 + extra + (self.export(held, holder, start, tokens, hits) > 0))
                total += new + free_among(found)
                continue
            if capped:
                count = self._capped(spec, count, step)
            low = spec.behind(start) // size
            total += max(count - max(low, len(found) + have), 0) + inside
            if found:
                total += free_among(found[low:])
        return total

    def export(self, held: Held, holder: Holder, start: int, end: int, hits: list[list[int]]) -> int:
        """Tokens of the state that is exported on the way; 0 = none."""
        if not self.caching or not self.chunks.exports:
            return 0
        tables = held.tables if any(held.tables) else hits
        return self.chunks.export(start, end, max(holder.prompt_tokens, holder.known_tokens - 1), tables)
