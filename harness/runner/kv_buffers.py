"""The buffers that a KV cache consists of, for allocators that map memory in bytes."""

from __future__ import annotations

from omegaconf import DictConfig

from harness.runner.latency.choose import element_bytes, model_weights


def kv_buffers(cfg: DictConfig) -> dict[str, int]:
    """`token_bytes`: K (or V) of one token in one layer of one device; `buffers`: K and V of every layer."""
    weights, devices = model_weights(cfg), 1
    if cfg.device.kind == "simulated":
        size = element_bytes(cfg)
        devices = cfg.device.tensor_parallel
    else:
        from harness.runner.device import dtype_of

        size = dtype_of(cfg).itemsize
    heads = max(weights.kv_heads // devices, 1)  # with more devices than KV heads, each has a copy of one
    return {"token_bytes": heads * weights.head_dim * size, "buffers": 2 * weights.layers}
