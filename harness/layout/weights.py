"""How many weights a model has and which of them a step touches, from its `transformers` config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.layout.layers import Kinds, Text, layers_of
from harness.layout.mixers import attention_weights, state_weights

# Their output matrix is the embedding, unless the config says otherwise ...
TIED = {"opt", "gpt2", "bloom", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "cohere",
        "cohere2", "falcon_mamba", "mamba", "mamba2", "lfm2"}  # fmt: skip
# ... and an MLP of these has two matrices, not three.
UNGATED = {"opt", "gpt2", "gpt_neox", "gptj", "bloom", "falcon", "phi", "mpt", "nemotron", "nemotron_h", "starcoder2",
           "gpt_neo", "gpt_bigcode", "codegen"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """Layers alike.

    Attributes:
        layers: how many.
        mixer: weights of one's attention, or of its recurrence.
        mlp: of one expert (of the only MLP of a dense layer; 0 without any).
        experts, active: experts and how many a token uses; 1 and 1 when dense.
        shared: weights that every token uses beside experts (router, shared expert).
    """

    layers: int
    mixer: int
    mlp: int
    experts: int = 1
    active: int = 1
    shared: int = 0

    def touched(self, experts: float) -> float:
        """Weights that are read where so many of the experts of each layer are."""
        return self.layers * (self.mixer + experts * self.mlp + self.shared)


@dataclass(frozen=True, slots=True)
class Weights:
    """The numbers of a decoder-only transformer that its step time depends on.

    Attributes:
        layers, hidden, heads, kv_heads, vocab: of the model.
        blocks: what its layers consist of.
        tied: the output matrix is the embedding.
        text: the config that they were counted from.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    blocks: tuple[Block, ...]
    tied: bool
    text: Text = field(compare=False, repr=False)

    @property
    def parameters(self) -> int:
        """All weights, but for norms, biases and positions."""
        layers = sum([int(block.touched(block.experts)) for block in self.blocks])
        return layers + self.hidden * self.vocab * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Weights of the layers that a token meets."""
        return sum([int(block.touched(block.active)) for block in self.blocks])

    def touched(self, tokens: int) -> float:
        """Weights of the layers that a step of `tokens` tokens reads: the experts that some token chose, on average."""
        total = 0.0
        for block in self.blocks:
            chosen = 1.0
            if block.experts > 1:
                chosen = block.experts * (1 - (1 - block.active / block.experts) ** tokens)
            total += block.touched(chosen)
        return total


def weights_of(config: Any) -> Weights:
    """Count the weights of a causal LM.

    Args:
        config: a `transformers` config, or a mapping with its names (OPT, GPT-2, Llama, Mistral, Qwen, Mixtral, …).
    """
    text = Text.of(config)
    tied = text.get("tie_word_embeddings")
    kinds = layers_of(text)
    return Weights(
        layers=len(kinds),
        hidden=text.hidden_size,
        heads=text.get("num_attention_heads", 0),
        kv_heads=text.kv_heads() if text.get("num_attention_heads") else 0,
        vocab=text.vocab_size,
        blocks=_blocks(text, kinds),
        tied=text.model_type in TIED if tied is None else tied,
        text=text,
    )


def _blocks(text: Text, kinds: list[Kinds]) -> tuple[Block, ...]:
    """Equal layers counted together, in the order of the first of each."""
    counts: dict[Block, int] = {}
    for number, kind in enumerate(kinds):
        block = _layer(text, number, kind)
        counts[block] = counts.get(block, 0) + 1
    return tuple(
        Block(count, block.mixer, block.mlp, block.experts, block.active, block.shared)
        for block, count in counts.items()
    )


def _layer(text: Text, number: int, kind: Kinds) -> Block:
    """One layer."""
    pattern = text.get("hybrid_override_pattern") or text.get("layers_block_type")
    if pattern and text.model_type == "nemotron_h":  # each of its layers is a mixer or an MLP
        return _nemotron_layer(text, str(pattern[number]), kind)
    mixer = 0
    for part in kind:
        mixer += state_weights(text) if part == "state" else attention_weights(text, number)
    if not kind:  # it reads what an earlier layer keeps
        mixer = attention_weights(text, number, own_kv=False)
    matrices, inner = 2 if text.model_type in UNGATED else 3, inner_of(text, number)
    if text.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return Block(1, mixer, 0)
    if not is_sparse(text, number):
        return Block(1, mixer, matrices * text.hidden_size * inner)
    experts, one = experts_of(text), text.get("moe_intermediate_size") or inner
    if text.model_type == "llama4_text":
        one = text.intermediate_size
    shared = experts * text.hidden_size + matrices * text.hidden_size * shared_inner_of(text, one)
    return Block(1, mixer, matrices * text.hidden_size * one, experts, text.get("num_experts_per_tok") or 1, shared)


def _nemotron_layer(text: Text, letter: str, kind: Kinds) -> Block:
    hidden = text.hidden_size
    if kind:
        return Block(1, state_weights(text) if kind == ("state",) else attention_weights(text), 0)
    if letter in ("E", "moe"):
        experts, shared = experts_of(text), 2 * hidden * shared_inner_of(text, 0)
        one = 2 * hidden * text.moe_intermediate_size
        return Block(1, 0, one, experts, text.num_experts_per_tok, experts * hidden + shared)
    return Block(1, 0, 2 * hidden * text.intermediate_size)


def experts_of(text: Text) -> int:
    return text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts") or 1


def is_sparse(text: Text, number: int) -> bool:
    """Whether a layer has experts."""
    if experts_of(text) <= 1:
        return False
    mlps = text.get("mlp_layer_types")
    if mlps:
        return str(mlps[number]) != "dense"
    if text.get("expert_layer_period"):
        return number % text.expert_layer_period == text.get("expert_layer_offset", 0)
    if number in text.get("mlp_only_layers", ()) or number < text.get("num_dense_layers", 0):
        return False
    if text.get("interleave_moe_layer_step"):
        return (number + 1) % text.interleave_moe_layer_step == 0
    if number < text.get("first_k_dense_replace", 0):
        return False
    if text.get("decoder_sparse_step"):
        return (number + 1) % text.decoder_sparse_step == 0
    return number % text.get("moe_layer_freq", 1) == 0


def inner_of(text: Text, number: int) -> int:
    """Width of a dense layer's MLP."""
    names = ("intermediate_size_mlp", "ffn_dim", "intermediate_size")
    inner = next((text.get(name) for name in names if text.get(name)), 4 * text.hidden_size)
    if isinstance(inner, list | tuple):
        inner = inner[number]
    if text.get("block_auto_adjust_ff_dim"):  # LFM2
        inner = int(text.get("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        multiple = text.get("block_multiple_of", 256)
        inner = -(-inner // multiple) * multiple
    return int(inner)


def shared_inner_of(text: Text, one: int) -> int:
    """Width of the experts that every token uses, all together."""
    if text.model_type == "llama4_text":
        return one
    width = text.get("shared_expert_intermediate_size") or text.get("shared_intermediate_size")
    if width:
        return int(width)
    shared = text.get("n_shared_experts") or text.get("num_shared_experts") or text.get("moe_num_shared_experts") or 0
    return shared * (text.get("moe_shared_expert_intermediate_size") or text.get("moe_intermediate_size") or one)
