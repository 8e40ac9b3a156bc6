"""How vLLM 0.33 forms groups of layers with equal pages, and the pool they share: blocks, padding, what it prints.

A *page* is what one block takes in one layer, a *block* one page in every layer of the group that holds it. All groups
draw blocks from one pool, so a block is as large as the largest group needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal, NamedTuple

from allocators.layout import KVLayout, LayerGroup

Kind = Literal["full", "mla", "sliding", "chunked", "mamba"]
KINDS: dict[str, Kind] = {"full": "full", "latent": "mla", "window": "sliding", "chunk": "chunked", "state": "mamba"}
KERNEL_BLOCK = 16  # tokens that attention kernels want a block to be a multiple of
MLA_KERNEL_BLOCK = 128  # MLA's, beside recurrent layers
DELTA_RULE_GRID = 64  # tokens between states that a kernel of the gated delta rule can export inside a prompt


@dataclass(frozen=True, slots=True)
class Spec:
    """What one layer keeps, as the engine describes it. Layers of one group have equal ones.

    Attributes:
        block_size: tokens in a block; of a state that is not kept for reuse, those of the longest sequence.
        token_bytes: of one token; 0 of a state.
        state_bytes: of a state, whatever the sequence's length.
        reach: tokens of a sliding window or of a chunk.
        shape: what else tells layers apart: heads and widths, or tensors of a state.
        padded: bytes of a page that is larger than what is kept in it; 0 = it is not.
        align: of a state: kept at the ends of blocks, for prefix reuse; else one block for a sequence's whole life.
        checkpoints: blocks for states that a kernel exports inside a prompt.
        grid: tokens between those.
    """

    kind: Kind
    block_size: int
    token_bytes: int = 0
    state_bytes: int = 0
    reach: int = 0
    shape: tuple[object, ...] = ()
    padded: int = 0
    align: bool = False
    checkpoints: int = 0
    grid: int = 0

    @property
    def real(self) -> int:
        """Bytes kept in a page."""
        return self.state_bytes if self.kind == "mamba" else self.block_size * self.token_bytes

    @property
    def page(self) -> int:
        return self.padded or self.real

    @property
    def aligned(self) -> bool:
        """Whether it is a state that is kept at the ends of blocks."""
        return self.kind == "mamba" and self.align

    def behind(self, stored: int) -> int:
        """How many of the first tokens are needed no more once `stored` are there; of a state, all but the last one."""
        if self.kind == "sliding":
            return max(stored - self.reach + 1, 0)
        if self.kind == "chunked":
            return stored // self.reach * self.reach
        return max(stored - 1, 0) if self.kind == "mamba" else 0

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Most blocks that one sequence of `tokens` tokens holds, `in_flight` of them being computed (rule 12)."""
        if self.kind == "mamba":
            return 2 + self.checkpoints if self.align else 1
        if self.kind == "sliding":
            return -(-min(self.reach - 1 + in_flight, tokens) // self.block_size) + 1
        if self.kind == "chunked":
            tokens = min(self.reach + in_flight, tokens)
        return -(-tokens // self.block_size)


class Group(NamedTuple):
    """Layers that hold the same blocks.

    Attributes:
        spec: of all of them; of the first where their pages differ in size.
        layers: positions in the list of specs.
        real: bytes that its layers keep in a block, in sum.
        taken: bytes of a block that they can keep, their own padding included; what is left of it they have no use for.
        pages: sizes of their pages.
    """

    spec: Spec
    layers: tuple[int, ...]
    real: int
    taken: int
    pages: tuple[int, ...]


class Engine(NamedTuple):
    """What of an engine's settings decides about groups.

    Attributes:
        block_size: tokens, before it is raised for states.
        max_model_len: tokens of the longest sequence.
        in_flight: tokens of a sequence that may be under way: max_num_batched_tokens, twice that if scheduling is
            asynchronous.
        prefix_caching: whether what was computed is kept for reuse.
        hybrid: False where every layer keeps all tokens (`--disable-hybrid-kv-cache-manager`).
        exports: whether kernels of the gated delta rule export states inside a prompt, as on Hopper.
        kernel_block: what the attention backend wants a block to be a multiple of.
        block_outermost: whether a block's pages lie side by side, so that they need not be equal (not on NVIDIA).
        match_unit: tokens that prefixes are compared by; 0 = what suits the groups.
    """

    block_size: int = 16
    max_model_len: int = 32768
    in_flight: int = 16384
    prefix_caching: bool = True
    hybrid: bool = True
    exports: bool = True
    kernel_block: int = KERNEL_BLOCK
    block_outermost: bool = False
    match_unit: int = 0


def specs_of(layout: KVLayout, engine: Engine) -> list[Spec]:
    """One for each layer that keeps something, in their order (rules 6 and 8)."""
    groups = sorted([(number, at) for at, group in enumerate(layout.groups) for number in group.layers])
    size, padded = raised(layout, engine)
    made = [_spec(group, engine, size, padded) for group in layout.groups]
    return [made[at] for _, at in groups]


def raised(layout: KVLayout, engine: Engine) -> tuple[int, int]:
    """Tokens in a block, raised so that a page of attention holds a state, and the bytes that states are padded to; 0
    where they need not be.
    """
    states = [group for group in layout.groups if group.kind == "state"]
    attention = [group for group in layout.groups if group.kind != "state"]
    if not states or not attention:
        return engine.block_size, 0
    state, token = max(group.state_bytes for group in states), max(group.token_bytes for group in attention)
    unit = max(engine.kernel_block, KERNEL_BLOCK)
    if any(group.kind == "latent" for group in attention):
        unit = max(unit, MLA_KERNEL_BLOCK)
    if engine.prefix_caching and engine.exports and states[0].mixer == "delta_rule":
        unit = lcm(unit, DELTA_RULE_GRID)
    size = max(engine.block_size, unit * -(-state // (unit * token)))
    return size, size * token if size * token > state else 0


def _spec(group: LayerGroup, engine: Engine, size: int, padded: int) -> Spec:
    kind = KINDS[group.kind]
    if kind != "mamba":
        shape = (group.heads, group.key_width, group.value_width, group.element_bytes)
        return Spec(kind, size, group.token_bytes, reach=group.reach, shape=shape)
    delta_rule, align = group.mixer == "delta_rule", engine.prefix_caching
    exports = group.mixer == "mamba2" or (delta_rule and engine.exports and align)
    return Spec(
        kind, size if align else engine.max_model_len, state_bytes=group.state_bytes, shape=group.states,
        padded=padded, align=align, checkpoints=int(exports), grid=(size if delta_rule else 1) if exports else 0,
    )  # fmt: skip


def form(specs: Sequence[Spec], engine: Engine) -> list[Group]:
    """The groups, in the engine's order (rules 7 to 9, 45).

    Raises:
        ValueError: layers that the engine can't serve together; it says why.
    """
    specs = list(specs) if engine.hybrid else _all_full(specs)
    if _one_kind(specs):
        return [_group(specs, range(len(specs)))]
    if engine.block_outermost:
        return _packed(specs)
    equal = _equal_pages(specs)
    return [_group(specs, range(len(specs)))] if equal is None else _dealt(equal)


def _one_kind(specs: Sequence[Spec]) -> bool:
    """Whether all layers keep the same tokens, so that pages of different sizes make no difference."""
    return len({("full" if s.kind == "mla" else s.kind, s.block_size, s.reach) for s in specs}) == 1


def _all_full(specs: Sequence[Spec]) -> list[Spec]:
    """As if every layer kept all tokens, where any does; for one group all must be alike then."""
    full = [spec for spec in specs if spec.kind in ("full", "mla")]
    windows = {(spec.kind, spec.reach) for spec in specs if spec.reach}
    if any(spec.kind == "mamba" for spec in specs) and len({spec.kind for spec in specs}) > 1:
        raise ValueError("without the hybrid manager all layers must keep the same; this model has states too")
    if len(windows) > 1:
        raise ValueError("without the hybrid manager a model may have windows of one size only")
    if not full:
        return list(specs)
    return [spec if not spec.reach else replace(spec, kind="full", reach=0, block_size=full[0].block_size)
            for spec in specs]  # fmt: skip


def _equal_pages(specs: list[Spec]) -> list[Spec] | None:
    """All pages as large as the largest (rule 8); None where all layers are to keep all tokens instead."""
    largest = max(spec.page for spec in specs)
    equal = []
    for spec in specs:
        ratio, rest = divmod(largest, spec.page)
        if spec.page == largest:
            equal.append(spec)
        elif spec.kind == "mamba" or (rest and spec.kind != "mla"):
            equal.append(replace(spec, padded=largest))
        elif not rest:
            equal.append(replace(spec, block_size=spec.block_size * ratio, padded=spec.padded * ratio))
        elif any(spec.kind == "mamba" for spec in specs):
            raise ValueError(f"a latent's page of {spec.page} bytes does not divide one of {largest}")
        else:
            return None
    return equal


def _dealt(specs: Sequence[Spec]) -> list[Group]:
    """Layers of equal specs dealt out like cards to groups of about the same size (rule 9)."""
    buckets = _buckets(specs)
    smallest, largest = min(map(len, buckets)), max(map(len, buckets))
    size = largest if 2 * largest < 3 * smallest else smallest
    return [_group(specs, cards) for bucket in buckets for cards in _deal(bucket, -(-len(bucket) // size))]


def _packed(specs: Sequence[Spec]) -> list[Group]:
    """Pages as they are; as many states to a block as fit beside one another in a group's attention."""
    attention = [at for at, spec in enumerate(specs) if spec.kind != "mamba"]
    dealt = _dealt([specs[at] for at in attention])
    room = max(group.taken for group in dealt)
    groups = [_group(specs, [attention[at] for at in group.layers]) for group in dealt]
    for bucket in _buckets(specs):
        if specs[bucket[0]].kind == "mamba":
            fit = max(room // specs[bucket[0]].page, 1)
            groups += [_group(specs, cards) for cards in _deal(bucket, -(-len(bucket) // fit))]
    order = [specs[bucket[0]] for bucket in _buckets(specs)]
    return sorted(groups, key=lambda group: order.index(group.spec))


def _buckets(specs: Sequence[Spec]) -> list[list[int]]:
    found: dict[Spec, list[int]] = {}
    for at, spec in enumerate(specs):
        found.setdefault(spec, []).append(at)
    return list(found.values())


def _deal(bucket: list[int], groups: int) -> list[list[int]]:
    return [bucket[first::groups] for first in range(groups)]


def _group(specs: Sequence[Spec], layers: Sequence[int]) -> Group:
    mine = [specs[at] for at in layers]
    pages = tuple(sorted({spec.page for spec in mine}))
    return Group(mine[0], tuple(layers), sum(s.real for s in mine), sum(s.page for s in mine), pages)
