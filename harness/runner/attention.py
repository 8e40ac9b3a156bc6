"""Paged attention in any Hugging Face causal LM: the packed tokens of all sequences, over the allocator's tables.

It enters every layer through three public interfaces of `transformers`: the attention function (`AttentionInterface`),
the mask function (`AttentionMaskInterface`) and the cache (`harness.runner.cache`). The object that handles their calls
during a forward pass is in `CURRENT`: a step of the runner, the probe, or the tracer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import transformers.utils
import transformers.utils.import_utils
from kvlab_kernels.addresses import Addresses
from kvlab_kernels.dispatch import Backend
from kvlab_kernels.variant import AttentionVariant

if TYPE_CHECKING:
    from harness.runner.dense import Row
    from harness.runner.recurrent import Mixer, MixerContext

# `transformers` may fetch kernels through a package with the name of a folder of this repository: keep it from that.
transformers.utils.is_kernels_available = transformers.utils.import_utils.is_kernels_available = (
    lambda *args, **kwargs: False
)

NAME = "kvlab"


class MaskUsed(Exception):
    """A model computes with its mask itself, instead of passing it to its attention function."""


class Mask:
    """The `attention_mask` of the layers of one kind.

    Attributes:
        sees: whether a query sees a key, as ``sees(0, 0, query, key)`` of positions inside a sequence.
        size: window or chunk of this kind of layer, from the model; None = not given.
    """

    def __init__(self, sees: Callable[..., torch.Tensor], size: int | None) -> None:
        self.sees, self.size = sees, size

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise MaskUsed(getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> Any:
        raise MaskUsed(name)

    def __getitem__(self, key: Any) -> Any:
        raise MaskUsed("[]")


class Latent(NamedTuple):
    """How a layer expands the latent that it caches: key ``[W_k c, r]`` and value ``W_v c`` of each head.

    Attributes:
        linear: the layer whose weight holds ``W_k`` and ``W_v``, as ``[H * (nope + value), rank]``.
        nope, value, rope: widths of ``W_k c``, of ``W_v c`` and of r, the rotated part that all heads share.
    """

    linear: torch.nn.Linear
    nope: int
    value: int
    rope: int

    @property
    def rank(self) -> int:
        return self.linear.in_features

    @property
    def key_weight(self) -> torch.Tensor:
        """``[H, nope, rank]``."""
        return self.linear.weight.unflatten(0, (-1, self.nope + self.value))[:, : self.nope]

    @property
    def value_weight(self) -> torch.Tensor:
        """``[H, value, rank]``."""
        return self.linear.weight.unflatten(0, (-1, self.nope + self.value))[:, self.nope :]


class Call(NamedTuple):
    """One call of the attention function in a forward pass, as the probe found it.

    Attributes:
        layer: the layer whose keys and values the call attends to.
        stores: whether the call is the first of a step to attend to them, so that it stores them.
        scale: factor of the scores.
        variant: window, chunk, soft cap and sinks.
        latent: how the layer expands its cached latent; None = it caches K and V.
    """

    layer: int
    stores: bool
    scale: float
    variant: AttentionVariant
    latent: Latent | None = None

    def width(self, value: torch.Tensor) -> int:
        """Width of a head's output, given the values passed to the attention function."""
        return self.latent.value if self.latent else value.shape[3]


class AttentionHandler(Protocol):
    """Handles the attention calls of a forward pass."""

    def attention(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                  mask: Any, options: dict[str, Any]) -> torch.Tensor:  # fmt: skip
        """``[1, T, Hq, Dv]`` of query ``[1, Hq, T, D]``, key and value ``[1, Hkv, T, D or Dv]``."""

    def mixer(self, module: torch.nn.Module, hidden: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        """Output of a recurrent module for ``[1, T, C]``; None = let the module compute it itself."""


CURRENT: ContextVar[AttentionHandler | None] = ContextVar("kvlab", default=None)


@contextmanager
def handling(handler: AttentionHandler) -> Iterator[None]:
    """A context in which `handler` handles the attention calls of any model."""
    token = CURRENT.set(handler)
    try:
        yield
    finally:
        CURRENT.reset(token)


def paged_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                    attention_mask: Any, **options: Any) -> tuple[torch.Tensor, None]:  # fmt: skip
    """The attention function that `transformers` calls.

    Raises:
        RuntimeError: the model was not called by a runner.
    """
    handler = CURRENT.get()
    if handler is None:
        raise RuntimeError("a model with the attention of kvlab can be called by its runner only")
    return handler.attention(module, query, key, value, attention_mask, options), None


def mask_of_kind(mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **options: Any) -> Mask:
    """The mask function that `transformers` calls once for each kind of layer."""
    return Mask(mask_function, local_size)


transformers.AttentionInterface.register(NAME, paged_attention)
transformers.AttentionMaskInterface.register(NAME, mask_of_kind)


class Place(NamedTuple):
    """Slots and addresses of a step in the layers of one group; see `StepContext`."""

    slots: torch.Tensor
    decode: Addresses | None
    prefill: Addresses | None


@dataclass(slots=True)
class StepContext:
    """Attention metadata of a step. Decoding lanes come first in the packed row, then prompt chunks.

    Attributes:
        pools: of each layer that stores: keys ``[S, Hkv, D]`` and values ``[S, Hkv, Dv]``, scratch slot included.
        calls: the attention calls that the probe found, by module and by the layer whose keys they attend to.
        slots: ``[T]`` int64, the slot of each packed token's new K and V.
        decode: addresses of the decoding lanes (one query each); None if there are none.
        prefill: addresses of the prompt chunks; None if there are none.
        query_starts: ``[chunks + 1]`` int32, where each chunk begins among the tokens after the decoding lanes.
        places: by layer, in place of `slots`, `decode` and `prefill`, if groups of layers have slots of their own.
        rows: for a model with its own attention, the rows computed together; see `harness.runner.dense`.
        states: metadata for recurrent layers; None if there are none.
        max_decode, max_prefill, max_query: upper bounds of lengths known on the host, to avoid device syncs.
    """

    pools: dict[int, tuple[torch.Tensor, torch.Tensor]]
    calls: Calls
    backend: Backend
    slots: torch.Tensor
    decode: Addresses | None = None
    prefill: Addresses | None = None
    query_starts: torch.Tensor | None = None
    places: dict[int, Place] | None = None
    rows: list[Row] | None = None
    states: MixerContext | None = None
    max_decode: int = 0
    max_prefill: int = 0
    max_query: int = 0

    def attention(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                  mask: Any, options: dict[str, Any]) -> torch.Tensor:  # fmt: skip
        return attend(self, query, key, value, self.calls.index(module, key))

    def mixer(self, module: torch.nn.Module, hidden: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        return mix(self, hidden, self.calls.mixer_index(module))


class Calls:
    """The calls of the attention function in a forward pass, in order, and its recurrent modules.

    Attributes:
        most: for a model with its own attention, most context tokens of a row; 0 = the model uses our attention.
    """

    def __init__(self) -> None:
        self.most = 0
        self.all: list[Call] = []
        self.mixers: list[Mixer] = []
        self._index: dict[tuple[int, int], int] = {}

    def add(self, module: torch.nn.Module, call: Call) -> None:
        self._index[id(module), call.layer] = len(self.all)
        self.all.append(call)

    def index(self, module: torch.nn.Module, key: torch.Tensor) -> int:
        """The number of a call."""
        return self._index[id(module), layer_of(key)]

    def mixer_index(self, module: torch.nn.Module) -> int:
        """The number of a recurrent module."""
        return next(i for i, mixer in enumerate(self.mixers) if mixer.module is module)


def label(key: torch.Tensor, layer: int) -> None:
    """Note which layer these keys belong to, for the attention function."""
    key.kvlab_layer = layer  # type: ignore[attr-defined]


def layer_of(key: torch.Tensor) -> int:
    """The layer that `label` noted; -1 = none, so these keys do not come from the cache."""
    return getattr(key, "kvlab_layer", -1)


@torch.library.custom_op("kvlab::attention", mutates_args=())
def mark(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: int, width: int) -> torch.Tensor:
    """``[1, T, Hq, width]``; it stands in a traced model for `attend`, and is never run."""
    raise NotImplementedError("a mark in a traced model")


@mark.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: int, width: int) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], width)


@torch.library.custom_op("kvlab::mixer", mutates_args=())
def mark_mixer(hidden: torch.Tensor, mixer: int, width: int) -> torch.Tensor:
    """``[1, T, width]``; it stands in a traced model for `mix`, and is never run."""
    raise NotImplementedError("a mark in a traced model")


@mark_mixer.register_fake
def _(hidden: torch.Tensor, mixer: int, width: int) -> torch.Tensor:
    return hidden.new_empty(hidden.shape[0], hidden.shape[1], width)


@dataclass(slots=True)
class Tracing:
    """Attention and mixers leave marks instead of being computed."""

    calls: Calls

    def attention(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                  mask: Any, options: dict[str, Any]) -> torch.Tensor:  # fmt: skip
        call = self.calls.index(module, key)
        return torch.ops.kvlab.attention(query, key, value, call, self.calls.all[call].width(value))

    def mixer(self, module: torch.nn.Module, hidden: torch.Tensor, options: dict[str, Any]) -> torch.Tensor | None:
        index = self.calls.mixer_index(module)
        return torch.ops.kvlab.mixer(hidden, index, self.calls.mixers[index].width)


def mix(step: StepContext, hidden: torch.Tensor, mixer: int, width: int = 0) -> torch.Tensor:
    """``[1, T, width]`` of ``[1, T, C]``: what a recurrent module makes of a packed row."""
    if step.states is None:
        raise RuntimeError("a step of a recurrent model that says nothing of states")
    return step.states.mix(hidden, mixer)


def attend(step: StepContext, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: int,
           width: int = 0) -> torch.Tensor:  # fmt: skip
    """Store the new keys and values of one layer, and attend; of a latent, as `harness.runner.latent` says."""
    layer, stores, scale, variant, latent = step.calls.all[call]
    backend = step.backend
    k_pool, v_pool = step.pools[layer]
    slots, decode, prefill = (step.slots, step.decode, step.prefill) if step.places is None else step.places[layer]
    q = query[0] if latent is None else _to_latent(latent, query[0])
    q = q.transpose(0, 1).contiguous()
    if stores and latent is None:
        k, v = key[0].transpose(0, 1).contiguous(), value[0].transpose(0, 1).contiguous()
        backend.write_kv(k_pool, v_pool, k, v, slots)
    elif stores:
        backend.write_kv(k_pool, v_pool, torch.cat([key[0, 0], value[0, 0]], -1)[:, None], None, slots)
    out = torch.empty_like(q) if q.shape[2] == v_pool.shape[2] else q.new_empty(*q.shape[:2], v_pool.shape[2])
    lanes = 0
    if decode is not None:
        lanes = len(decode.rows)
        backend.decode_attention(q[:lanes], k_pool, v_pool, decode, scale, out[:lanes], step.max_decode, variant)
    if prefill is not None:
        backend.prefill_attention(
            q[lanes:], k_pool, v_pool, prefill, step.query_starts, scale, out[lanes:], step.max_query,
            step.max_prefill, variant,
        )  # fmt: skip
    if latent is not None:
        out = (out.transpose(0, 1) @ latent.value_weight.transpose(1, 2)).transpose(0, 1)
    return out.unsqueeze(0)


def _to_latent(latent: Latent, query: torch.Tensor) -> torch.Tensor:
    """Queries ``[H, T, nope + rope]`` turned towards latents: ``[H, T, rank + rope]``."""
    return torch.cat([query[..., : latent.nope] @ latent.key_weight, query[..., latent.nope :]], -1)
