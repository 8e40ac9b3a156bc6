"""A model as a set of operators: the products, attentions, experts and states of its layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.errors import HarnessError
from harness.layout.layers import Kinds, Text, layers_of
from harness.layout.weights import experts_of, inner_of, is_sparse, shared_inner_of, weights_of

# Kernels of a layer for a prompt, without all-reduces and quantisers. Attention: norm, product, rotation and cache,
# attention, output; latent: three norms, two products down and two up, rotation, joining, cache, attention, output;
# state: norm, two products, convolution, gates, a norm of queries and keys, five of the recurrence, norm, output.
MIXERS = {"full": 5, "window": 5, "latent": 12, "state": 13}
# Norm, gate and up, activation, down; norm, router, choice, sorting, two products and activation, sum; three and a sum.
DENSE, SPARSE, SHARED = 4, 8, 4
PRECISIONS = ("bfloat16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4_wo")
WEIGHT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125, "int4_wo": 0.53125}


@dataclass(frozen=True)
class Precision:
    """Element types of a checkpoint: attention's projections, dense MLPs and shared experts, routed experts, KV cache.
    Output matrix, embedding and router are bfloat16.
    """

    attention: str = "bfloat16"
    mlp: str = "bfloat16"
    experts: str = "bfloat16"
    kv: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in ("attention", "mlp", "experts"):
            if getattr(self, name) not in PRECISIONS:
                raise HarnessError(f"{name}={getattr(self, name)}: must be one of {', '.join(PRECISIONS)}")
        if self.kv not in ("bfloat16", "fp8"):
            raise HarnessError(f"kv={self.kv}: must be bfloat16 or fp8")

    @property
    def kv_bytes(self) -> int:
        return 1 if self.kv == "fp8" else 2


@dataclass(frozen=True)
class Parallel:
    """An engine's parallelism.

    Attributes:
        tensor: tensor-parallel degree of attention.
        data: data-parallel groups, in lockstep.
        expert_tensor, expert: tensor-parallel and expert-parallel degree of the experts; their product is that of the
            first two.
    """

    tensor: int = 1
    data: int = 1
    expert_tensor: int = 0
    expert: int = 1

    def __post_init__(self) -> None:
        if not self.expert_tensor:
            object.__setattr__(self, "expert_tensor", max(self.devices // self.expert, 1))
        if self.expert_tensor * self.expert != self.devices:
            raise HarnessError(f"{self.expert_tensor} x {self.expert} devices share the experts, "
                               f"{self.tensor} x {self.data} the rest")  # fmt: skip

    @property
    def devices(self) -> int:
        return self.tensor * self.data


@dataclass(frozen=True)
class Model:
    """A model's layers, counted by what they are made of.

    Attributes:
        mixers: how many layers have each kind of mixer: `full`, `window N`, `latent`, `state`.
        dense: how many have a dense MLP, and of what width; `sparse`: how many have experts.
    """

    text: Text = field(compare=False)
    layers: int
    mixers: dict[tuple[str, int], int]
    dense: dict[int, int]
    sparse: int

    @classmethod
    def of(cls, config: Any) -> Model:
        """The layers of a `transformers` config, or of a mapping with its names.

        Raises:
            HarnessError: layers that no operator table describes.
        """
        text = Text.of(config)
        kinds = layers_of(text)
        mixers: dict[tuple[str, int], int] = {}
        dense: dict[int, int] = {}
        for number, kind in enumerate(kinds):
            mixer = _mixer(text, kind)
            mixers[mixer] = mixers.get(mixer, 0) + 1
            if not is_sparse(text, number):
                inner = inner_of(text, number)
                dense[inner] = dense.get(inner, 0) + 1
        return cls(text, len(kinds), mixers, dense, len(kinds) - sum(dense.values()))

    @property
    def experts(self) -> int:
        return experts_of(self.text)

    @property
    def expert_inner(self) -> int:
        return int(self.text.get("moe_intermediate_size") or self.text.intermediate_size)

    @property
    def shared_inner(self) -> int:
        return shared_inner_of(self.text, self.expert_inner)

    def kernels(self, precision: Precision, parallel: Parallel) -> int:
        """Kernels that a step with a prompt launches on one device; fusions of engines are not considered."""
        blocked = ("fp8_block", "nvfp4")  # these have a quantiser before each product
        count = 0
        for (kind, _), layers in self.mixers.items():
            products = {"latent": 4, "state": 2}.get(kind, 2)
            count += layers * (MIXERS[kind] + products * (precision.attention in blocked))
        count += sum(self.dense.values()) * (DENSE + 2 * (precision.mlp in blocked))
        count += self.sparse * (SPARSE + 2 * (precision.experts in blocked))
        if self.shared_inner:
            count += self.sparse * (SHARED + 2 * (precision.mlp in blocked))
        return count + 2 * self.layers * (parallel.devices > 1)

    def weight_bytes(self, precision: Precision, parallel: Parallel) -> float:
        """Bytes of weights on one device: attention and MLPs are sharded in its group, experts over all devices."""
        counted = weights_of(self.text)
        one = counted.hidden * counted.vocab * 2.0 * (1 if counted.tied else 2)
        experts = 0.0
        for block in counted.blocks:
            one += block.layers * block.mixer * WEIGHT_BYTES[precision.attention]
            if block.experts > 1:
                one += block.layers * block.shared * WEIGHT_BYTES[precision.mlp]
                experts += block.layers * block.experts * block.mlp * WEIGHT_BYTES[precision.experts]
            else:
                one += block.layers * block.mlp * WEIGHT_BYTES[precision.mlp]
        return one / parallel.tensor + experts / parallel.devices


def _mixer(text: Text, kind: Kinds) -> tuple[str, int]:
    if kind == ("full",):
        return ("latent" if text.latent_width else "full", 0)
    if kind == ("window",):
        return ("window", text.reach("window"))
    if kind == ("state",):
        return ("state", 0)
    raise HarnessError(f"model_type={text.model_type}: no operator table describes a layer of {' and '.join(kind)}")
