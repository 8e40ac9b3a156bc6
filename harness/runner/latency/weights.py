"""How many weights a model has and which of them a step touches, from its `transformers` config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

TIED = {"opt", "gpt2", "bloom", "falcon"}  # the output matrix is the embedding, unless the config says otherwise
UNGATED = {"opt", "gpt2", "gpt_neox", "gptj", "bloom", "falcon", "phi", "mpt"}  # two matrices in an MLP, not three


@dataclass(frozen=True, slots=True)
class Weights:
    """The numbers of a decoder-only transformer that its step time depends on.

    Attributes:
        layers, hidden, heads, kv_heads, head_dim, vocab: of the model.
        attention: weights of the projections of one layer.
        mlp: weights of one expert of one layer (of the only MLP of a dense model).
        experts, active: experts of a layer and how many a token uses; 1 and 1 when dense.
        shared: weights of a layer that every token uses beside experts (router, shared expert).
        tied: the output matrix is the embedding.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    attention: int
    mlp: int
    experts: int = 1
    active: int = 1
    shared: int = 0
    tied: bool = False

    @property
    def parameters(self) -> int:
        """All weights, but for norms, biases and positions."""
        layers = self.layers * (self.attention + self.experts * self.mlp + self.shared)
        return layers + self.hidden * self.vocab * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Weights of the layers that a token meets."""
        return self.layers * (self.attention + self.active * self.mlp + self.shared)

    def touched(self, tokens: int) -> float:
        """Weights of the layers that a step of `tokens` tokens reads: the experts that some token chose, on average."""
        if self.experts == 1:
            return float(self.active_parameters)
        chosen = self.experts * (1 - (1 - self.active / self.experts) ** tokens)
        return self.layers * (self.attention + chosen * self.mlp + self.shared)

    def slot_bytes(self, element_bytes: int) -> int:
        """K and V of one token in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def weights_of(config: Any) -> Weights:
    """Count the weights of a causal LM.

    Args:
        config: a `transformers` config, or a mapping with its names (OPT, GPT-2, Llama, Mistral, Qwen, Mixtral, …).
    """
    text = SimpleNamespace(**config) if isinstance(config, Mapping) else config.get_text_config()
    hidden, heads = text.hidden_size, text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or hidden // heads
    inner = getattr(text, "ffn_dim", None) or getattr(text, "intermediate_size", None) or 4 * hidden
    matrices = 2 if text.model_type in UNGATED else 3
    tied = getattr(text, "tie_word_embeddings", None)
    if tied is None:
        tied = text.model_type in TIED
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1
    shared = 0
    if experts > 1:
        inner = getattr(text, "moe_intermediate_size", None) or inner
        shared = experts * hidden + matrices * hidden * (getattr(text, "shared_expert_intermediate_size", None) or 0)
    return Weights(
        layers=text.num_hidden_layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=text.vocab_size,
        attention=2 * hidden * head_dim * (heads + kv_heads),
        mlp=matrices * hidden * inner,
        experts=experts,
        active=getattr(text, "num_experts_per_tok", None) or 1 if experts > 1 else 1,
        shared=shared,
        tied=tied,
    )
