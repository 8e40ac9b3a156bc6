"""A layer's experts where several devices share them: the block of one device, and what they send each other around it.

Every engine side by side is padded to the longest, so all of them together have `tokens` times their number; each token
goes to `top_k` experts, which any device may hold. With tensor parallelism alone every device has all tokens already,
and their all-reduce stands in the dense kernels.
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

    `OURS`: the devices exchange the tokens of all engines, a device computes its share of them, and it reads as many of
    its experts as are drawn, if all are alike. `THEIRS` anchors all three to one engine's tokens (see the report).
    Experts that are shared by their width, without expert parallelism, are taken to cost the same: the same products
    and the same bytes a device.

    Args:
        hidden: width of the model.
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
