"""Recurrent layers: a state for each sequence instead of keys, and how a packed row goes through their modules.

Such a module (a mixer: Mamba, a gated delta rule, a short convolution) takes a batch of sequences, each with a state of
its own. In a packed row the decoding lanes go through it as one batch, states gathered from the pool; each chunk of a
prompt goes alone. A sequence that begins has no state, whatever its row holds: preemption needs no zeroing.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, LinearAttentionLayer

from harness.runner.attention import CURRENT

CACHE = ("cache", "past_key_values", "cache_params")  # of the argument, as versions and models call it
MOST_STATES = 8  # of one layer, while it is not known how many it has
CUTS = (5, 3, 4)  # pieces in which a mixer is tried
APART = 1e-4  # how far pieces may be from the whole, in standard deviations; and how much further than single tokens
FURTHER = 10.0


class StateTensor(NamedTuple):
    """One of the tensors that a mixer keeps of a sequence.

    Attributes:
        conv: whether it holds the last inputs of a convolution. As long as its kernel in `transformers`; the oldest of
            them is never looked at again, so the pool keeps one less.
        at: which, of several such.
        shape: in the pool, of one sequence.
    """

    conv: bool
    at: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(slots=True)
class Mixer:
    """A module that keeps states.

    Attributes:
        forward: the module's own.
        width: numbers of each token that come out of it.
        carries: whether it goes on from a state with several tokens; if not, it is given one after the other (torch's
            scan of Mamba-1 starts from nothing).
        options: what it is called with beside tokens and cache.
    """

    module: torch.nn.Module
    layer: int
    forward: Callable[..., Any]
    states: tuple[StateTensor, ...] = ()
    width: int = 0
    carries: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    cache_name: str = ""

    def __post_init__(self) -> None:
        known = inspect.signature(self.forward).parameters
        self.cache_name = next((name for name in CACHE if name in known), CACHE[0])

    def run(self, hidden: torch.Tensor, layer: LinearAttentionLayer) -> torch.Tensor:
        """``[B, t, width]`` of ``[B, t, C]``; `layer` holds the states before and after."""
        return self.forward(hidden, **{self.cache_name: StateCache(layer)}, **self.options)

    def empty(self) -> LinearAttentionLayer:
        """For a sequence that begins."""
        return LinearAttentionLayer(1 + max((state.at for state in self.states), default=MOST_STATES - 1))

    def filled(self, tensors: Sequence[torch.Tensor]) -> LinearAttentionLayer:
        """With states from the pool ``[B, …]``, for sequences that go on."""
        layer = self.empty()
        for state, tensor in zip(self.states, tensors, strict=True):
            if state.conv:
                layer.conv_states[state.at] = torch.nn.functional.pad(tensor, (1, 0))
                layer.conv_kernel_size[state.at] = tensor.shape[-1] + 1
                layer.is_conv_states_initialized[state.at] = True
            else:
                layer.recurrent_states[state.at] = tensor
                layer.is_recurrent_states_initialized[state.at] = True
            layer.has_previous_state[state.at] = True
        return layer

    def kept(self, layer: LinearAttentionLayer) -> list[torch.Tensor]:
        """The states after a run, as they go to the pool."""
        conv: Any = layer.conv_states
        recurrent: Any = layer.recurrent_states
        return [conv[state.at][..., 1:] if state.conv else recurrent[state.at] for state in self.states]


class StateCache(Cache):
    """The cache of one mixer; of whatever layer it asks, there is only its own."""

    def __init__(self, layer: LinearAttentionLayer) -> None:
        super().__init__(layers=[layer])

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return super().get_conv_state(0, state_idx)

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                          **kwargs: Any) -> torch.Tensor:  # fmt: skip
        return super().update_conv_state(conv_states, 0, state_idx, **kwargs)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return super().get_recurrent_state(0, state_idx)

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                               **kwargs: Any) -> torch.Tensor:  # fmt: skip
        return super().update_recurrent_state(recurrent_states, 0, state_idx, **kwargs)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(super().has_previous_state(0, state_idx))

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class Lanes(NamedTuple):
    """Sequences of one step that go through a mixer together.

    Attributes:
        tokens: where they lie in the packed row: a run of single tokens, or the tokens of one chunk.
        rows: int64 of the state pool, one for each sequence.
        begins: whether they have no state yet.
    """

    tokens: slice
    rows: torch.Tensor
    begins: bool


@dataclass(slots=True)
class MixerContext:
    """Metadata of a step for mixers.

    Attributes:
        pools: states ``[rows, …]`` of each mixer.
        single: lanes with one new token and a state.
        chunks: the other lanes, each computed alone.
    """

    mixers: list[Mixer]
    pools: list[list[torch.Tensor]]
    single: list[Lanes]
    chunks: list[Lanes]

    def mix(self, hidden: torch.Tensor, index: int) -> torch.Tensor:
        """``[1, T, width]`` of the packed row ``[1, T, C]``, through mixer `index`."""
        mixer, pool = self.mixers[index], self.pools[index]
        out = hidden.new_empty(1, hidden.shape[1], mixer.width)
        for lanes in self.single:
            batch = self._run(mixer, pool, hidden[0, lanes.tokens, None], lanes)
            out[0, lanes.tokens] = batch[:, 0]
        for lanes in self.chunks:
            tokens = hidden[:, lanes.tokens]
            if lanes.begins or mixer.carries:
                out[:, lanes.tokens] = self._run(mixer, pool, tokens, lanes)
            else:
                pieces = [self._run(mixer, pool, tokens[:, i : i + 1], lanes) for i in range(tokens.shape[1])]
                out[:, lanes.tokens] = torch.cat(pieces, 1)
        return out

    @staticmethod
    def _run(mixer: Mixer, pool: list[torch.Tensor], hidden: torch.Tensor, lanes: Lanes) -> torch.Tensor:
        layer = mixer.empty() if lanes.begins else mixer.filled([states[lanes.rows] for states in pool])
        out = mixer.run(hidden, layer)
        for states, now in zip(pool, mixer.kept(layer), strict=True):
            states.index_copy_(0, lanes.rows, now.to(states.dtype))
        return out


def intercept(module: torch.nn.Module) -> None:
    """Let whoever stands behind a call of the model (see `harness.runner.attention`) have its mixers."""
    if "forward" in vars(module):
        return
    own = own_forward(module)
    first = next(iter(inspect.signature(own).parameters))

    def forward(*args: Any, **kwargs: Any) -> Any:
        behind = CURRENT.get()
        mixed = None
        if behind is not None:
            given = dict(kwargs)
            hidden = args[0] if args else given.pop(first)
            mixed = behind.mixer(module, hidden, given)
        return own(*args, **kwargs) if mixed is None else mixed

    forward.own = own  # type: ignore[attr-defined]
    module.forward = forward


def own_forward(module: torch.nn.Module) -> Callable[..., Any]:
    """What a module computes, intercepted or not."""
    return getattr(module.forward, "own", module.forward)


def probe_mixer(mixer: Mixer, channels: int) -> str | None:
    """Find the states of `mixer`, the width of its output, and whether it takes several tokens from a state on.

    It computes random tokens at once and in pieces, in float32 (as a copy if it has another dtype).

    Returns:
        What is wrong with the mixer; None = nothing.
    """
    weight = next(mixer.module.parameters())
    hidden = torch.randn(1, sum(CUTS), channels, generator=torch.Generator().manual_seed(0)).to(weight.device)
    layer = mixer.empty()
    said = mixer.run(hidden.to(weight.dtype), layer)
    if not isinstance(said, torch.Tensor) or said.shape[:2] != hidden.shape[:2]:
        return "gives something else than one vector for each token, which is not modelled"
    mixer.width, mixer.states = said.shape[2], _found(layer)
    tried = mixer if weight.dtype == torch.float32 else _in_float32(mixer)
    whole = tried.run(hidden, tried.empty())
    spread = float(whole.std()) or 1.0

    def apart(cuts: Sequence[int]) -> float:
        states, pieces = None, []
        for piece in hidden.split(list(cuts), 1):
            layer = tried.empty() if states is None else tried.filled(states)
            pieces.append(tried.run(piece, layer))
            states = [state.clone() for state in tried.kept(layer)]
        return float((torch.cat(pieces, 1) - whole).abs().max()) / spread

    single = apart((CUTS[0], *[1] * (sum(CUTS) - CUTS[0])))
    mixer.carries = apart(CUTS) <= max(APART, FURTHER * single)
    return None if single < 1e-2 else "does not go on from the state that it keeps, which is not modelled"


def _in_float32(mixer: Mixer) -> Mixer:
    """A copy of a mixer, whose `forward` is its own."""
    module = copy.copy(mixer.module)
    module.__dict__ = {key: value for key, value in vars(mixer.module).items() if key != "forward"}
    module = copy.deepcopy(module).float()
    states = tuple(state._replace(dtype=torch.float32) for state in mixer.states)
    return Mixer(module, mixer.layer, module.forward, states, mixer.width, options=mixer.options)


def _found(layer: LinearAttentionLayer) -> tuple[StateTensor, ...]:
    """The states that a run left."""
    found = []
    for index in range(layer.number_of_states):
        conv, recurrent = layer.conv_states[index], layer.recurrent_states[index]
        if conv is not None:
            found.append(StateTensor(True, index, (*conv.shape[1:-1], conv.shape[-1] - 1), conv.dtype))
        if recurrent is not None:
            found.append(StateTensor(False, index, tuple(recurrent.shape[1:]), recurrent.dtype))
    return tuple(found)
