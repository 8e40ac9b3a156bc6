"""A layer's experts shared among devices: one device's computation, and the exchange of tokens around it.

Data-parallel engines are padded to the one with the most tokens, so together they have `tokens` times their number;
each token goes to `top_k` experts, on any device. With tensor parallelism alone every device already has all tokens,
and the all-reduce is among the dense kernels.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.runner.latency.experts import Experts
from harness.validate.collectives import Collectives
from harness.validate.engine import Engine

OURS, THEIRS = "all tokens", "LLMServingSim's sizes"
SIZES = (OURS, THEIRS)


def expert_block(experts: Experts, engine: Engine, hidden: int, collectives: Collectives, sizes: str
                 ) -> Callable[[int], float]:  # fmt: skip
    """µs of a layer's experts by the tokens of one engine's step, padding included.

    `OURS`: the devices exchange the tokens of all engines, each computes its share of them, and reads as many of its
    experts as are hit if tokens choose evenly. `THEIRS` takes all three for one engine's tokens (see the report).
    Experts that are sharded by their width (no expert parallelism) are taken to cost the same, since each device has as
    many operations and bytes.

    Args:
        hidden: hidden size of the model.
    """
    data = engine["data_parallel"]
    devices = engine["tensor_parallel"] * data

    def us(tokens: int) -> float:
        if sizes == THEIRS:
            everybody = tokens
            own = round(tokens * (1 - ((devices - 1) / devices) ** experts.top_k))
            active = min(round(tokens * experts.top_k / devices), experts.number / devices)
        else:
            everybody = tokens * data
            own, active = everybody / devices, experts.drawn(everybody) / devices
        time = experts.us(own, active)
        if data > 1:  # hidden states and router's logits
            time += collectives.gather(everybody * (hidden + experts.number)) + collectives.scatter(everybody * hidden)
        return time

    return us
