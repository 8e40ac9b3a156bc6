"""Virtual contiguous placement (vAttention, ASPLOS'25): contiguous addresses, physical memory mapped on demand."""

from __future__ import annotations

from collections.abc import Sequence

from allocators.base import Allocator, Growth, Holder
from allocators.books import pieces


class Virtual(Allocator):
    """Every sequence is one run of virtual addresses; page groups of `page_tokens` slots are mapped behind it.

    What it holds is what `Paged` would hold with such large blocks. The differences: the hardware walks the page table,
    so the kernels of vAttention need no block table and are those of a contiguous cache; mapping takes a call of the
    driver for each page group of each layer's K and V; and page groups are as large as the driver makes them. Our own
    kernels can't map memory, so `tables` still hold block tables: the largest power of two in `page_tokens` is their
    block size, and a page group is that many entries in a row.

    The page groups of a freed sequence stay mapped to its row, where the next sequence in that row finds them (the rows
    are vAttention's request slots; the one freed last is taken first). They are unmapped only when no others are free,
    from the row that was freed or taken longest ago; in the books they are free all the same.

    Args:
        page_tokens: slots in a page group; None = as many as `page_bytes` hold, whole ones (in vAttention a token may
            lie across two).
        page_bytes: size of a page group, which holds K or V of one layer: 2 MiB (the driver as it is) or 64, 128,
            256 KiB (a modified one).
        token_bytes: K (or V) of one token in one layer of one device; `harness.job.build` says it.
        buffers: of K and V, all layers of a device together; a page group is mapped in each (`harness.job.build`).
        map_us: what a mapping and the right to access it take, in microseconds. None = as vAttention measures them: 40
            for 2 MiB, and for smaller groups 8.6, the 64 KiB of its modified driver at 7.6 GB/s.
        background: page groups for the next tokens of running sequences are mapped beside the step before, so that
            nobody waits for them; those of a prompt always delay its first step.
        deferred: freed page groups stay mapped, as above; False = they are unmapped, and mapped again for the next.
    """

    grows = True

    def __init__(self, capacity: int, max_model_len: int, page_tokens: int | None = None,
                 page_bytes: int | None = 65536, token_bytes: int | None = None, buffers: int = 2,
                 map_us: float | None = None,
                 background: bool = True, deferred: bool = True) -> None:  # fmt: skip
        self.page_tokens = _page_tokens(page_tokens, page_bytes, token_bytes)
        if type(buffers) is not int or buffers < 1:
            raise ValueError(f"buffers must be a positive whole number, got {buffers!r}")
        if map_us is None:
            map_us = 40.0 if (page_bytes or 0) >= 1 << 21 else 8.6
        if not 0 <= map_us < float("inf"):
            raise ValueError(f"map_us must be a finite number of microseconds, 0 or more, got {map_us!r}")
        self.block_size = self.page_tokens & -self.page_tokens
        self.entries = self.page_tokens // self.block_size
        super().__init__(capacity, -(-max_model_len // self.page_tokens) * self.page_tokens)  # rows end with a group
        self.max_model_len = max_model_len
        self.num_pages = capacity // self.page_tokens
        self.map_ns = round(map_us * 1000) * buffers
        self.background = background
        self.deferred = deferred
        self._unmapped = list(range(self.num_pages - 1, -1, -1))  # its end is taken first
        self._mapped: dict[int, list[int]] = {}  # by row, the one freed or taken longest ago first
        self._needed: dict[int, int] = {}  # by row: the page groups at its front that a sequence holds
        self._num_held = 0
        self._delay = 0

    def footprint(self, tokens: int) -> int | None:
        pages = -(-tokens // self.page_tokens)
        return pages * self.page_tokens if pages <= self.num_pages else None

    def describe_footprint(self, tokens: int) -> str:
        return "" if tokens > self.capacity else pieces(tokens, self.page_tokens, "page group")

    def place(self, holder: Holder, tokens: int) -> int | None:
        pages = -(-tokens // self.page_tokens)
        if pages > self.num_pages - self._num_held:
            return None
        mapped = self._mapped.pop(holder.row, [])
        self._mapped[holder.row] = mapped
        self._needed[holder.row] = 0
        self._delay += self._take(holder, pages) * self.map_ns
        return pages * self.page_tokens

    def widen(self, holder: Holder, tokens: int) -> int:
        pages = -(-tokens // self.page_tokens) - self._needed[holder.row]
        if pages > self.num_pages - self._num_held:
            return 0
        mappings = self._take(holder, pages)
        if not self.background:
            self._delay += mappings * self.map_ns
        return pages * self.page_tokens

    def extend(self, seqs: Sequence[Holder], rounds: int) -> Growth:
        """Where a step waits for its mappings, it is one of its own: ends before it."""
        if not self.background:
            rounds = min([rounds, *(seq.room - seq.stored for seq in seqs)])
        return super().extend(seqs, rounds)

    def release(self, holder: Holder) -> None:
        mapped = self._mapped.pop(holder.row)
        self._num_held -= self._needed.pop(holder.row)
        if self.deferred:
            self._mapped[holder.row] = mapped  # behind all others
        else:
            self._unmapped += reversed(mapped)

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        size, pages = self.page_tokens, self._mapped[holder.row][: self._needed[holder.row]]
        return [(page * size, size) for page in pages]

    @property
    def free_slots(self) -> int:
        return (self.num_pages - self._num_held) * self.page_tokens

    def take_delay(self) -> int:
        delay, self._delay = self._delay, 0
        return delay

    def _take(self, holder: Holder, count: int) -> int:
        """Have `count` more page groups at the front of the row of `holder`; how many had to be mapped."""
        mapped, needed = self._mapped[holder.row], self._needed[holder.row]
        missing = max(needed + count - len(mapped), 0)
        for _ in range(missing):
            mapped.append(self._unmapped.pop() if self._unmapped else self._unmap(holder.row))
        self._needed[holder.row] = needed + count
        self._num_held += count
        entries = self.entries
        blocks = [page * entries + i for page in mapped[needed : needed + count] for i in range(entries)]
        self.set_row(holder, needed * entries, blocks)
        return missing

    def _unmap(self, taker: int) -> int:
        """A page group that is mapped where nobody needs it: the last of the row freed or taken longest ago."""
        for row, mapped in self._mapped.items():
            if row != taker and len(mapped) > self._needed.get(row, 0):
                return mapped.pop()
        raise AssertionError("the caller has counted the page groups that nobody holds")


def _page_tokens(page_tokens: int | None, page_bytes: int | None, token_bytes: int | None) -> int:
    """Slots in a page group, from whatever says it."""
    if page_tokens is not None:
        if type(page_tokens) is not int or page_tokens < 1:
            raise ValueError(f"page_tokens must be a positive whole number, got {page_tokens!r}")
        return page_tokens
    if type(page_bytes) is not int or page_bytes < 1:
        raise ValueError(f"page_bytes must be a positive whole number, got {page_bytes!r} (or set page_tokens)")
    if token_bytes is None:
        raise ValueError("page_bytes needs token_bytes, K of one token in one layer (or set page_tokens)")
    if page_bytes < token_bytes:
        raise ValueError(f"a page group of page_bytes={page_bytes} holds no token: K of one takes {token_bytes} bytes")
    return page_bytes // token_bytes
