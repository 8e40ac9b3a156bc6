"""Which blocks can be found again in vLLM's hybrid manager, and by what: keys are given when tokens are scheduled."""

from __future__ import annotations

from collections.abc import Sequence

from allocators.base import Holder
from allocators.keyed_pool import Key, KeyedPool
from allocators.vllm_chunks import Chunks
from allocators.vllm_groups import Spec
from allocators.vllm_held import Held
from allocators.vllm_pool import Geometry


class Keys:
    """Gives blocks their keys.

    Args:
        retention_interval: see `VllmHybrid`.
    """

    def __init__(self, geometry: Geometry, pool: KeyedPool, chunks: Chunks, retention_interval: int | None) -> None:
        self.pool, self.chunks, self.retention_interval = pool, chunks, retention_interval
        self.specs = [group.spec for group in geometry.groups]
        self.states = [spec.aligned for spec in self.specs]
        self.unit, self.fine, self.alignment = geometry.hash_unit, geometry.fine, geometry.alignment
        self.scheduler_block = geometry.scheduler_block

    def register(self, holder: Holder, held: Held) -> None:
        """Give the blocks their keys that are full by now, as far as they are to be kept (rules 20 to 24, 32, 33)."""
        stored, unit, prompt = holder.stored, self.unit, holder.prompt_tokens
        tokens = stored if len(self.specs) == 1 or self.fine else stored // self.scheduler_block * self.scheduler_block
        contents = holder.block_hashes(unit, max(stored, holder.known_tokens) // unit)
        hashed = len(contents) * unit
        boundary = (prompt - 1) // unit * unit
        for group, spec in enumerate(self.specs):
            table, size, first = held.tables[group], spec.block_size, held.considered[group]
            full = min(tokens, hashed) // size
            for at in range(first, full):
                if table[at] and self._keeps(spec, at, prompt, held.junction):
                    end = (at + 1) * size
                    self.pool.replace(table[at], Key(group, contents[end // unit - 1], end))
            held.considered[group] = max(first, full)
            if spec.kind in ("full", "mla") and size != unit:
                end = min(boundary, hashed)
                if 0 < end <= tokens and end % size:
                    self.pool.add(table[end // size], Key(group, contents[end // unit - 1], end))
            if self.states[group]:
                if self.fine and stored == boundary and 0 < boundary <= hashed:
                    self._register_inside(holder, held, group, Key(group, contents[stored // unit - 1], stored))
                if held.exported[0]:
                    self._register_export(holder, held, group, contents)
        held.exported = (0, 0)
        ends = [(done + 1) * spec.block_size for done, spec in zip(held.considered, self.specs, strict=True)]
        held.due = 0 if stored < prompt or self.chunks.exports else min(ends)

    def _register_inside(self, holder: Holder, held: Held, group: int, key: Key) -> None:
        """The state at the last boundary of the prompt, which may lie inside a block; it is copied when it goes on."""
        size = self.specs[group].block_size
        at = (key.end - 1) // size
        self.pool.add(held.tables[group][at], key)
        if key.end % size:
            held.considered[group] = min(held.considered[group], at)
            held.pending[group] = 2
            holder.room = holder.stored

    def _register_export(self, holder: Holder, held: Held, group: int, contents: Sequence[object]) -> None:
        """The block for a state that is exported is found by the tokens of that state, or by none."""
        end, tokens = held.exported
        block = held.tables[group][-(-tokens // self.specs[group].block_size) - 2]
        ends = [at // self.alignment * self.alignment for at in (holder.prompt_tokens - 1, held.junction)]
        every = self.retention_interval
        if (end not in ends and (every == 0 or (every and end % every))) or end // self.unit > len(contents):
            self.pool.drop_keys(block)
        elif self.pool.covers(block) != end:
            self.pool.replace(block, Key(group, contents[end // self.unit - 1], end))

    def _keeps(self, spec: Spec, block: int, prompt: int, junction: int) -> bool:
        """Whether a full block is worth keeping: it lies in the last window before a point that is kept (rule 21)."""
        if spec.kind not in ("sliding", "mamba"):
            return True
        size, alignment, every = spec.block_size, self.alignment, self.retention_interval
        tail = -(-(spec.reach - 1) // size) if spec.kind == "sliding" else 1
        if not tail:
            return False
        if (every is None and spec.kind == "mamba") or (spec.kind == "sliding" and alignment % size):
            return True
        segment = alignment if every is None else every
        if 0 < segment <= tail * size:
            return True
        ends = [(prompt - 1) // alignment * alignment]
        if junction:
            ends.append(junction // alignment * alignment)
        if segment:
            ends.append(-(-(block + 1) * size // segment) * segment)
        return any(end // size - tail <= block < end // size for end in ends)
