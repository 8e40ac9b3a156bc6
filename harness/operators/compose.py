"""Composes the costs of each step from a model, a GPU's tables and the parallelism."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from harness.errors import HarnessError
from harness.layout.shares import share_of_heads
from harness.operators.attention import Surface, decode_surface, prompt_surface
from harness.operators.collectives import all_reduce_ns, collective_ns, fused_reduce_ns
from harness.operators.costs import LANES, TOKENS, Costs, drafting
from harness.operators.experts import expert_ns
from harness.operators.folder import Tables
from harness.operators.gemm import Gemms
from harness.operators.latent import Latent
from harness.operators.machines import Machine
from harness.operators.model import Model, Parallel, Precision
from harness.operators.states import state_ns

CONTEXTS = 2.0 ** np.arange(1, 18)  # contexts at which decode attention is tabulated
BATCH, LENGTH = 2.0 ** np.arange(9), np.array([1, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
                                               10240, 12288, 16384, 32768, 65536, 131072.0])  # fmt: skip
NORMS, ROPE = 2, 1.1
NORMED_HEADS = ("qwen3", "qwen3_moe", "qwen3_5_moe_text", "minimax_m2")  # queries and keys; MiniMax's of all heads
GRAPHS = {  # batch sizes of captured graphs: the engine pads a decode step to the next one, and beyond to none
    "vllm": [1, 2, 4, *range(8, 513, 8)], "sglang": [1, 2, 4, 8, 12, 16, *range(24, 257, 8)],
    "trtllm": [1, 2, 4, *range(8, 129, 8), 256, 512, 1024],
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """Rules for what no table holds; each can be switched off.

    Attributes:
        smooth: single slow points of matrix products are cut.
        history: a chunk of a prompt pays for the pairs with its history.
        static_scales: fp8 and NVFP4 products of TensorRT-LLM exclude the quantiser that their table includes.
        padded_graphs: decode steps are padded to a captured batch size.
        power_cap: products are no faster than the GPU can sustain (`Gemm.sustained`, `fp8_share`).
        eager_prompts: steps with a prompt take at least `eager_kernel_us` per kernel.
        host: every step takes an additional `host_ms`.
        overlapped_host: not so if the engine prepares the next step while one runs.
        pointwise: norms, activations and rotations take the time of their bytes and a constant.
        borrowed_kernels: experts take at least the time of the engine's own kernel, measured with other shapes.
        dynamic_scales: a kernel quantises the input of each NVFP4 product, except in TensorRT-LLM.
        fused_norms: the norm after a small all-reduce is part of it, if the engine fuses them (`fused_reduce_ns`).
        small_kernels: the choice of experts, the sum with shared ones and the gates of recurrent layers take time.
        drafts: tokens are drafted and verified, if the engine does so.
        normed_heads: queries and keys are normalized, in models that do so.
        launches: fp8_block products exclude the launches that their table includes.
        tokenized: prompts are tokenized one after the other before an engine sees them.
    """

    smooth: bool = True
    history: bool = True
    static_scales: bool = True
    padded_graphs: bool = True
    power_cap: bool = True
    eager_prompts: bool = True
    host: bool = True
    pointwise: bool = True
    borrowed_kernels: bool = True
    dynamic_scales: bool = True
    fused_norms: bool = True
    normed_heads: bool = True
    overlapped_host: bool = True
    small_kernels: bool = True
    drafts: bool = True
    launches: bool = True
    tokenized: bool = True

    @classmethod
    def without(cls, names: list[str]) -> Rules:
        """All rules but those.

        Raises:
            HarnessError: there is no such rule.
        """
        known = [one.name for one in fields(cls)]
        for name in names:
            if name not in known:
                raise HarnessError(f"device.without={name}: the rules are {', '.join(known)}")
        return cls(**dict.fromkeys(names, False))


def compose(model: Model, tables: Tables, parallel: Parallel, precision: Precision, machine: Machine,
            rules: Rules | None = None, expert_kernel: str = "", fuses: bool = False,
            drafts: int = 0) -> Costs:  # fmt: skip
    """The costs of each step on one of the devices; data-parallel groups run in lockstep with as many tokens each.

    Args:
        expert_kernel: see `expert_ns`.
        fuses: whether the engine fuses all-reduces and norms.
        drafts: tokens that are drafted per step (see `drafting`).

    Raises:
        HarnessError: an operator that the model needs is in no table; the message names it.
    """
    rules = rules or Rules()
    ours = tables.engine == "trtllm"
    gemms = Gemms(tables, rules.smooth, rules.static_scales and ours, rules.dynamic_scales and not ours,
                  rules.launches, machine.fp8_share if rules.power_cap else 0.0)  # fmt: skip
    known = np.unique(np.r_[np.arange(0, 129), np.arange(136, 1025, 8), np.arange(1088, TOKENS + 1, 64)])
    build = _Build(model, tables, parallel, precision, rules, gemms, np.maximum(known, 1).astype(float), expert_kernel,
                   rules.fused_norms and fuses, drafts if rules.drafts else 0)  # fmt: skip
    every = np.arange(TOKENS + 1)
    decode, prompt = (np.interp(every, known, one) for one in build.by_tokens())
    kernels = float(model.kernels(precision, parallel))
    if rules.padded_graphs:
        sizes = np.array(GRAPHS[tables.engine])
        padded = every.copy()
        within = every <= sizes[-1]
        padded[within] = sizes[np.searchsorted(sizes, every[within])]
        decode = decode[padded]
    costs = Costs(
        decode, prompt, build.by_sequences(), build.lanes(), CONTEXTS, np.log(build.prompts()), np.log2(BATCH),
        np.log2(LENGTH), kernels,
        1e3 * machine.eager_kernel_us * kernels if rules.eager_prompts else 0.0,
        1e6 * machine.host_ms if rules.host else 0.0, 1, rules.history,
    )  # fmt: skip
    return drafting(costs, build.drafts, model.layers)


class _Build:
    """The parts of a step, each for all counts at once."""

    def __init__(self, model: Model, tables: Tables, parallel: Parallel, precision: Precision, rules: Rules,
                 gemms: Gemms, tokens: np.ndarray, expert_kernel: str = "", fuses: bool = False,
                 drafts: int = 0) -> None:  # fmt: skip
        self.expert_kernel, self.fuses, self.drafts = expert_kernel, fuses, drafts
        self.model, self.tables, self.parallel, self.precision = model, tables, parallel, precision
        self.rules, self.gemms, self.tokens = rules, gemms, tokens
        text, share = model.text, parallel.tensor
        if text.num_attention_heads % share:
            raise HarnessError(
                f"device.tensor_parallel={share}: {text.num_attention_heads} heads can't be shared evenly"
            )
        self.heads = text.num_attention_heads // share
        self.kv_heads = share_of_heads(text.kv_heads(), share)
        self.hidden = int(text.hidden_size)
        has_latent = any(kind == "latent" for kind, _ in model.mixers)
        self.latent = Latent(tables, gemms, text, self.heads, precision.attention, precision.kv,
                             tokens) if has_latent else None  # fmt: skip

    def by_tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """(costs of a step without a prompt, costs of a step with one)."""
        model, share = self.model, self.parallel.tensor
        decode = prompt = self.mlps()
        moves = self.pointwise(self.hidden, self.hidden) + self.activations() + self.small()  # the first: the embedding
        for (kind, _), count in model.mixers.items():
            one, of_prompt = self.mixer(kind)
            decode, prompt = decode + count * one, prompt + count * of_prompt
            moves = moves + count * self.heads_moved(kind)
        norm, elements = self.pointwise(2 * self.hidden, 2 * self.hidden), self.tokens * self.hidden
        reduce = all_reduce_ns(self.tables, elements, share)
        both = norm + reduce
        every = NORMS * model.layers
        moves = moves + reduce
        if self.parallel.data > 1 and model.sparse:
            moves = moves + model.sparse * (self.dispatch() - reduce)
        decode = decode + moves + every * (fused_reduce_ns(self.tables, elements, share, both) if self.fuses else both)
        return decode, prompt + moves + every * both + self.rotations()

    def activations(self) -> np.ndarray:
        """Activations of dense MLPs and shared experts in all layers; those of routed experts are in their table."""
        model, share = self.model, self.parallel.tensor
        widths = [*model.dense.items(), *([(model.shared_inner, model.sparse)] if model.shared_inner else [])]
        return sum((count * self.pointwise(2 * inner // share, inner // share) for inner, count in widths),
                   np.zeros(len(self.tokens)))  # fmt: skip

    def small(self) -> np.ndarray:
        """Small kernels of all layers: choice of experts, sum with shared ones, norm and gate of recurrences."""
        model, text, total = self.model, self.model.text, np.zeros(len(self.tokens))
        if not self.rules.small_kernels:
            return total
        if model.sparse:
            total += model.sparse * self.pointwise(model.experts, 2 * text.num_experts_per_tok)
            total += model.sparse * self.pointwise(2 * self.hidden, self.hidden) if model.shared_inner else 0.0
        recurrent = sum(count for (kind, _), count in model.mixers.items() if kind == "state")
        if recurrent:
            value = text.linear_num_value_heads * text.linear_value_head_dim // self.parallel.tensor
            total += recurrent * self.pointwise(2 * value, value)
        return total

    def heads_moved(self, kind: str) -> np.ndarray:
        """Norms of queries and keys in one layer. MiniMax's span all heads, so devices all-reduce the squares."""
        model, share = self.model, self.parallel.tensor
        if kind not in ("full", "window") or model.text.model_type not in NORMED_HEADS or not self.rules.normed_heads:
            return np.zeros(len(self.tokens))
        width = (self.heads + self.kv_heads) * model.text.head_dim
        if model.text.model_type != "minimax_m2" or share == 1:
            return self.pointwise(width, width)
        squares = self.pointwise(width, 0) + all_reduce_ns(self.tables, 4 * self.tokens, share)  # two in float32
        return squares + self.pointwise(width, width)

    def rotations(self) -> np.ndarray:
        """Rotations of queries and keys, and writes to the cache, in all layers, of a prompt."""
        if not self.rules.pointwise:
            return np.zeros(len(self.tokens))
        gate = 2 if self.model.text.get("attn_output_gate") else 1
        q, kv = gate * self.heads * self.model.text.head_dim, 2 * self.kv_heads * self.model.text.head_dim
        layers = sum(count for (kind, _), count in self.model.mixers.items() if kind in ("full", "window"))
        moved: np.ndarray = layers * ROPE * 2 * self.tokens * (2 * (q + kv) + kv) / self.tables.gpu.bytes_per_ns
        return moved

    def mixer(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """(decode step, prompt step): projections of one layer's attention."""
        text, dtype, width = self.model.text, self.precision.attention, self.model.text.head_dim
        if kind == "latent":
            assert self.latent
            return self.latent.by_decode_token, self.latent.by_prompt_token
        if kind == "state":
            return self.recurrence()
        gate = 2 if text.get("attn_output_gate") else 1
        q, kv = gate * self.heads * width, 2 * self.kv_heads * width
        one = self.gemms.ns(dtype, self.tokens, q + kv, self.hidden, normed=True)
        one = one + self.gemms.ns(dtype, self.tokens, self.hidden, self.heads * width)
        return one, one

    def recurrence(self) -> tuple[np.ndarray, np.ndarray]:
        """A gated delta network: projections, convolution and recurrence; decodes' states come with `lanes`."""
        text, share = self.model.text, self.parallel.tensor
        key = text.linear_num_key_heads * text.linear_key_head_dim
        value = text.linear_num_value_heads * text.linear_value_head_dim
        one = self.gemms.ns(self.precision.attention, self.tokens, (2 * key + 2 * value) // share, self.hidden)
        one = one + self.gemms.ns(
            "bfloat16", self.tokens, max(2 * text.linear_num_value_heads // share, 32), self.hidden
        )
        one = one + self.gemms.ns(self.precision.attention, self.tokens, self.hidden, value // share)
        return one, one + state_ns(self.tables, text, share, self.tokens, "context")

    def mlps(self) -> np.ndarray:
        """Dense MLPs and experts of all layers."""
        model, share = self.model, self.parallel.tensor
        total = np.zeros(len(self.tokens))
        for inner, count in model.dense.items():
            total += count * self.mlp(inner // share)
        if model.sparse:
            text, data = model.text, self.parallel.data
            one = expert_ns(self.tables, self.precision.experts, self.tokens * data, self.hidden, model.expert_inner,
                            text.num_experts_per_tok, model.experts, self.parallel.expert_tensor, self.parallel.expert,
                            self.expert_kernel, self.rules.borrowed_kernels)  # fmt: skip
            one = one + self.gemms.ns("bfloat16", self.tokens, model.experts, self.hidden)
            if model.shared_inner:
                one = one + self.mlp(model.shared_inner // share)
            total += model.sparse * one
        return total

    def mlp(self, inner: int) -> np.ndarray:
        """Gate and up in one product, and down."""
        one = self.gemms.ns(self.precision.mlp, self.tokens, 2 * inner, self.hidden, normed=True)
        return one + self.gemms.ns(self.precision.mlp, self.tokens, self.hidden, inner)

    def dispatch(self) -> np.ndarray:
        """An all-gather of hidden states before the experts and a reduce-scatter after them, over all devices."""
        elements = self.tokens * self.parallel.data * self.hidden
        devices = self.parallel.devices
        return collective_ns(self.tables, "all_gather", elements, devices) + collective_ns(
            self.tables, "reduce_scatter", elements, devices)  # fmt: skip

    def pointwise(self, read: int, written: int) -> np.ndarray:
        """A kernel that reads and writes that many 2-byte elements per token."""
        if not self.rules.pointwise:
            return np.zeros(len(self.tokens))
        gpu = self.tables.gpu
        moved: np.ndarray = self.tokens * 2.0 * (read + written) / (gpu.bytes_per_ns * gpu.pointwise_share)
        return moved + gpu.pointwise_ns

    def by_sequences(self) -> np.ndarray:
        """``[lanes + 1]``: the output matrix."""
        text, count = self.model.text, np.arange(LANES + 1, dtype=float)
        return self.gemms.ns("bfloat16", np.maximum(count, 1), text.vocab_size // self.parallel.tensor, self.hidden)

    def lanes(self) -> np.ndarray:
        """``[lanes + 1, contexts]``: decode attention, and the recurrence of decodes."""
        total = np.zeros((LANES + 1, len(CONTEXTS)))
        count = np.arange(LANES + 1, dtype=float)
        for (kind, reach), layers in self.model.mixers.items():
            if kind == "state":
                one = state_ns(self.tables, self.model.text, self.parallel.tensor, np.maximum(count, 1), "generation")
                total += layers * (1 + self.drafts) * one[:, None]  # each token that is verified moves the state
                continue
            total += layers * _over(self.surface(kind, reach, prompts=False), count, CONTEXTS)
        return total

    def prompts(self) -> np.ndarray:
        """``[batch, length]``: prompt attention."""
        total = np.full((len(BATCH), len(LENGTH)), 1.0)
        for (kind, reach), layers in self.model.mixers.items():
            if kind != "state":
                total += layers * _stretched(self.surface(kind, reach, prompts=True))
        return total

    def surface(self, kind: str, reach: int, prompts: bool) -> Surface:
        if kind == "latent":
            assert self.latent
            return self.latent.prompts if prompts else self.latent.decodes
        of = prompt_surface if prompts else decode_surface
        width = self.model.text.head_dim
        return of(self.tables, self.heads, self.kv_heads, width, self.precision.kv, reach)


def _over(surface: Surface, count: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """``[count, contexts]``: linear in both between measured points, extrapolated beyond."""
    rows = np.array([_line(contexts, surface.length, row) for row in surface.ns])
    found = np.array([_line(np.maximum(count, 1), surface.batch, column) for column in rows.T]).T
    return found


def _stretched(surface: Surface) -> np.ndarray:
    """``[BATCH, LENGTH]``: interpolated in the logarithms of all three, extrapolated from the last two points."""
    rows = np.array([_line(np.log(LENGTH), np.log(surface.length), row) for row in np.log(surface.ns)])
    return np.exp(np.array([_line(np.log(BATCH), np.log(surface.batch), column) for column in rows.T]).T)


def _line(x: np.ndarray, axis: np.ndarray, values: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.interp(x, axis, values)
    if len(axis) > 1:
        slope = (values[-1] - values[-2]) / (axis[-1] - axis[-2])
        found = found + np.maximum(x - axis[-1], 0) * max(slope, 0.0)
    return found
