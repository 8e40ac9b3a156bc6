"""What schedulers and allocators tell each other: a sequence, what is asked for it, moves, and where every slot is."""

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
        name: how the sequence is called in messages.
        row: its row of `Allocator.tables`, -1 while it holds nothing.
        stored: tokens whose K and V lie in the pool, the ones written in the current step included.
        room: tokens that fit in its slots without asking again.
        held: slots taken from the pool, rounding included.
        promise: R, slots promised at admission (0 = on demand).
        final: F, tokens stored when it ends; known to the books only.
        finished: it produced its last token but its static batch is not over (`free(hold=True)`).
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
        """What the first `count` full blocks of `block_size` tokens contain, for prefix reuse.

        Two are equal only if those blocks, and all before them, hold the same tokens. Fewer than `count` where the
        rest is not known; none by default, so nothing is reused.
        """
        return ()

    def token_keys(self, count: int) -> np.ndarray:
        """What the first `count` tokens are, for prefix reuse to the token: int64, one row of two numbers each.

        Two sequences begin with the same tokens as far as their rows are equal, and no further. Fewer than `count`
        where the rest is not known (or more, if they are at hand); none by default, so nothing is reused.
        """
        return NO_KEYS

    @property
    def prompt_tokens(self) -> int:
        """Tokens it began with; its end, where nobody tells."""
        return self.final

    @property
    def known_tokens(self) -> int:
        """Tokens that are there to be computed: its prompt and its answer so far."""
        return self.stored

    @property
    def common_tokens(self) -> int:
        """Leading tokens that other sequences may begin with too; those behind them only this one can find again."""
        return self.stored


class Hit(NamedTuple):
    """What of a sequence lies in the pool before it is admitted, in tokens (= slots).

    Attributes:
        tokens: its leading tokens that need not be computed.
        held: those of them in slots that some sequence holds now, so that taking them uses up no free slot.
        found: what the placement that found it wants to be told again when it is claimed.
    """

    tokens: int = 0
    held: int = 0
    found: Any = None  # `object` is no name that a compiled module knows


NO_HIT = Hit()


@dataclass(slots=True)  # frozen, each one would cost a microsecond more
class Ask:
    """What a scheduler asks for at admission, in tokens (= slots) for each sequence of a group. Nobody changes it.

    Attributes:
        tokens: room needed after this step, a prefix hit included.
        promise: R, slots reserved for the whole life of the sequence; 0 reserves nothing (on demand).
        gate: tokens that must fit now although only `tokens` are taken (a chunked prompt); 0 = no gate.
        spare: slots that must stay free afterwards (the watermark), for the group.
        final: F, for the books only. An allocator must not decide by it.
        hit: what `Allocator.lookup` said a moment ago, if it is to be reused.
        count: sequences in the group.
    """

    tokens: int
    promise: int = 0
    gate: int = 0
    spare: int = 0
    final: int = 0
    hit: Hit = NO_HIT
    count: int = 1

    @property
    def need(self) -> int:
        """Tokens of room that each sequence must get now."""
        return self.tokens if self.tokens > self.promise else self.promise

    @property
    def slots(self) -> int:
        """Slots asked before any rounding: what a pool without fragmentation would have to hold free."""
        return self.count * (max(self.tokens, self.promise, self.gate) - self.hit.held) + self.spare


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
        out_of_window: held, and no layer will read it again.
        padding: of a page, more than its layers keep in it.
        state: of live sequences, whatever their length.
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
        """What somebody holds, and what is cached: all but the three kinds of free ones."""
        return (*self[:6], *self[9:])


class Growth(NamedTuple):
    """Further steps of one token for each of some sequences.

    Attributes:
        rounds: how many were granted.
        shifts: (round, and what from it on is added to each of the first six columns of the books, then to each of
            `Allocator.extra_columns`), by round. Besides, each round turns one slot a sequence from `reserved` into
            `used`.
    """

    rounds: int
    shifts: list[tuple[int, ...]]

    def books(self, before: Books | LayoutBooks, lanes: int, asked: int | None = None) -> list[Books | LayoutBooks]:
        """The books of each round, from those before the first, while the queue's head was refused `asked` slots."""
        told, capacity, columns = list[Books | LayoutBooks](), sum(before), [*before[:6], *before[9:]]
        for done in range(self.rounds):
            columns[0] += lanes
            columns[2] -= lanes
            for _, *shift in (shift for shift in self.shifts if shift[0] == done):
                columns = [old + more for old, more in zip(columns, shift, strict=False)]
            unheld = unheld_columns(capacity - sum(columns) + columns[5], columns[5], asked)
            told.append(type(before)._make([*columns[:6], *unheld, *columns[6:]]))
        return told


def unheld_columns(unheld: int, cached: int, asked: int | None) -> tuple[int, int, int]:
    """(fragmented, short, free): what no sequence holds, while the queue's head was refused `asked` slots."""
    free = unheld - cached
    return (0, 0, free) if asked is None else (free, 0, 0) if unheld >= asked else (0, free, 0)


def check_block_size(size: int) -> None:
    """See that blocks of so many tokens can be addressed.

    Raises:
        ValueError: it is neither a power of two up to 512 nor a multiple of 16.
    """
    if type(size) is not int or size <= 0 or (size % 16 and size not in (1, 2, 4, 8)):
        raise ValueError(f"block_size must be a power of two from 1 to 512, or a multiple of 16, got {size!r}")


def pieces(tokens: int, size: int, noun: str) -> str:
    """``3 blocks of 16 slots``: what holds `tokens` tokens."""
    count = -(-tokens // size)
    return f"a {noun} of {size} slots" if count == 1 else f"{count} {noun}s of {size} slots"


def split(holder: Holder) -> tuple[int, int, int, int]:
    """(used, reserved, over_reserved, rounding) of what a live sequence holds, each slot in the first that applies."""
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
    """What of `spans` lies behind the first `token` tokens."""
    rest = []
    for start, length in spans:
        if token < length:
            rest.append((start + token, length - token))
        token = max(token - length, 0)
    return rest
