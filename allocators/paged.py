"""Paged placement (PagedAttention): fixed-size blocks, a block table per sequence, growth on demand, prefix reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from allocators.base import NO_HIT, Allocator, AllocatorError, Growth, Hit, Holder, Move, split
from allocators.block_pool import BlockPool
from allocators.books import check_block_size, pieces
from allocators.forks import Forks
from allocators.host import Host
from allocators.layout import Kept


class Paged(Allocator):
    """Blocks of `block_size` slots; waste per sequence is less than one block.

    Blocks are handed out and taken back in vLLM's order (see `BlockPool`). The slots behind the last whole block stay
    free for ever.

    With prefix caching, a block that is full of stored tokens can be found by its content, also after its sequences are
    gone and until it is handed out for something else. It is found from `commit` on: tokens that are committed but not
    computed yet may be relied on by whatever is computed in the same step or later.

    A fork shares all blocks; who writes first into a shared last block gets a copy of it (copy-on-write), see `Forks`.
    A promise covers the sequence it was made to, not its forks: those grow on demand.

    Args:
        block_size: slots in a block, a power of two from 1 to 512 or a multiple of 16.
        enable_prefix_caching: whether full blocks are kept and shared by their content (`Holder.block_hashes`).
        freed_blocks: where freed blocks without content join the free list, `front` (vLLM 0.33) or `back` (0.16 to
            0.20).
        host_slots: slots of the host pool for swapped sequences, cut to whole blocks; 0 = no swapping.
    """

    grows = True
    forks_share = True

    def __init__(self, capacity: int, max_model_len: int, block_size: int = 16, enable_prefix_caching: bool = False,
                 freed_blocks: Literal["front", "back"] = "front", host_slots: int = 0) -> None:  # fmt: skip
        check_block_size(block_size)
        if freed_blocks not in ("front", "back"):
            raise ValueError(f"freed_blocks must be front or back, got {freed_blocks!r}")
        if isinstance(host_slots, bool) or not isinstance(host_slots, int) or host_slots < 0:
            raise ValueError(f"host_slots must be a whole number of slots, 0 or more, got {host_slots!r}")
        if 0 < host_slots < block_size:
            raise ValueError(f"host_slots={host_slots} hold no block of {block_size} slots; 0 = no swapping")
        self.block_size = block_size
        super().__init__(capacity, max_model_len)
        self.shares = self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(capacity // block_size, freed_to_back=freed_blocks == "back")
        self._blocks: dict[int, list[int]] = {}  # by row
        self._registered: dict[int, int] = {}  # by row: leading blocks that can be found by their content
        self._finished_holders: Counter[int] = Counter()  # by block: holders that are finished but not freed
        self._forks = Forks(block_size)
        self._host = Host(host_slots // block_size)
        if host_slots:  # (an instance with 30 attributes loses CPython's fast access to them: 5 % of a simulation)
            self.host_capacity = self._host.num_blocks * block_size

    def footprint(self, tokens: int) -> int | None:
        blocks = -(-tokens // self.block_size)
        return blocks * self.block_size if blocks <= self.pool.num_blocks else None

    def describe_footprint(self, tokens: int) -> str:
        return "" if tokens > self.capacity else pieces(tokens, self.block_size, "block")

    def lookup(self, holder: Holder, most: int) -> Hit:
        if not self.enable_prefix_caching:
            return NO_HIT
        found = self._find(holder, most // self.block_size)
        free = self.pool.count_free(found)
        return Hit(len(found) * self.block_size, (len(found) - free) * self.block_size)

    def place(self, holder: Holder, tokens: int) -> int | None:
        hit = self._hit(holder) if holder.stored else []
        pool, count = self.pool, -(-tokens // self.block_size) - len(hit)
        if hit:
            if count + pool.count_free(hit) > pool.num_free:
                return None
            pool.touch(hit)
            self._forks.join(hit, holder)
        new = pool.allocate(count)
        if new is None:
            return None
        blocks = hit + new
        self._blocks[holder.row] = blocks
        self._registered[holder.row] = len(hit)
        self.set_row(holder, 0, blocks)
        return len(blocks) * self.block_size

    def widen(self, holder: Holder, tokens: int) -> int:
        row, size = holder.row, self.block_size
        blocks, rest = self._blocks[row], holder.held % size
        have = len(blocks)
        new = self.pool.allocate(-(-tokens // size) - have + (1 if rest else 0))
        if new is None:
            return 0
        if rest:
            return self._own_last(holder, new)
        blocks += new
        if len(new) > 1:
            self.set_row(holder, have, new)
            return len(new) * size
        self.tables[row, have] = new[0]
        self._dirty.add(row)
        return size

    def fork(self, parent: Holder, child: Holder, common: int = 0) -> bool:
        """Share every block with stored tokens; it takes none, so it is never refused."""
        self._known(parent)
        if child is parent:
            raise AllocatorError(f"{child.name} can't be forked from itself")
        if child.row >= 0:
            self.free(child)
        blocks = self._blocks[parent.row][: -(-parent.stored // self.block_size)]
        self.pool.touch(blocks)
        self._forks.ever = True
        self._forks.join(blocks, child)
        if rest := parent.stored % self.block_size:
            self._forks.borrow(blocks[-1], parent, child, rest)
        child.final = parent.final
        self._settle(child, blocks, parent.stored, parent.stored, self._registered[parent.row])
        return True

    def swap(self, group: Sequence[Holder], to_host: bool, spare: int = 0) -> bool:
        return self._swap_out(group) if to_host else self._swap_in(group, spare)

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """In bulk: the blocks that growing round by round would take, in the same order."""
        if self.enable_prefix_caching or self._forks.blocks or self._over or self._by_layer:
            return super().extend(seqs, rounds)
        lanes, size, granted = len(seqs), self.block_size, rounds
        wanted = [left * lanes + lane for lane, seq in enumerate(seqs) if (left := seq.room - seq.stored) < rounds]
        if wanted:
            if rounds > size:
                wanted = [key for first in wanted for key in range(first, rounds * lanes, size * lanes)]
            wanted.sort()
            if len(wanted) > self.pool.num_free:
                granted = wanted[self.pool.num_free] // lanes
                del wanted[self.pool.num_free :]
        if not self._store(seqs, granted):
            return super().extend(seqs, rounds)
        return Growth(granted, self._widen_each(seqs, wanted) if wanted else [])

    def _widen_each(self, seqs: Sequence[Holder], wanted: Sequence[int]) -> list[tuple[int, ...]]:
        """A block for every lane and round of `wanted` (round * lanes + lane, ascending); how the books change."""
        size, rows, lanes, dirty = self.block_size, self._blocks, len(seqs), self._dirty
        tables: Any = memoryview(self.tables)  # type: ignore[arg-type]  # sets one entry in half the time
        shifts, last, gained, beyond, rounding = list[tuple[int, ...]](), wanted[0] // lanes, 0, 0, 0
        for key, block in zip(wanted, self.pool.allocate(len(wanted)) or (), strict=True):
            at, lane = divmod(key, lanes)
            if at != last:  # slots gained in a round: all, and never to be used
                shifts.append((last, 0, 0, gained - beyond, 0, beyond, 0))
                last, gained, beyond = at, 0, 0
            seq = seqs[lane]
            row = seq.row
            blocks = rows[row]
            tables[row, len(blocks)] = block
            blocks.append(block)
            dirty.add(row)
            seq.held += size
            seq.room = room = seq.room + size
            gained += size
            if room > seq.final:
                never = min(room - seq.final, size)
                beyond += never
                rounding += never
        self._rounding += rounding
        self._reserved += len(wanted) * size - rounding
        return [*shifts, (last, 0, 0, gained - beyond, 0, beyond, 0)]

    def release(self, holder: Holder) -> None:
        blocks = self._blocks.pop(holder.row)
        del self._registered[holder.row]
        if holder.finished:
            self._finished_holders.subtract(blocks)
        if self._forks.blocks:
            self._bequeath(holder, blocks)
        self.pool.free(blocks)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        size, left = self.block_size, holder.held
        return [(block * size, min(size, left - i * size)) for i, block in enumerate(self._blocks[holder.row])]

    def commit(self, seqs: Sequence[Holder], counts: Sequence[int]) -> None:
        super().commit(seqs, counts)
        if self.enable_prefix_caching:
            size, registered = self.block_size, self._registered
            for holder in seqs:
                if holder.stored >= (registered[holder.row] + 1) * size:
                    self._register(holder, holder.stored // size)

    def free(self, holder: Holder, hold: bool = False) -> None:
        super().free(holder, hold)
        if hold:
            self._finished_holders.update(self._blocks[holder.row])

    @property
    def free_slots(self) -> int:
        return self.pool.num_free * self.block_size  # the remainder behind the last whole block is never handed out

    @property
    def cached_slots(self) -> int:
        return self.pool.num_cached * self.block_size

    def cached_spans(self) -> list[tuple[int, int]]:
        return [(block * self.block_size, self.block_size) for block in self.pool.cached()]

    @property
    def host_used(self) -> int:
        return self._host.used * self.block_size

    @property
    def saved_slots(self) -> int:
        return self.pool.num_shared * self.block_size

    def shared(self, holder: Holder) -> tuple[int, int]:
        if not self.pool.shared:
            return 0, 0
        size, others, me, ended = self.block_size, self.pool.shared, int(holder.finished), self._finished_holders
        blocks = [block for block in self._blocks[holder.row] if block in others]
        parts = [self._forks.overlap(block, holder) for block in blocks if block in self._forks.blocks]
        if parts:
            blocks = [block for block in blocks if block not in self._forks.blocks]
        live = sum(others[block] > ended[block] - me for block in blocks) if ended else len(blocks)
        finished = (len(blocks) - live) * size + sum(finished for _, finished in parts)
        return live * size + sum(live for live, _ in parts), finished

    def unread(self, kept: Kept) -> int:
        count = super().unread(kept)
        if not self.pool.shared:
            return count
        size, ends = self.block_size, dict[int, list[tuple[int, int]]]()  # by shared block: slots held, and unread
        for holder in self._holders.values():
            if not holder.finished:
                blocks = self._blocks[holder.row]
                for at, block in enumerate(blocks[: -(-holder.stored // size)]):
                    if block in self.pool.shared:
                        held = min(holder.held - at * size, size)
                        ends.setdefault(block, []).append(
                            (held, min(max(kept.behind(holder.stored) - at * size, 0), held))
                        )
        for sharers in ends.values():
            slots = max(held for held, _ in sharers)
            none = [all(at < unread for held, unread in sharers if at < held) for at in range(slots)]
            count += sum(none) - sum(unread for _, unread in sharers)
        return count

    def _find(self, holder: Holder, most: int) -> list[int]:
        """The longest chain of at most `most` blocks in the pool that contain the beginning of `holder`."""
        first, found = self.pool.first, []
        for content in holder.block_hashes(self.block_size, most):
            block = first.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def _hit(self, holder: Holder) -> list[int]:
        """The blocks of the hit that an admission claims."""
        count, rest = divmod(holder.stored, self.block_size)
        found = self._find(holder, count) if self.enable_prefix_caching else []
        if rest or len(found) < count:
            raise AllocatorError(
                f"{holder.name} claims a prefix hit of {holder.stored} tokens; the pool holds "
                f"{len(found) * self.block_size}"
            )
        return found

    def _register(self, holder: Holder, full: int) -> None:
        """Let the blocks of `holder` up to the `full`-th be found by their content, as far as it is known."""
        start, hashes = self._registered[holder.row], holder.block_hashes(self.block_size, full)
        blocks, contents = self._blocks[holder.row][start : len(hashes)], hashes[start:]
        if self._forks.ever:  # a relative may have registered some that they share
            new = [at for at, block in enumerate(blocks) if not self.pool.is_registered(block)]
            blocks, contents = [blocks[at] for at in new], [contents[at] for at in new]
        self.pool.register(blocks, contents)
        self._registered[holder.row] = len(hashes)

    def _settle(self, holder: Holder, blocks: list[int], held: int, stored: int, registered: int) -> None:
        """Enter a sequence that holds `held` slots of `blocks`, `stored` of them full."""
        holder.row = self._take_row()
        holder.stored, holder.held, holder.room = stored, held, held
        self._blocks[holder.row], self._registered[holder.row] = blocks, registered
        self.set_row(holder, 0, blocks)
        self._enter(holder)

    def _own_last(self, holder: Holder, new: list[int]) -> int:
        """Copy-on-write: replace the borrowed last block by the first of `new`, and append the rest; slots added."""
        blocks, size, rest = self._blocks[holder.row], self.block_size, holder.held % self.block_size
        live, finished = self._forks.overlap(blocks[-1], holder)  # so far counted once for all sharers
        self._used += live
        self._finished += finished
        self._moves.append(Move("copy", blocks[-1] * size, new[0] * size, rest))
        self._forks.leave(blocks[-1], holder)
        self.pool.free(blocks[-1:])
        del blocks[-1]
        self.set_row(holder, len(blocks), new)
        blocks += new
        return len(new) * size - rest

    def _bequeath(self, holder: Holder, blocks: list[int]) -> None:
        """The rest of a last block that others borrow goes to the one of them that has written most of it."""
        for block in [block for block in blocks if block in self._forks.blocks]:
            heir = self._forks.leave(block, holder)
            if heir:
                before, rest = split(heir), -heir.held % self.block_size
                heir.held += rest
                heir.room += rest
                if heir.finished:
                    self._finished += rest
                else:
                    self._shift(before, split(heir))

    def _swap_out(self, group: Sequence[Holder]) -> bool:
        for holder in group:
            self._known(holder)
        blocks = list(dict.fromkeys(block for holder in group for block in self._blocks[holder.row]))
        if self._host.num_free < len(blocks):
            return False
        size, there = self.block_size, self._host.take(blocks, [(h, self._blocks[h.row]) for h in group])
        self._moves += [Move("out", here * size, to * size, size) for here, to in zip(blocks, there, strict=True)]
        for holder in group:
            stored, final, promise = holder.stored, holder.final, holder.promise
            self._close(holder)
            holder.stored, holder.final, holder.promise = stored, final, promise
        return True

    def _swap_in(self, group: Sequence[Holder], spare: int) -> bool:
        size, away = self.block_size, self._host.blocks_of(group)
        if self.pool.num_free * size < len(away) * size + spare:
            return False
        here = dict(zip(away, self.pool.allocate(len(away)) or [], strict=True))
        self._moves += [Move("in", block * size, to * size, size) for block, to in here.items()]
        self._forks.ever = True  # members of a group come back with blocks that they share
        first: dict[int, Holder] = {}  # by block: its owner, who has most tokens, and room for more
        theirs = [(holder, self._host.forget(holder)) for holder in group]
        for holder, hosted in sorted(theirs, key=lambda pair: (-pair[0].stored, -len(pair[1]))):
            blocks = [here[block] for block in hosted]
            self.pool.touch([block for block in blocks if block in first])
            self._forks.join(blocks, holder)
            last, held = blocks[-1], len(blocks) * size
            if last in first and holder.stored % size:
                self._forks.borrow(last, first[last], holder, holder.stored % size)
                held = holder.stored
            first.update({block: holder for block in blocks if block not in first})
            self._settle(holder, blocks, held, holder.stored, 0)
        return True
