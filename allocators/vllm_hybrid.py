"""vLLM's hybrid manager: groups of layers with equal pages in one pool of blocks, step for step as its version 0.33."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from allocators.base import NO_HIT, Allocator, AllocatorError, Ask, Grid, Growth, Hit, Holder, KVLayout, Move, Part
from allocators.books import check_block_size
from allocators.keyed_pool import KeyedPool
from allocators.layout import Kept
from allocators.vllm_books import shared_columns
from allocators.vllm_chunks import Chunks
from allocators.vllm_groups import Engine, Group, Spec
from allocators.vllm_held import Held
from allocators.vllm_hits import Found, Hits
from allocators.vllm_keys import Keys
from allocators.vllm_needs import Needs
from allocators.vllm_pool import Geometry


class VllmHybrid(Allocator):
    """Groups of layers share one pool of blocks, whose size suits the largest group; windows are trimmed step by step.

    What lies behind a window, or before the running state, is given back in front of the next step. With prefix caching
    a prefix counts as far as *every* group still has it: all of a full group, the last window of a sliding one, a state
    at its end. Block 0 is the null block, and stays free for ever.

    What is given back goes by the tokens that are scheduled. Where the engine schedules a step ahead (asynchronously),
    it goes by those that are computed, so that there everything is given back one step later than here.

    Args:
        layout: what the model keeps; pages are made equal and groups formed as the engine does (`vllm_groups`).
        block_size: tokens in a block, a power of two or a multiple of 16, before it is raised to hold a state.
        enable_prefix_caching: whether what was computed is kept for reuse; states then are kept at the ends of blocks.
        retention_interval: where a window's or a state's end is kept for reuse: 0 = at the end of a prompt and where
            siblings parted; N = besides at every multiple of N tokens; null = at every block.
        match_unit: tokens that prefixes are compared by; 0 = what suits the groups.
        hybrid: False: every layer keeps all tokens (`--disable-hybrid-kv-cache-manager`).
        export_states: whether kernels of the gated delta rule export states inside a prompt (on Hopper).
        geometry: groups that are formed already, in place of all that forms them.

    Raises:
        ValueError: layers that the engine can't serve together, or a pool of less than two blocks.
    """

    grows = True
    reserves = False
    can_fork = False

    def __init__(self, capacity: int, max_model_len: int, layout: KVLayout | None = None, block_size: int = 16,
                 enable_prefix_caching: bool = False, retention_interval: int | None = 0, match_unit: int = 0,
                 hybrid: bool = True, export_states: bool = True,
                 geometry: Geometry | None = None) -> None:  # fmt: skip
        if geometry is None:
            check_block_size(block_size)
            if layout is None:
                raise ValueError("layout is needed: what the model keeps")
            engine = Engine(
                block_size, max_model_len, prefix_caching=enable_prefix_caching, hybrid=hybrid, exports=export_states,
                match_unit=match_unit,
            )  # fmt: skip
            geometry = Geometry.of(layout, engine)
        devices, unit_bytes = (layout.devices, layout.unit_bytes) if layout else (1, 1)
        unit = geometry.block_bytes * devices // unit_bytes
        if capacity // unit < 2:
            raise ValueError(
                f"the pool of {capacity} units holds no block of {unit} beside the null block; a block has "
                f"{geometry.smallest} tokens"
            )
        kept = [_kept(group, devices, unit_bytes) for group in geometry.groups]
        grids = [Grid(group.spec.block_size, unit) for group in geometry.groups]
        self.block_size = geometry.smallest
        super().__init__(capacity, max_model_len, kept, grids)
        self.by_layers(kept)
        self.grain = unit
        self.null_blocks = 1
        self.geometry = geometry
        if layout is not None:
            numbers = sorted([(number, at) for at, group in enumerate(layout.groups) for number in group.layers])
            self.group_layers = tuple([tuple([numbers[at][0] for at in group.layers]) for group in geometry.groups])
        self.num_blocks = capacity // unit
        self.specs: list[Spec] = [group.spec for group in geometry.groups]
        self.pool = KeyedPool(self.num_blocks, len(kept))
        self.shares = self.enable_prefix_caching = enable_prefix_caching
        self.unit = geometry.hash_unit
        self.hits = Hits(geometry, self.pool)
        self.chunks = Chunks(geometry)
        self.chunks.sparse = retention_interval == 0
        self.needs = Needs(geometry, self.pool, self.chunks, max_model_len, enable_prefix_caching)
        self.keys = Keys(geometry, self.pool, self.chunks, retention_interval)
        self.aligned_chunks = enable_prefix_caching and bool(self.chunks.states)
        self._no_hits: list[list[int]] = [[] for _ in kept]
        self._states = self.needs.states
        self._held_by: dict[int, Held] = {}  # by row
        self._copied: list[list[tuple[int, int]]] = [[] for _ in kept]
        self._asked = Ask(1)

    # ---- what is asked before anything is taken ----------------------------------------------------------------------

    def footprint(self, tokens: int) -> int | None:
        """Of a prompt in one piece: its window shrinks only afterwards."""
        blocks = self.needs.whole(tokens)
        return blocks * self.grain if blocks < self.num_blocks else None

    def fits(self, prompt: int, tokens: int, whole: bool, piece: int) -> bool:
        """With prefix caching too it must fit with nothing found of its prompt: nobody can promise what will be."""
        room, start, alone, step = self.num_blocks - 1, 0, self.needs.alone, self.max_step_tokens
        if sum([spec.blocks(tokens, step) for spec in self.specs]) <= room:
            return True
        if whole and sum(alone(prompt, 0, True, step)) > room:
            return False
        for end in [*range(piece, prompt, piece), prompt]:
            if sum(alone(end, start, False, step)) > room:
                return False
            start = end
        last = range(tokens, max(prompt, tokens - max([spec.block_size for spec in self.specs])), -1)
        return all(sum(alone(end, end - 1, False, step)) <= room for end in last)

    def lookup(self, holder: Holder, most: int) -> Hit:
        if not self.enable_prefix_caching or most <= 0:
            return NO_HIT
        contents = holder.block_hashes(self.unit, most // self.unit)
        found = self.hits.look_up(contents, most)
        if not found.tokens and not found.junction:
            return NO_HIT
        users = self.pool.users
        held = sum([1 for table in found.tables for block in table if block and users[block]])
        return Hit(found.tokens, held * self.grain, found)

    def chunk_tokens(self, holder: Holder, hit: Hit, count: int, most: int) -> int:
        found = hit.found
        if holder.row >= 0:
            start, junction = holder.stored, self._held_by[holder.row].junction
        else:
            start, junction = hit.tokens, found.junction if isinstance(found, Found) else 0
        end = self.chunks.end(start, start + count, holder.prompt_tokens, holder.known_tokens, junction, most)
        return end - start

    # ---- places ------------------------------------------------------------------------------------------------------

    def admit(self, seqs: Sequence[Holder], ask: Ask) -> int | None:
        self._asked = ask
        return super().admit(seqs, ask)

    def exceeds_free(self, ask: Ask) -> bool:
        """Of a group. How many blocks one sequence needs depends on what was found, too: `place` sees to it."""
        if ask.count == 1:
            return False
        each = [1 if states else -(-ask.need // spec.block_size)
                for spec, states in zip(self.specs, self._states, strict=True)]  # fmt: skip
        return sum(each) * ask.count * self.grain > self.free_slots - ask.spare + ask.hit.held * ask.count

    def place(self, holder: Holder, tokens: int) -> int | None:
        ask, hit = self._asked, holder.stored
        found = ask.hit.found if isinstance(ask.hit.found, Found) else Found(0, [])
        if hit and (found.tokens != hit or not self.enable_prefix_caching):
            raise AllocatorError(f"{holder.name} claims a prefix hit of {hit} tokens that was not found")
        hits = found.tables or self._no_hits
        room = self.pool.num_free - -(-ask.spare // self.grain)
        held = Held(len(self.specs), found.junction)
        if ask.must_fit > 0 and self._need(held, holder, min(ask.must_fit, self.max_model_len), hits, True) > room:
            return None
        if self._need(held, holder, tokens, hits, False) > room:
            return None
        self._held_by[holder.row] = held
        if any(hits):
            self._adopt(holder, held, hits, hit)
        self._grow_all(holder, held, tokens, hit)
        return sum([self._blocks(held, group) for group in range(len(self.specs))]) * self.grain

    def _grow_by_layer(self, holder: Holder, tokens: int) -> int:
        held = self._held_by[holder.row]
        holder.held -= self.trim(holder)
        if self._need(held, holder, tokens, self._no_hits, False) > self.pool.num_free:
            self._update_ledger(holder, holder.stored)
            return 0
        holder.held += self._grow_all(holder, held, tokens, holder.stored) * self.grain
        self._update_ledger(holder, tokens)
        return holder.room

    def trim(self, holder: Holder) -> int:
        """Walks each table down from what no layer will read again."""
        held, stored, given = self._held_by[holder.row], holder.stored, 0
        for group, spec in enumerate(self.specs):
            behind = spec.behind(stored)
            if not behind:
                continue
            table, states = held.tables[group], self._states[group]
            end, gone = min(behind // spec.block_size, len(table)), list[int]()
            for at in range(end - 1, (held.retired[group] if states else 0) - 1, -1):
                if table[at]:
                    gone.append(table[at])
                    table[at] = 0
                    self.set_row(holder, at, [-1], group)
                elif not states:
                    break
            if gone:
                self.pool.free(gone, holder.row)
                given += len(gone)
            if states:
                held.retired[group] = max(held.retired[group], end)
                given += self._drop_previous(holder, held, group, -(-stored // spec.block_size) - 1)
        return given * self.grain

    def _drop_previous(self, holder: Holder, held: Held, group: int, running: int) -> int:
        """A state lives one step longer than the one that replaced it."""
        at, table = held.previous[group], held.tables[group]
        if not 0 <= at < running or not table[at]:
            return 0
        self.pool.free([table[at]], holder.row)
        table[at] = 0
        self.set_row(holder, at, [-1], group)
        return 1

    def release(self, holder: Holder) -> None:
        for table in self._held_by.pop(holder.row).tables:
            self.pool.free(reversed(table), holder.row)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        tables, size = self._held_by[holder.row].tables, self.grain
        return [(block * size, size) for table in tables for block in table if block]

    def occupied(self, holder: Holder) -> list[Part]:
        held, parts = self._held_by[holder.row], list[Part]()
        for group, spec in enumerate(self.specs):
            table = held.tables[group]
            if spec.kind == "mamba":
                count = len(table) - table.count(0)
                parts.append(Part(0, len(table) * spec.block_size, count * self.grain, count))
            else:
                gone = self._gone(held, group)
                units = (len(table) - gone) * self.grain
                parts.append(Part(gone * spec.block_size, len(table) * spec.block_size, units))
        return parts

    def _gone(self, held: Held, group: int) -> int:
        """Leading columns of a table in which nothing is stored any more."""
        table, spec = held.tables[group], self.specs[group]
        if not spec.reach:
            return 0
        low, high = 0, len(table)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if table[middle] else (middle + 1, high)
        return low

    def _blocks(self, held: Held, group: int) -> int:
        table = held.tables[group]
        return len(table) - (table.count(0) if self._states[group] else self._gone(held, group))

    def _update_ledger(self, holder: Holder, tokens: int) -> None:
        """Enter what it holds; it need not ask again before there is no room, or something to be given back."""
        held, parts, room = self._held_by[holder.row], self.occupied(holder), self.max_model_len
        for at, part in enumerate(parts):
            kept = self.kept[at]
            room = min(room, part.end)
            if kept.reach:
                room = min(room, kept.until(part.first, self.specs[at].block_size))
            elif part.states > 1 or held.pending[at]:
                room = tokens
        if self.chunks.exports and holder.stored < holder.prompt_tokens:
            room = tokens
        holder.room = room if room > tokens else tokens
        if self._ledger is not None:
            self._ledger.update(holder, parts)

    # ---- what growing takes ------------------------------------------------------------------------------------------

    def _need(self, held: Held, holder: Holder, tokens: int, hits: list[list[int]], capped: bool) -> int:
        """Blocks that must be free so that a sequence can go on from what it has stored to `tokens`."""
        return self.needs.of(held, holder, tokens, holder.stored, hits, capped, self.max_step_tokens)

    def _adopt(self, holder: Holder, held: Held, hits: list[list[int]], hit: int) -> None:
        for group, found in enumerate(hits):
            size = self.specs[group].block_size
            low = min(self.specs[group].behind(hit) // size, len(found))
            for block in found[low:]:
                if block:
                    self.pool.touch(block, holder.row)
            held.tables[group] = [0] * low + found[low:]
            self.set_row(holder, 0, [block or -1 for block in held.tables[group]], group)
            held.considered[group] = len(found)
            if found and hit % size:
                held.considered[group] = hit // size
                held.pending[group] = 1

    def _grow_all(self, holder: Holder, held: Held, tokens: int, start: int) -> int:
        """Lengthen all tables for `tokens`; blocks that it holds besides."""
        added = 0
        exported = self.needs.export(held, holder, start, tokens, held.tables)
        for group, spec in enumerate(self.specs):
            table, count = held.tables[group], -(-tokens // spec.block_size)
            pending, first = held.pending[group], len(table)
            if self._states[group]:
                if count <= first and not pending and not exported:
                    continue
                if pending:
                    first = min(first, self._copy(holder, held, group))
                held.previous[group] = len(table) - 1
                table += [0] * (count - 1 - (exported > 0) - len(table))
            elif pending:
                first = min(first, self._copy(holder, held, group))
            if count > len(table):
                added += count - len(table)
                table += self.pool.allocate(count - len(table), group, holder.row)
            if first < len(table):
                self.set_row(holder, first, [block or -1 for block in table[first:]], group)
        held.exported = (exported, tokens)
        return added

    def _copy(self, holder: Holder, held: Held, group: int) -> int:
        """What a found block holds is copied to one of its own, or the keys of a state go on to a copy of it."""
        table, pending = held.tables[group], held.pending[group]
        source = table[-1]
        held.pending[group] = 0
        if pending == 1:
            (target,) = self.pool.allocate(1, group, holder.row)
            self.pool.users[source].remove(holder.row)
            self.pool.users[source].append(-1)
            self.pool.touch(target, -1)
            table[-1] = target
        else:
            (target,) = self.pool.allocate(1, group, -1)
            self.pool.touch(source, -1)
            self.pool.hand_over(source, target)
        self._copied[group].append((source, target))
        self._moves = [
            Move("copy", here * self.grain, there * self.grain, self.grain)
            for pairs in self._copied for here, there in pairs
        ]  # fmt: skip
        return len(table) - 1

    # ---- keys --------------------------------------------------------------------------------------------------------

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        super().commit(seqs, counts)
        if self.enable_prefix_caching:
            for holder in seqs:
                held = self._held_by[holder.row]
                if holder.stored >= held.due:
                    self.keys.register(holder, held)

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """Where blocks are shared it ends before anybody asks: what is saved by that may change then."""
        if self.pool.shared:
            rounds = min([rounds, *[seq.room - seq.stored for seq in seqs]])
        growth = super().extend(seqs, rounds)
        self.pool.young.clear()  # the steps are over
        return growth

    def take_moves(self) -> list[Move]:
        """The step is scheduled: what is to be copied need not be kept from now on."""
        for group, pairs in enumerate(self._copied):
            for pair in pairs:
                for block in pair:
                    self.pool.free([block], -1)
            self._copied[group] = []
        self.pool.young.clear()
        return super().take_moves()

    # ---- the books ---------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, float]:
        """What the engine would print of the pool when it starts, scheduling asynchronously as it does by default."""
        geometry = replace(self.geometry, engine=self.geometry.engine._replace(in_flight=2 * self.max_step_tokens))
        available = self.num_blocks * geometry.block_bytes
        return {
            "printed_kv_tokens": int(geometry.concurrency(available) * self.max_model_len),
            "printed_concurrency": geometry.concurrency(available),
            "num_blocks": self.num_blocks,
            "padding_at_max_len_pct": 100 * geometry.padding_at_max_len,
        }

    @property
    def free_slots(self) -> int:
        return self.pool.num_free * self.grain

    @property
    def cached_slots(self) -> int:
        return sum(self.pool.cached) * self.grain

    def cached_spans(self) -> list[tuple[int, int]]:
        return [(block * self.grain, self.grain) for block in self.pool.cached_blocks()]

    @property
    def saved_slots(self) -> int:
        return self._saved * self.grain

    @property
    def _saved(self) -> int:
        if not self._copied_now:
            return self.pool.num_shared
        return sum([sum([user >= 0 for user in self.pool.users[block]]) - 1 for block in self.pool.shared])

    @property
    def _copied_now(self) -> bool:
        return any(self._copied)

    def group_books(self) -> list[list[int]]:
        groups = super().group_books()
        for columns, cached in zip(groups, self.pool.cached, strict=True):
            columns[5] = cached * self.grain
        for block in self.pool.shared:
            rows = [row for row in self.pool.users[block] if row >= 0]
            if len(rows) > 1:
                group = self.pool.group[block]
                tables = [(self._holders[row], self._held_by[row].tables[group]) for row in rows]
                twice = shared_columns(self.kept[group], self.grids[group], block, tables)
                columns = groups[group]
                for at, units in twice:
                    columns[at] -= units
        return groups


def _kept(group: Group, devices: int, unit_bytes: int) -> Kept:
    """What a group keeps, in units of the pool."""
    spec, units = group.spec, group.real * devices // unit_bytes
    if spec.kind == "mamba":
        return Kept("state", 0, units)
    name = {"full": "full", "mla": "latent", "sliding": f"window {spec.reach}", "chunked": f"chunk {spec.reach}"}
    reach = spec.reach if spec.kind in ("sliding", "chunked") else 0
    return Kept(name[spec.kind], units // spec.block_size, 0, reach, spec.kind == "chunked")
