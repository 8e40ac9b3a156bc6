"""Which layers of a model keep what, from the many names that configs have for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from allocators.layout import Kind
from harness.errors import HarnessError

Kinds = tuple[Kind, ...]  # of one layer: usually one; none where it keeps nothing, two where attention and a state meet

FULL: Kinds = ("full",)
WINDOW: Kinds = ("window",)
CHUNK: Kinds = ("chunk",)
STATE: Kinds = ("state",)
BOTH: Kinds = ("full", "state")
NONE: Kinds = ()

NAMES: dict[str, Kinds] = {
    "full_attention": FULL, "attention": FULL, "global": FULL, "sliding_attention": WINDOW, "local": WINDOW,
    "chunked_attention": CHUNK, "linear_attention": STATE, "mamba": STATE, "conv": STATE, "recurrent": STATE,
    "hybrid": BOTH, "mlp": NONE, "moe": NONE,
}  # fmt: skip
PATTERN: dict[str, Kinds] = {"M": STATE, "*": FULL, "-": NONE, "E": NONE}  # of Nemotron-H
STATES_ONLY = {"mamba", "mamba2", "falcon_mamba"}
WINDOW_IN_ALL = {"mistral", "ministral", "ministral3", "mixtral", "phi3", "phimoe", "starcoder2", "minimax", "zaya"}
# Where a config that is written out leaves a key out, its family's default holds.
WINDOWS = {"mistral": 4096, "ministral": 4096, "gemma2": 4096, "gemma3": 4096, "gemma3_text": 4096,
           "gemma3n_text": 512, "gpt_oss": 128, "cohere2": 4096, "exaone4": 4096, "olmo3": 4096}  # fmt: skip
HEAD_DIMS = {"gemma": 256, "gemma2": 256, "gemma3": 256, "gemma3_text": 256, "gemma3n_text": 256, "gpt_oss": 64,
             "qwen3": 128, "qwen3_next": 256, "qwen3_5_text": 256, "qwen3_5_moe_text": 256}  # fmt: skip
CHUNK_SIZE = 8192
# What these keep, or where, is not known here. A key counts if it is there and not null, 0 or empty.
UNKNOWN = {
    "index_topk": "indexers keep keys of their own", "compress_rates": "compressed attention",
    "cross_attention_layers": "cross attention to another model", "attention_window_size": "windows in another form",
    "global_head_dim": "heads that differ by layer", "num_global_key_value_heads": "heads that differ by layer",
    "n_recurrent_layers": "layers that run several times", "local_attention_window_len": "windows in another form",
}  # fmt: skip
UNKNOWN_TYPES = re.compile(r"recurrent_gemma|rwkv|xlstm|reformer|blt|inkling|xlnet|transfo")


class Text:
    """The part of a config that describes the decoder of text, whatever form it has.

    Raises:
        HarnessError: a size that it must say is missing, or differs by layer.
    """

    def __init__(self, values: Any) -> None:
        self.values = values
        self.model_type = str(self.get("model_type", ""))

    @classmethod
    def of(cls, config: Any) -> Text:
        if isinstance(config, Text):
            return config
        if isinstance(config, Mapping):
            nested = config.get("text_config")
            return cls(SimpleNamespace(**(nested if isinstance(nested, Mapping) else config)))
        return cls(config.get_text_config())

    def get(self, name: str, default: Any = None) -> Any:
        """A value; `default` where it is absent or null."""
        try:
            value = getattr(self.values, name, None)
        except RuntimeError as error:  # transformers' way to say that it is another one in each layer
            raise HarnessError(
                f"model_type={self.model_type}: {name} differs by layer, which is not modelled"
            ) from error
        return default if value is None else value

    def __getattr__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise HarnessError(f"model_type={self.model_type}: its config does not say {name}")
        return value

    @property
    def head_dim(self) -> int:
        told = self.get("head_dim") or self.get("attention_head_dim") or HEAD_DIMS.get(self.model_type)
        return told or self.hidden_size // self.num_attention_heads

    @property
    def latent_width(self) -> int:
        """Elements of the latent and the rotated part of K that MLA keeps; 0 without it."""
        rank = self.get("kv_lora_rank")
        return rank + self.get("qk_rope_head_dim", 0) if rank else 0

    @property
    def key_width(self) -> int:
        return self.head_dim

    @property
    def value_width(self) -> int:
        return self.get("v_head_dim") or self.head_dim

    def kv_heads(self, number: int = 0) -> int:
        """Of a layer."""
        if self.get("multi_query") and not self.get("new_decoder_architecture"):
            return 1
        wanted = self.get("num_key_value_heads") or (
            self.get("num_kv_heads") if self.get("new_decoder_architecture") else None
        )
        if isinstance(wanted, list | tuple):
            return wanted[number]
        return wanted or self.num_attention_heads

    def reach(self, kind: Kind) -> int:
        """Tokens that a window or a chunk spans; 0 for others."""
        if kind == "window":
            return self.window or self.get("sliding_window_size") or self.window_size
        return self.get("attention_chunk_size", CHUNK_SIZE) if kind == "chunk" else 0

    @property
    def window(self) -> int | None:
        """Tokens in a sliding window; where a config does not speak of one, what its family has."""
        if "sliding_window" in vars(self.values):
            return self.get("sliding_window")
        return WINDOWS.get(self.model_type)


def layers_of(text: Text) -> list[Kinds]:
    """What each layer keeps, in order.

    Raises:
        HarnessError: it is not known; the message names the key that says so.
    """
    who = f"model_type={text.model_type}"
    for key, what in UNKNOWN.items():
        if text.get(key):
            raise HarnessError(f"{who}: {key}={text.get(key)}: {what}, which is not modelled")
    if UNKNOWN_TYPES.search(text.model_type):
        raise HarnessError(f"{who}: what its layers keep of a sequence is not known")
    kinds = _listed(text, who) or _by_rule(text, who)
    shared = text.get("num_kv_shared_layers", 0)  # they read what an earlier layer keeps
    return [NONE if number >= len(kinds) - shared else kind for number, kind in enumerate(kinds)]


def _listed(text: Text, who: str) -> list[Kinds] | None:
    """As the config lists them, one by one; None if it does not."""
    pattern = text.get("hybrid_override_pattern")
    if pattern:
        return [_known(PATTERN, name, who, "hybrid_override_pattern") for name in pattern]
    for key in ("layer_types", "layers_block_type", "block_types", "attention_layers"):
        names = text.get(key)
        if names:
            _as_many(text, names, who, key)
            return [_known(NAMES, name, who, key) for name in names]
    if "attn_layer_indices" in vars(text.values) and text.get("mamba_d_state"):
        at = set(text.get("attn_layer_indices", ()))
        return _each(text, lambda layer: layer in at, FULL, STATE)
    if text.get("full_attn_idxs"):
        at = set(text.full_attn_idxs)
        return _each(text, lambda layer: layer in at, FULL, STATE)
    return None


def _by_rule(text: Text, who: str) -> list[Kinds]:
    """As the family has them."""
    kind, window = text.model_type, text.window
    if kind in STATES_ONLY:
        return [STATE] * text.num_hidden_layers
    if kind == "falcon_h1":
        return [BOTH] * text.num_hidden_layers
    if kind in ("jamba", "zamba") and text.get("attn_layer_period"):
        period, offset = text.attn_layer_period, text.attn_layer_offset
        attends = BOTH if kind == "zamba" else FULL
        return _each(text, lambda layer: layer % period == offset, attends, STATE)
    if text.get("linear_num_value_heads"):
        return _every(text, text.get("full_attention_interval", 4), STATE)
    if text.get("attention_chunk_size") or kind == "llama4_text":
        rotated = text.get("no_rope_layers") or [(layer + 1) % 4 for layer in range(text.num_hidden_layers)]
        _as_many(text, rotated, who, "no_rope_layers")
        return [CHUNK if each else FULL for each in rotated]
    if text.get("mamba_d_state") or text.get("ssm_state_size") or text.get("state_size"):
        raise HarnessError(f"{who}: which of its layers are recurrent is not known: write layer_types=[...]")
    if not window or text.get("use_sliding_window") is False:
        return [FULL] * text.num_hidden_layers
    if text.get("use_sliding_window"):
        first = text.get("max_window_layers", 0)
        return _each(text, lambda layer: layer >= first, WINDOW, FULL)
    if kind in WINDOW_IN_ALL:
        return [WINDOW] * text.num_hidden_layers
    every = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern")
    every = every or {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "cohere2": 4}.get(
        kind
    )
    if isinstance(every, int):
        return _every(text, every, WINDOW)
    raise HarnessError(f"{who}: which of its layers have the sliding_window={window} is not known: write "
                       "layer_types=[full_attention, sliding_attention, ...]")  # fmt: skip


def _every(text: Text, period: int, others: Kinds) -> list[Kinds]:
    """Full attention in the last of each `period` layers."""
    return _each(text, lambda layer: (layer + 1) % period == 0, FULL, others)


def _each(text: Text, test: Callable[[int], bool], yes: Kinds, no: Kinds) -> list[Kinds]:
    return [yes if test(layer) else no for layer in range(text.num_hidden_layers)]


def _known(names: Mapping[str, Kinds], name: str, who: str, key: str) -> Kinds:
    if name not in names:
        raise HarnessError(f"{who}: what a layer keeps that {key} calls {name!r} is not known; known are "
                           f"{', '.join(names)}")  # fmt: skip
    return names[name]


def _as_many(text: Text, names: Iterable[Any], who: str, key: str) -> None:
    count = len(list(names))
    if count != text.get("num_hidden_layers", count):
        raise HarnessError(f"{who}: {key} lists {count} layers, num_hidden_layers={text.num_hidden_layers}")
