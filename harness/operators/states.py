"""Recurrent layers: gated delta networks, from `gdn_perf`."""

from __future__ import annotations

import numpy as np

from harness.errors import HarnessError
from harness.layout.layers import Text
from harness.operators.collectives import line
from harness.operators.folder import Tables


def state_ns(tables: Tables, text: Text, devices: int, tokens: np.ndarray, phase: str) -> np.ndarray:
    """``[len(tokens)]``: ns of the convolution and the recurrence of one layer.

    Args:
        tokens: of prompts (`phase` context; several count as one) or number of sequences (`generation`).

    Raises:
        HarnessError: the tables lack the shape.
    """
    frame = tables.read("gdn_perf")
    keys, values = text.get("linear_num_key_heads"), text.get("linear_num_value_heads")
    if frame is None or not keys:
        raise HarnessError(f"{tables.engine} {tables.version} on {tables.gpu_name} has no table of the recurrent "
                           f"layers of model_type={text.model_type}")  # fmt: skip
    rows = frame[(frame["phase"] == phase) & (frame["d_model"] == text.hidden_size)]
    share = rows[(rows["num_k_heads"] == max(keys // devices, 1)) & (rows["num_v_heads"] == values // devices)]
    scale = 1.0
    if not len(share):  # only whole layers were measured: time is proportional to the share of heads
        share, scale = rows[(rows["num_k_heads"] == keys) & (rows["num_v_heads"] == values)], 1 / devices
    if not len(share):
        raise HarnessError(f"gdn_perf of {tables.engine} {tables.version} on {tables.gpu_name} has no layer of {keys} "
                           f"and {values} heads")  # fmt: skip
    at = "seq_len" if phase == "context" else "batch_size"
    if phase == "context":
        share = share[share["batch_size"] == 1]
    total = np.zeros(len(tokens))
    for _, kernel in share.groupby("kernel_source"):
        curve = kernel.groupby(at)["latency"].median().sort_index()
        total += line(curve.index.to_numpy(), curve.to_numpy() * 1e6, tokens)
    return total * scale
