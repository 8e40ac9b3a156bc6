"""The words of schedulers and allocators: a sequence, an admission asked for it, moves, and the books of the pool."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np


class AllocatorError(RuntimeError):
    """A call that breaks the contract: freed twice, freed unknown, grown past the capacity. Names the sequence."""


NO_KEYS = np.empty((0, 2), dtype=np.int64)


@dataclass(slots=True, eq=False)
class Holder:
    """What the allocator knows of one sequence. Schedulers extend it; only the allocator writes these fields.

    Attributes:
        name: the sequence's name in messages.
        row: the sequence's row of `Allocator.tables`, -1 while it holds nothing.
        stored: tokens whose K and V are in the pool, including those that the current step writes.
        room: tokens that the sequence may store before `grow` must be called.
        held: slots allocated, rounding included.
        promise: R, slots promised at admission (0 = on demand).
        final: F, tokens stored when the sequence ends; for the books only.
        finished: the sequence produced its last token and keeps its slots until its static batch ends
            (`free(hold=True)`).
    """

    name: str
    row: int = -1
    stored: int = 0
    room: int = 0
    held: int = 0
    promise: int = 0
    final: int = 0
    finished: bool = False

    def block_hashes(self, block_size: int, count: int) -> Sequence[Hashable]:
        """Hashes of the first `count` full blocks of `block_size` tokens, for prefix reuse.

        Two hashes are equal only if both blocks, and all blocks before them, hold the same tokens. Fewer than `count`
        if the rest is unknown; none by default, so nothing is reused.
        """
        return ()

    def token_keys(self, count: int) -> np.ndarray:
        """Keys of the first `count` tokens, for prefix reuse by tokens: ``[count, 2]`` int64.

        Two sequences share exactly those leading tokens whose rows are equal. Fewer than `count` if the rest is
        unknown (or more, if available); none by default, so nothing is reused.
        """
        return NO_KEYS

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; by default the final length."""
        return self.final

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt and of the output so far."""
        return self.stored

    @property
    def common_tokens(self) -> int:
        """Leading tokens that other sequences may share; only this sequence can reuse the tokens behind them."""
        return self.stored


class Hit(NamedTuple):
    """A prefix hit: what of a sequence is in the pool before its admission, in tokens (= slots).

    Attributes:
        tokens: leading tokens of the sequence that need not be computed.
        held: how many of them lie in slots that another sequence holds now, so that reusing them takes no free slot.
        found: private to the allocator that found the hit; returned to it at admission.
    """

    tokens: int = 0
    held: int = 0
    found: Any = None  # `object` is no name that a compiled module knows


NO_HIT = Hit()


@dataclass(slots=True)  # frozen, each one would cost a microsecond more
class Ask:
    """What a scheduler asks for at admission, in tokens (= slots) for each sequence of a group. Not to be changed.

    Attributes:
        tokens: tokens stored after this step, a prefix hit included.
        promise: R, slots reserved until the sequence ends; 0 reserves nothing (on demand).
        must_fit: tokens that must fit now although only `tokens` are allocated (vLLM's `full_sequence_must_fit`, for a
            prompt in chunks); 0 = only `tokens` must fit.
        spare: slots that must stay free afterwards (the watermark), for the whole group.
        final: F, for the books only. An allocator must not decide by it.
        hit: the result of `Allocator.lookup` just before, if it is to be reused.
        count: sequences in the group.
    """

    tokens: int
    promise: int = 0
    must_fit: int = 0
    spare: int = 0
    final: int = 0
    hit: Hit = NO_HIT
    count: int = 1

    @property
    def need(self) -> int:
        """Tokens of room that each sequence must get at admission."""
        return self.tokens if self.tokens > self.promise else self.promise

    @property
    def slots(self) -> int:
        """Slots asked for before rounding: what must be free in a pool without fragmentation."""
        return self.count * (max(self.tokens, self.promise, self.must_fit) - self.hit.held) + self.spare


class Move(NamedTuple):
    """`length` slots to copy before the step's attention: copy-on-write, compaction (`copy`), or swap (`out`, `in`)."""

    kind: Literal["copy", "out", "in"]
    source: int
    target: int
    length: int


class Books(NamedTuple):
    """Every slot of the pool in exactly one column; the columns sum to `capacity`. See README, "The books"."""

    used: int
    finished_held: int
    reserved: int
    over_reserved: int
    rounding: int
    cached: int
    fragmented: int
    short: int
    free: int


class LayoutBooks(NamedTuple):
    """The books of a pool whose layers keep different tokens; the columns sum to it, in the layout's units.

    Attributes:
        out_of_window: held, but no layer will read it again.
        padding: units of pages that their layers do not use.
        state: states of live sequences.
    """

    used: int
    finished_held: int
    reserved: int
    over_reserved: int
    rounding: int
    cached: int
    fragmented: int
    short: int
    free: int
    out_of_window: int
    padding: int
    state: int

    @property
    def held(self) -> tuple[int, ...]:
        """Held and cached units: all columns but the three kinds of free ones."""
        return (*self[:6], *self[9:])


class Growth(NamedTuple):
    """Decode steps taken at once (`Allocator.extend`).

    Attributes:
        rounds: number of steps granted.
        shifts: (step, change of each of the first six columns of the books, then of each of `Allocator.extra_columns`);
            the change holds from that step on. In addition, each step turns one slot of every sequence from `reserved`
            into `used`.
    """

    rounds: int
    shifts: list[tuple[int, ...]]

    def books(self, before: Books | LayoutBooks, lanes: int, asked: int | None = None) -> list[Books | LayoutBooks]:
        """The books of each step, given those before the first, while the queue's head is refused `asked` slots."""
        books, capacity, columns = list[Books | LayoutBooks](), sum(before), [*before[:6], *before[9:]]
        for done in range(self.rounds):
            columns[0] += lanes
            columns[2] -= lanes
            for _, *shift in (shift for shift in self.shifts if shift[0] == done):
                columns = [old + more for old, more in zip(columns, shift, strict=False)]
            unheld = unheld_columns(capacity - sum(columns) + columns[5], columns[5], asked)
            books.append(type(before)._make([*columns[:6], *unheld, *columns[6:]]))
        return books


def unheld_columns(unheld: int, cached: int, asked: int | None) -> tuple[int, int, int]:
    """(fragmented, short, free): the slots that no sequence holds, while the queue's head is refused `asked` slots."""
    free = unheld - cached
    return (0, 0, free) if asked is None else (free, 0, 0) if unheld >= asked else (0, free, 0)


def check_block_size(size: int) -> None:
    """Check that kernels can address blocks of `size` tokens.

    Raises:
        ValueError: the size is neither a power of two up to 512 nor a multiple of 16.
    """
    if type(size) is not int or size <= 0 or (size % 16 and size not in (1, 2, 4, 8)):
        raise ValueError(f"block_size must be a power of two from 1 to 512, or a multiple of 16, got {size!r}")


def pieces(tokens: int, size: int, noun: str) -> str:
    """What `tokens` tokens take, in words: ``3 blocks of 16 slots``."""
    count = -(-tokens // size)
    return f"a {noun} of {size} slots" if count == 1 else f"{count} {noun}s of {size} slots"


def split(holder: Holder) -> tuple[int, int, int, int]:
    """(used, reserved, over_reserved, rounding): a live sequence's slots, each in the first column that applies."""
    held, used, true_end, promised_end = holder.held, holder.stored, holder.final, holder.promise
    if true_end > held:
        true_end = held
    if true_end < used:
        true_end = used
    if promised_end > held:
        promised_end = held
    if promised_end < true_end:
        promised_end = true_end
    return used, true_end - used, promised_end - true_end, held - promised_end


def spans_from(spans: list[tuple[int, int]], token: int) -> list[tuple[int, int]]:
    """The part of `spans` behind the first `token` tokens."""
    rest = []
    for start, length in spans:
        if token < length:
            rest.append((start + token, length - token))
        token = max(token - length, 0)
    return rest
