"""The pool that vLLM's groups share: how many blocks, how prefixes are matched, and what the engine prints of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from allocators.layout import KVLayout
from allocators.vllm_groups import Engine, Group, form, specs_of


@dataclass(frozen=True, slots=True)
class Geometry:
    """Groups of layers and the blocks they share (rules 10 to 12)."""

    groups: tuple[Group, ...]
    engine: Engine

    @classmethod
    def of(cls, layout: KVLayout, engine: Engine) -> Geometry:
        return cls(tuple(form(specs_of(layout, engine), engine)), engine)

    @property
    def block_bytes(self) -> int:
        return max(group.taken for group in self.groups)

    @property
    def scheduler_block(self) -> int:
        """Tokens that prefixes are cut to where groups have blocks of several sizes."""
        if len(self.groups) == 1:
            return self.smallest
        return lcm(*[group.spec.block_size for group in self.groups])

    @property
    def hash_unit(self) -> int:
        """Tokens that prefixes are compared by.

        Raises:
            ValueError: a match unit that does not divide the blocks.
        """
        sizes = [group.spec.block_size for group in self.groups]
        unit = self.engine.match_unit
        if unit and any(size % unit for size in sizes):
            raise ValueError(f"match_unit={unit} must divide the groups' blocks, which are of {sizes} tokens")
        if unit:
            return unit
        kept = all(group.spec.align for group in self.groups if group.spec.kind == "mamba")
        if len(self.groups) == 1 or not self.engine.prefix_caching or not kept:
            return self.scheduler_block
        return gcd(*sizes)

    @property
    def fine(self) -> bool:
        """Whether a hit may end inside a block of a state."""
        unit, several = self.hash_unit, len(self.groups) > 1
        specs = [group.spec for group in self.groups]
        return (
            self.engine.prefix_caching and several and any(s.align and s.block_size > unit for s in specs)
            and all(s.kind in ("full", "mla", "mamba") or s.block_size == unit for s in specs)
        )  # fmt: skip

    @property
    def alignment(self) -> int:
        """Tokens that the length of a hit is a multiple of."""
        return self.hash_unit if self.fine else self.scheduler_block

    @property
    def smallest(self) -> int:
        """Tokens in the smallest block that grows with a sequence."""
        sizes = [group.spec.block_size for group in self.groups if group.spec.kind != "mamba" or group.spec.align]
        return min(sizes, default=self.engine.block_size)

    @property
    def padding_layers(self) -> int:
        """Places in the groups' blocks that no layer takes."""
        return sum(self.places - len(group.layers) for group in self.groups)

    @property
    def places(self) -> int:
        """Layers of the longest group."""
        return max(len(group.layers) for group in self.groups)

    @property
    def padding(self) -> float:
        """Share of one block in every group that nothing is kept in."""
        return self._waste([1] * len(self.groups))

    @property
    def padding_at_max_len(self) -> float:
        """Share of what a request of `max_model_len` tokens holds that nothing is kept in."""
        return self._waste(self.request_blocks())

    def _waste(self, blocks: Sequence[int]) -> float:
        kept = sum(count * group.real for count, group in zip(blocks, self.groups, strict=True))
        return 1 - kept / (sum(blocks) * self.block_bytes)

    def request_blocks(self, tokens: int | None = None) -> list[int]:
        """Most blocks of a request of so many tokens, by group; by default of the longest one."""
        longest = self.engine.max_model_len if tokens is None else tokens
        return [group.spec.blocks(longest, self.engine.in_flight) for group in self.groups]

    def num_blocks(self, available: int) -> int:
        """Blocks in so many bytes; the engine takes the first as null block."""
        return available // self.block_bytes

    def refusal(self, available: int) -> tuple[int, int] | None:
        """Why the engine would not start: bytes that one request of `max_model_len` needs, and how long it might be;
        None if it would.
        """
        room = available - self.block_bytes  # the null block is set aside here only
        need = sum(self.request_blocks()) * self.block_bytes
        if need <= room:
            return None
        low, high = 0, self.engine.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            fits = sum(self.request_blocks(middle)) * self.block_bytes <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        return need, low

    def concurrency(self, available: int) -> float:
        """Requests of `max_model_len` that fit, as the engine computes it."""
        return self.num_blocks(available) / sum(self.request_blocks())

    def log_lines(self, available: int) -> tuple[str, str]:
        """What the engine prints when it starts."""
        longest, times = self.engine.max_model_len, self.concurrency(available)
        tokens = int(times * longest)
        return (
            f"GPU KV cache size: {tokens:,} tokens",
            f"Maximum concurrency for {longest:,} tokens per request: {times:.2f}x",
        )
