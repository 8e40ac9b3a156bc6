"""What a model keeps of a sequence: groups of layers that keep the same, and how many bytes of it.

Made by `harness.layout` from a model's config, dtype and parallelism; here are only the words.
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
    """Layers that keep the same of a sequence, in the same shape; all sizes are those on one device.

    Attributes:
        kind: `full` keeps K and V of every token, `latent` one compressed vector of each (MLA), `window` the last
            `reach` tokens, `chunk` those since the last multiple of `reach`, `state` a fixed size whatever the length.
        layers: their numbers in the model, ascending.
        heads: KV heads.
        key_width, value_width: elements of K and of V of one head; V of a latent lies in its K, so it is 0 wide.
        element_bytes: of each.
        reach: tokens that a window or a chunk spans; 0 = all.
        states: the tensors of a recurrent layer.
        mixer: how it computes them: `mamba1`, `mamba2`, `delta_rule` or `short_conv`.
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
        """Of one token in one layer; 0 of a state."""
        return self.heads * (self.key_width + self.value_width) * self.element_bytes

    @property
    def state_bytes(self) -> int:
        """Of one sequence in one layer; 0 unless it is recurrent."""
        return sum(state.bytes for state in self.states)

    @property
    def tensors(self) -> int:
        """Tensors that one layer keeps: K and V, the latent, or the parts of a state."""
        return len(self.states) if self.states else 1 + (self.value_width > 0)

    def of(self, layers: tuple[int, ...]) -> LayerGroup:
        """The same of other layers."""
        return replace(self, layers=layers)


class Kept(NamedTuple):
    """What an allocator places together of each sequence, in the units that its ledger counts in.

    Attributes:
        name: for tables and figures: `full`, `window 1024`, `state`.
        reach, chunked: a query sees at most the last `reach` tokens or, `chunked`, those since the last multiple of it;
            0 = all.
        token_units: of one token.
        state_units: of a sequence, whatever its length.
    """

    name: str
    token_units: int
    state_units: int = 0
    reach: int = 0
    chunked: bool = False

    def behind(self, stored: int) -> int:
        """How many of the first tokens no layer reads again once `stored` are there."""
        if not self.reach:
            return 0
        if self.chunked:
            return stored - stored % self.reach
        return max(stored - self.reach + 1, 0)

    def until(self, first: int, block_size: int) -> int:
        """How many tokens can be stored before no layer reads any of the block again that holds token `first`."""
        end = (first // block_size + 1) * block_size
        return -(-end // self.reach) * self.reach if self.chunked else end + self.reach - 1


SLOT = Kept("full", 1)  # a token in every layer


@dataclass(frozen=True, slots=True)
class KVLayout:
    """All that a model keeps.

    Attributes:
        groups: in the order of their first layers.
        devices: that share the model; each holds what its groups say.
    """

    groups: tuple[LayerGroup, ...]
    devices: int = 1

    @property
    def token_bytes(self) -> int:
        """Of one token in every layer that keeps tokens, on all devices: the bytes of a slot."""
        return self.devices * sum(len(group.layers) * group.token_bytes for group in self.groups)

    @property
    def state_bytes(self) -> int:
        """Of one sequence, on all devices."""
        return self.devices * sum(len(group.layers) * group.state_bytes for group in self.groups)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """One for each set of layers that keep the same tokens.

        A single one counts in slots, several count in bytes (on all devices).
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
        """The groups, those that keep the same tokens together."""
        found: dict[tuple[bool, int, bool], list[LayerGroup]] = {}
        for group in self.groups:
            found.setdefault((group.kind == "state", group.reach, group.kind == "chunk"), []).append(group)
        return list(found.values())

    @property
    def unit_bytes(self) -> int:
        """Bytes of what a ledger counts in: those of a slot, or 1 where layers keep different tokens."""
        return self.token_bytes if self.uniform else 1

    @property
    def uniform(self) -> bool:
        """Whether all layers keep the same tokens, so that a slot has a meaning."""
        return len(self.kept) == 1 and not self.state_bytes

    def within(self, longest: int) -> KVLayout:
        """As it is for sequences of up to `longest` tokens: a window or a chunk that none of them outgrows is none."""
        groups = (
            replace(group, kind="full", reach=0) if group.reach and group.reach >= longest else group
            for group in self.groups
        )
        return replace(self, groups=tuple(groups))


def buffers_of(groups: Sequence[LayerGroup]) -> tuple[int, int]:
    """(bytes of K of one token in one layer, buffers: K and V of every layer), for what maps memory in each of them.

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
    """What groups keep that keep the same tokens, `size` units of a token or of a state."""
    first, name = alike[0], alike[0].kind
    if first.kind == "state":
        return Kept(name, 0, size)
    if first.reach:
        return Kept(f"{name} {first.reach}", size, 0, first.reach, name == "chunk")
    return Kept("full" if len({group.kind for group in alike}) > 1 else name, size)
