"""Where pieces of a prompt end beside states that are kept for reuse, as in vLLM 0.33 (rules 30 and 31)."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from allocators.vllm_pool import Geometry


class Chunks:
    """Ends of pieces, and states that a kernel exports inside one.

    Attributes:
        states: groups of states that are kept for reuse.
    """

    def __init__(self, geometry: Geometry) -> None:
        specs = [group.spec for group in geometry.groups]
        self.states = [at for at, spec in enumerate(specs) if spec.aligned]
        self.sizes = [spec.block_size for spec in specs]
        self.smallest = min(self.sizes)
        self.unit, self.alignment, self.fine = geometry.hash_unit, geometry.alignment, geometry.fine
        self.exports = bool(self.states) and all(specs[at].checkpoints > 0 for at in self.states)
        self.grid = lcm(*[specs[at].grid or 1 for at in self.states])
        self.sparse = False  # whether only the last piece of a prompt exports one

    def export(self, start: int, end: int, until: int, tables: Sequence[Sequence[int]] | None) -> int:
        """Tokens of the state that is exported while `start` to `end` are computed; 0 = none.

        Args:
            until: tokens at which the last piece of the prompt ends.
            tables: the blocks held; None where only the ends of pieces are asked for, which don't look at them.
        """
        if not self.exports or ((tables is None or self.sparse) and end < until):
            return 0
        tokens = (end - 1) // self.alignment * self.alignment
        if start % self.unit or start + self.unit > tokens or tokens <= start or (tokens - start) % self.grid:
            return 0
        for group in self.states:
            column = -(-end // self.sizes[group]) - 2
            if column < 0 or column <= (start - 1) // self.sizes[group]:
                return 0
            if tables is not None and column < len(tables[group]) and tables[group][column]:
                return 0
        return tokens

    def end(self, start: int, end: int, prompt: int, tokens: int, junction: int, most: int) -> int:
        """Where the piece ends that begins at `start` and may go to `end`; `start` itself: it has to wait.

        Args:
            prompt, tokens: of the sequence: its prompt, and all that is known.
            junction: tokens up to which a sibling went the same way; 0 = none.
            most: tokens that a piece may have at most in any step.
        """
        until = max(prompt, tokens - 1)
        if not self.states or start >= until:
            return end
        size = self.smallest
        exported = self.export(start, end, until, None)
        if end < until and (end // size * size > start or size <= most):
            end = end // size * size
        if end <= start:
            return start
        stops = list[int]()
        if not exported:
            last = (tokens - 1) // size * size
            stops = [last, -(-start // size) * size]
            if self.fine:
                stops.append(max((prompt - 1) // self.unit * self.unit, last))
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        return min([stop for stop in stops if start < stop < end], default=end)
