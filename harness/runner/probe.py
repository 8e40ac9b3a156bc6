"""What a model keeps of each token, and how it attends: found by one short forward pass, not by names in its config.

Whatever is not understood here is refused, in one line with the layer and what it is: a model must not run and say
something else than it would by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from kvlab_kernels.variant import PLAIN, AttentionVariant
from transformers.cache_utils import LinearAttentionLayer

from allocators.layout import Kind, KVLayout, LayerGroup, State
from harness.errors import HarnessError
from harness.layout.layers import Text
from harness.layout.recurrent import mixer_of
from harness.runner.attention import Call, Calls, Latent, Mask, MaskUsed, handling, layer_of
from harness.runner.cache import PackedCache, forward_of
from harness.runner.dense import MOST, OWN, refuses
from harness.runner.latent import absorb
from harness.runner.model import positions_of
from harness.runner.recurrent import MOST_STATES, Mixer, intercept, own_forward, probe_mixer

TOKENS = 6  # of the probe
# Options of an attention function that change no number outside training, or that stand in the mask as well.
WITHOUT_EFFECT = {"dropout", "position_ids", "use_cache", "output_router_logits", "output_attentions", "is_causal",
                  "cache_position", "output_hidden_states", "return_dict", "training"}  # fmt: skip
# What a recurrent module may be handed and does not need: rows hold no padding, and its cache is another one.
WITHOUT_MEANING = {"cache", "past_key_values", "cache_params", "attention_mask", "position_ids", "cache_position"}
FOR_OTHERS = {"position_embeddings"}  # handed to every layer; a module that names it in its `forward` wants it
BOTH_IN_ONE = "keeps keys and a recurrent state in one module, which is not modelled"
OWN_ATTENTION = "computes attention by itself, not through the attention interface"


class OwnAttentionError(HarnessError):
    """A model attends by itself."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Keys and values that a layer stores of a token: heads and width of each; of a latent the values lie in the keys.

    Attributes:
        rank: of a latent, how wide its values are; 0 = it is none.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    rank: int = 0

    @property
    def pair(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return self.key, self.value

    def group(self, variant: AttentionVariant, element_bytes: int) -> LayerGroup:
        """What a layer keeps whose queries see what `variant` says."""
        kind: Kind = "window" if variant.window else "chunk" if variant.chunk else "latent" if self.rank else "full"
        value_width = 0 if self.rank else self.value[0] * self.value[1] // self.key[0]
        return LayerGroup(kind, (), *self.key, value_width, element_bytes, variant.reach)

    @property
    def elements(self) -> int:
        return sum(heads * width for heads, width in (self.pair[:1] if self.rank else self.pair))


@dataclass(slots=True)
class Probed:
    """What a model keeps.

    Attributes:
        layers: what each layer stores of a token, of those that store any.
        calls: how it attends, and its recurrent modules.
        mixer: how those compute, see `LayerGroup`.
    """

    layers: dict[int, Stored] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)
    mixer: str = ""

    @property
    def elements_per_token(self) -> int:
        return sum(stored.elements for stored in self.layers.values())

    def layout(self, element_bytes: int) -> KVLayout:
        """The same in the words of the pool: layers that keep alike are a group."""
        alike: dict[LayerGroup, list[int]] = {}
        seen = {call.layer: call.variant for call in self.calls.all}
        for number, stored in sorted(self.layers.items()):
            alike.setdefault(stored.group(seen.get(number, PLAIN), element_bytes), []).append(number)
        for mixer in self.calls.mixers:
            states = tuple(State(state.shape, state.dtype.itemsize) for state in mixer.states)
            alike.setdefault(LayerGroup("state", (), states=states, mixer=self.mixer), []).append(mixer.layer)
        groups = sorted((group.of(tuple(layers)) for group, layers in alike.items()), key=lambda group: group.layers[0])
        return KVLayout(tuple(groups))


def probe(model: Any) -> Probed:
    """What `model` keeps, whose attention must be ours.

    Raises:
        HarnessError: something of it is not modelled.
    """
    latents = absorb(model)
    try:
        probing = _pass(model, latents)
    except OwnAttentionError as error:
        return _with_its_own(model, error)
    for module in probing.mixers.values():
        intercept(module)
    if probing.mixers:  # to see what those that were found are handed
        probing = _pass(model, latents)
    try:
        probing.finish()
    except OwnAttentionError as error:
        return _with_its_own(model, error)
    if probing.mixers:
        probing.probed.mixer = mixer_of(Text.of(model.config))
    return probing.probed


def _with_its_own(model: Any, error: OwnAttentionError) -> Probed:
    """What a model keeps that attends by itself; whether a row of several sequences is right is for a check to say.

    Raises:
        HarnessError: it can be seen that it is not.
    """
    model.config._attn_implementation = OWN
    wrong = refuses(model)
    if wrong:
        raise HarnessError(f"{error}; and it {wrong}, so its sequences can't share a row")
    probing = _pass(model, {})
    probed = probing.probed
    if probing.mixers or not probed.layers or probed.calls.all:
        raise error
    probed.calls.most = positions_of(model.config) or MOST
    return probed


def _pass(model: Any, latents: dict[int, Latent]) -> _Probing:
    """One forward pass, watched."""
    before = _tensors_in(model)
    device = next(model.parameters()).device
    ids = torch.arange(TOKENS, device=device) % model.config.get_text_config().vocab_size
    positions = torch.arange(TOKENS, device=device)
    probing = _Probing(model, latents)
    forward = forward_of(model)
    try:
        with torch.inference_mode(), handling(probing), probing.watched():
            forward(ids, positions, positions[-1:], _ProbeCache(probing, positions))
    except HarnessError:
        raise
    except MaskUsed as error:
        raise OwnAttentionError(str(probing.refused(OWN_ATTENTION))) from error
    except Exception as error:  # a model can meet anything
        told = str(error).strip().split("\n")[0]
        raise probing.refused(f"its forward pass fails: {type(error).__name__}: {told}") from error
    for module, name, _ in _tensors_in(model) - before:
        raise probing.refused(f"keeps {name} in itself from one step to the next, which is not modelled",
                              getattr(module, "layer_idx", None), type(module).__name__)  # fmt: skip
    return probing


def _tensors_in(model: Any) -> set[tuple[torch.nn.Module, str, int]]:
    """The tensors that modules hold beside weights and buffers; of a rope, see `harness.runner.refusals`."""
    return {(module, name, id(value)) for module in model.modules() if not hasattr(module, "rope_type")
            for name, value in vars(module).items() if isinstance(value, torch.Tensor)}  # fmt: skip


class _Probing:
    """Watches one forward pass: which layers store what, and who attends to it."""

    def __init__(self, model: Any, latents: dict[int, Latent]) -> None:
        self.model_type, self.latents = model.config.model_type, latents
        self.probed = Probed()
        self.running: list[torch.nn.Module] = []
        self.mixers: dict[int, torch.nn.Module] = {}  # by layer, the innermost module that sees all of its states
        self.entered: dict[int, tuple[int, dict[str, Any]]] = {}  # by mixer: channels and options it is called with
        self._stored_by: dict[int, tuple[torch.nn.Module, ...]] = {}  # the modules that store, by layer
        self._attended: set[int] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, `running` is the stack of modules that are being called."""
        hooks = torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(lambda module, args: self.running.append(module))
        after = hooks.register_module_forward_hook(lambda module, args, out: self._left())
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _left(self) -> None:
        self.running.pop()

    def refused(self, what: str, layer: int | None = None, module: str | None = None) -> HarnessError:
        """One line: the model type, the layer, and what is not modelled."""
        module = module or (type(self.running[-1]).__name__ if self.running else None)
        where = "" if layer is None else f", layer {layer}"
        return HarnessError(f"model {self.model_type}{where}{f' ({module})' if module else ''}: {what}")

    def store(self, key: torch.Tensor, value: torch.Tensor, layer: int) -> None:
        """A layer hands the keys and values of the probe's tokens to the cache."""
        if key.dim() != 4 or value.dim() != 4 or key.shape[2] != TOKENS:
            raise self.refused(f"caches tensors of shape {tuple(key.shape)}, which is not modelled", layer)
        if layer in self.probed.layers:
            raise self.refused("caches keys twice in a step, which is not modelled", layer)
        (_, key_heads, _, key_width), (_, value_heads, _, value_width) = key.shape, value.shape
        self.probed.layers[layer] = Stored((key_heads, key_width), (value_heads, value_width))
        self._stored_by[layer] = tuple(self.running)

    def attention(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                  mask: Any, options: dict[str, Any]) -> torch.Tensor:  # fmt: skip
        layer = layer_of(key)
        if layer < 0:
            own: int | None = getattr(module, "layer_idx", None)
            if own in self.probed.layers:
                raise self.refused("expands what it cached into keys and values (a latent), which is not modelled", own)
            raise self.refused("attends to keys that no cache returned, which is not modelled", own)
        latent = self.latents.get(id(module))
        if latent:
            if (key.shape[3], value.shape[3]) != (latent.rank, latent.rope):
                raise self.refused("changes its latent before it is expanded, which is not modelled", layer)
            self.probed.layers[layer] = Stored((1, latent.rank + latent.rope), (1, latent.rank), latent.rank)
        heads, (key_heads, _), (value_heads, _) = query.shape[1], *self.probed.layers[layer].pair
        if key_heads != value_heads or heads % key_heads:
            what = f"{heads} query heads over {key_heads} of keys and {value_heads} of values are not modelled"
            raise self.refused(what, layer)
        scale, variant = self._understood(query, layer, mask, options)
        call = Call(layer, layer not in self._attended, scale, variant, latent)
        self.probed.calls.add(module, call)
        self._attended.add(layer)
        return query.new_zeros(query.shape[0], query.shape[2], heads, call.width(value))

    def _understood(
        self, query: torch.Tensor, layer: int, mask: Any, options: dict[str, Any]
    ) -> tuple[float, AttentionVariant]:
        """Scale and variant of a call; everything that it is handed must be known."""
        given = {key: value for key, value in options.items() if value is not None and key not in WITHOUT_EFFECT}
        scale, softcap = given.pop("scaling", query.shape[-1] ** -0.5), given.pop("softcap", 0.0)
        window, sinks = given.pop("sliding_window", None), given.pop("s_aux", None)
        if given:
            raise self.refused(f"attention is handed {', '.join(sorted(given))}, which is not modelled", layer)
        if not isinstance(scale, float | int) or not isinstance(softcap, float | int):
            raise self.refused("scores are scaled by a tensor, which is not modelled", layer)
        if sinks is not None and (not isinstance(sinks, torch.Tensor) or sinks.shape != query.shape[1:2]):
            raise self.refused("its sinks are not one number for each query head", layer)
        if not isinstance(mask, Mask):
            how = "no mask at all" if mask is None else "a mask of its own"
            raise self.refused(f"attends with {how}, which is not modelled", layer)
        kind = classify(mask, query.device)
        if kind is None:
            raise self.refused("what a token sees is neither all before it, nor a window, nor a chunk of it", layer)
        if window is not None and window != kind.window:
            what = f"attention is told of a window of {window}, and its mask has {kind.window or 'none'}"
            raise self.refused(what, layer)
        variant = AttentionVariant(kind.window, kind.chunk, float(softcap), sinks)
        return float(scale), PLAIN if variant.is_plain else variant

    def keeps_state(self, layer: int) -> None:
        """Whatever runs deals with the state of a layer."""
        before, running = self.mixers.get(layer), self.running
        if before is not None and before in running:
            return
        outer = [module for module in running if before is None or any(inner is before for inner in module.modules())]
        self.mixers[layer] = outer[-1]

    def mixer(self, module: torch.nn.Module, hidden: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        ignored = WITHOUT_MEANING | FOR_OTHERS - set(inspect.signature(own_forward(module)).parameters)
        handed = {name: value for name, value in options.items() if value is not None and name not in ignored}
        tensors = sorted(name for name, value in handed.items() if not isinstance(value, bool | int | float | str))
        if tensors:
            raise self.refused(f"its recurrent layer is handed {', '.join(tensors)}, which is not modelled")
        self.entered[id(module)] = hidden.shape[-1], handed
        return None

    def finish(self) -> None:
        """After the pass: has everything that was stored been attended to by us, and what do its mixers keep?"""
        alone = [layer for layer in self.probed.layers if layer not in self._attended]
        if alone:
            where = alone[0], type(self._stored_by[alone[0]][-1]).__name__
            raise OwnAttentionError(str(self.refused(OWN_ATTENTION, *where)))
        if not self.probed.layers and not self.mixers:
            raise self.refused("nothing is cached: it has no attention, or keeps its past elsewhere")
        modules = {id(module) for module in self.mixers.values()}
        if len(modules) < len(self.mixers):
            raise self.refused("uses one recurrent module in several layers, which is not modelled")
        for layer, stack in self._stored_by.items():
            if any(id(module) in modules for module in stack):
                raise self.refused(BOTH_IN_ONE, layer, type(stack[-1]).__name__)
        with torch.inference_mode():
            for layer, module in sorted(self.mixers.items()):
                channels, options = self.entered[id(module)]
                mixer = Mixer(module, layer, own_forward(module), options=options)
                try:
                    wrong = probe_mixer(mixer, channels)
                except Exception as error:
                    wrong = f"can't be called by itself ({type(error).__name__}: {str(error).strip()[:80]})"
                if wrong:
                    raise self.refused(wrong, layer, type(module).__name__)
                self.probed.calls.mixers.append(mixer)


class _ProbeCache(PackedCache):
    """Tells the probe of everything that a model wants kept."""

    def __init__(self, probing: _Probing, positions: torch.Tensor) -> None:
        super().__init__(positions)
        self.probing = probing
        self._states: dict[int, LinearAttentionLayer] = {}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        self.probing.store(key_states, value_states, layer_idx)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _layer(self, layer: int) -> LinearAttentionLayer:
        self.probing.keeps_state(layer)
        return self._states.setdefault(layer, LinearAttentionLayer(MOST_STATES))

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        return self._layer(layer_idx).conv_states[state_idx]

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        return self._layer(layer_idx).update_conv_state(conv_states, state_idx, **kwargs)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        return self._layer(layer_idx).recurrent_states[state_idx]

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                               **kwargs: Any) -> Any:  # fmt: skip
        return self._layer(layer_idx).update_recurrent_state(recurrent_states, state_idx, **kwargs)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> Any:
        raise self.probing.refused("chooses what it attends to by an index, which is not modelled", layer_idx)


def classify(mask: Mask, device: torch.device) -> AttentionVariant | None:
    """Window or chunk of a kind of layer, from what its mask says of pairs of positions; None = something else."""
    size = mask.size or 0
    near = [multiple * size + offset for multiple in range(4) for offset in range(-2, 3)] if size else []
    far = [2**power + offset for power in range(6, 21) for offset in (-1, 0)]
    at = torch.tensor(sorted({*range(48), *far, *(position for position in near if position >= 0)}), device=device)
    query, key = at[:, None], at[None, :]
    try:
        seen = mask.sees(0, 0, query, key)
    except Exception:  # not a function of positions
        return None
    for kind in (PLAIN, AttentionVariant(window=size), AttentionVariant(chunk=size)):
        wanted = (key <= query) & (key >= kind.first_seen(query))
        if torch.equal(seen.expand_as(wanted), wanted):
            return kind
    return None
