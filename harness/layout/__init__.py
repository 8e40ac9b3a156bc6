"""From a model's config, its dtype and its parallelism to what it keeps of a sequence: the one place that knows."""

from __future__ import annotations

from typing import Any

from allocators.layout import Kind, KVLayout, LayerGroup
from harness.errors import HarnessError
from harness.layout.layers import Text, layers_of
from harness.layout.recurrent import mixer_of, states_of
from harness.layout.shares import share_of_heads


def layout_of(config: Any, element_bytes: int = 2, kv_bytes: int | None = None, tensor_parallel: int = 1) -> KVLayout:
    """What a causal LM keeps.

    Args:
        config: a `transformers` config, or a mapping with its names, as a model's `config.json` holds them.
        element_bytes: of the model's dtype.
        kv_bytes: of an element of K and V; None = as the model's. States are not affected.
        tensor_parallel: devices that share the heads. With more devices than KV heads each holds one whole head; a
            latent has none to share, so each holds all of it.

    Raises:
        HarnessError: layers whose cache is not known, or heads that the devices can't share.
    """
    text = Text.of(config)
    groups: dict[LayerGroup, list[int]] = {}
    for number, kinds in enumerate(layers_of(text)):
        for kind in kinds:
            if kind == "state":
                states = states_of(text, element_bytes, tensor_parallel)
                group = LayerGroup("state", (), states=states, mixer=mixer_of(text))
            else:
                group = _attention(text, number, kind, kv_bytes or element_bytes, tensor_parallel)
            groups.setdefault(group, []).append(number)
    if not groups:
        raise HarnessError(f"model_type={text.model_type}: no layer keeps anything of a sequence")
    return KVLayout(tuple(group.of(tuple(layers)) for group, layers in groups.items()), tensor_parallel)


def _attention(text: Text, number: int, kind: Kind, element_bytes: int, devices: int) -> LayerGroup:
    """What one attention layer keeps."""
    reach = text.reach(kind)
    if text.latent_width:
        return LayerGroup("latent" if kind == "full" else kind, (), 1, text.latent_width, 0, element_bytes, reach)
    heads = share_of_heads(text.kv_heads(number), devices)
    return LayerGroup(kind, (), heads, text.key_width, text.value_width, element_bytes, reach)
