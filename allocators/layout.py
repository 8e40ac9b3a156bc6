"""What a model keeps of a sequence: groups of layers that keep the same tokens, with their sizes in bytes.

`harness.layout` makes it from a model's config, dtype and parallelism; this module only defines the types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

Kind = Literal["full", "latent", "window", "chunk", "state"]


class State(NamedTuple):
    """A tensor that a recurrent layer keeps of a sequence, whatever its length."""

    shape: tuple[int, ...]
    element_bytes: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.element_bytes


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same tokens of a sequence in the same shape; all sizes are those on one device.

    Attributes:
        kind: `full` keeps K and V of every token, `latent` one compressed vector of each (MLA), `window` the last
            `reach` tokens, `chunk` those since the last multiple of `reach`, `state` a fixed size whatever the length.
        layers: the layers' numbers in the model, ascending.
        heads: KV heads.
        key_width, value_width: elements of K and V of one head; a latent's V is part of its K, so value_width is 0.
        element_bytes: bytes of an element.
        reach: tokens of a window or a chunk; 0 = all tokens.
        states: the tensors of a recurrent layer.
        mixer: how a recurrent layer computes them: `mamba1`, `mamba2`, `delta_rule` or `short_conv`.
    """

    kind: Kind
    layers: tuple[int, ...]
    heads: int = 0
    key_width: int = 0
    value_width: int = 0
    element_bytes: int = 2
    reach: int = 0
    states: tuple[State, ...] = ()
    mixer: str = ""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer; 0 for a state."""
        return self.heads * (self.key_width + self.value_width) * self.element_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state in one layer; 0 unless recurrent."""
        return sum(state.bytes for state in self.states)

    @property
    def tensors(self) -> int:
        """Tensors that one layer keeps: K and V, the latent, or the parts of a state."""
        return len(self.states) if self.states else 1 + (self.value_width > 0)

    def of(self, layers: tuple[int, ...]) -> LayerGroup:
        """The same group with other layers."""
        return replace(self, layers=layers)


class Kept(NamedTuple):
    """What layers that keep the same tokens need of each sequence, in the units of the ledger.

    Attributes:
        name: for tables and figures: `full`, `window 1024`, `state`.
        reach, chunked: a query sees at most the last `reach` tokens or, if `chunked`, those since the last multiple of
            `reach`; 0 = all.
        token_units: units of one token.
        state_units: units of a sequence's state.
    """

    name: str
    token_units: int
    state_units: int = 0
    reach: int = 0
    chunked: bool = False

    def behind(self, stored: int) -> int:
        """How many leading tokens no layer reads again once `stored` tokens are stored."""
        if not self.reach:
            return 0
        if self.chunked:
            return stored - stored % self.reach
        return max(stored - self.reach + 1, 0)

    def until(self, first: int, block_size: int) -> int:
        """Tokens that can be stored until no layer reads the block of token `first` again."""
        end = (first // block_size + 1) * block_size
        return -(-end // self.reach) * self.reach if self.chunked else end + self.reach - 1


SLOT = Kept("full", 1)  # a token in every layer


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a model keeps of a sequence.

    Attributes:
        groups: in the order of their first layers.
        devices: devices that share the model; group sizes are those on each.
    """

    groups: tuple[LayerGroup, ...]
    devices: int = 1

    @property
    def token_bytes(self) -> int:
        """Bytes of a slot: one token in every layer that keeps tokens, on all devices."""
        return self.devices * sum(len(group.layers) * group.token_bytes for group in self.groups)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's states, on all devices."""
        return self.devices * sum(len(group.layers) * group.state_bytes for group in self.groups)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """One `Kept` for each set of layers that keep the same tokens.

        A single one counts in slots; several count in bytes (on all devices).
        """
        alike = self.alike()
        if len(alike) == 1 and alike[0][0].kind != "state":
            return (_kept(alike[0], 1),)
        return tuple(
            [
                _kept(one, self.devices * sum([len(g.layers) * (g.token_bytes + g.state_bytes) for g in one]))
                for one in alike
            ]
        )

    def alike(self) -> list[list[LayerGroup]]:
        """The groups, merged into lists of those that keep the same tokens."""
        found: dict[tuple[bool, int, bool], list[LayerGroup]] = {}
        for group in self.groups:
            found.setdefault((group.kind == "state", group.reach, group.kind == "chunk"), []).append(group)
        return list(found.values())

    @property
    def unit_bytes(self) -> int:
        """Bytes of the ledger's unit: those of a slot, or 1 if layers keep different tokens."""
        return self.token_bytes if self.uniform else 1

    @property
    def uniform(self) -> bool:
        """Whether all layers keep the same tokens, so that a slot has a meaning."""
        return len(self.kept) == 1 and not self.state_bytes

    def within(self, longest: int) -> KVLayout:
        """The layout for sequences of up to `longest` tokens: windows and chunks at least as long become `full`."""
        groups = (
            replace(group, kind="full", reach=0) if group.reach and group.reach >= longest else group
            for group in self.groups
        )
        return replace(self, groups=tuple(groups))


def buffers_of(groups: Sequence[LayerGroup]) -> tuple[int, int]:
    """(bytes of K of one token in one layer, buffers: K and V of every layer), for allocators that map memory.

    Raises:
        ValueError: tokens take different bytes in different buffers.
    """
    widths = {
        (group.heads * group.key_width * group.element_bytes, group.value_width in (0, group.key_width))
        for group in groups
    }
    size, alike = widths.pop()
    if widths or not alike or any(group.states for group in groups):
        raise ValueError(
            "an allocator that maps memory buffer by buffer needs K and V of one width in all layers, and no states"
        )
    return size, sum([len(group.layers) * group.tensors for group in groups])


def _kept(alike: list[LayerGroup], size: int) -> Kept:
    """The `Kept` of groups that keep the same tokens; `size`: units of a token or of a state."""
    first, name = alike[0], alike[0].kind
    if first.kind == "state":
        return Kept(name, 0, size)
    if first.reach:
        return Kept(f"{name} {first.reach}", size, 0, first.reach, name == "chunk")
    return Kept("full" if len({group.kind for group in alike}) > 1 else name, size)
