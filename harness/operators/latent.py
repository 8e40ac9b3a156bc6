"""Latent attention (MLA): as one measured module with its projections, or composed from its kernels."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.layout.layers import Text
from harness.operators.attention import Surface, surface
from harness.operators.folder import Tables
from harness.operators.gemm import Gemms


class Latent:
    """MLA of one layer: `prompts` and `decodes` by batch and length, `by_token` by the step's tokens.

    The module tables include the projections, so `by_token` is zero with them. They were measured for DeepSeek-V3,
    whose hidden size and ranks Kimi-K2 shares; only heads differ.

    Args:
        heads: on one device.
        dtype: of the projections.
        kv: of the cache.
    """

    def __init__(self, tables: Tables, gemms: Gemms, text: Text, heads: int, dtype: str, kv: str,
                 tokens: np.ndarray) -> None:  # fmt: skip
        context, generation = tables.read("mla_context_module_perf"), tables.read("mla_generation_module_perf")
        self.by_prompt_token = self.by_decode_token = np.zeros(len(tokens))
        if context is not None and generation is not None and text.hidden_size == 7168:
            self.prompts = _of(context, heads, kv, dtype, "isl", tables)
            self.decodes = _of(generation.assign(isl=generation["step"]), heads, kv, dtype, "isl", tables)
            return
        context, generation = tables.read("context_mla_perf"), tables.read("generation_mla_perf")
        if context is None or generation is None:
            raise HarnessError(
                f"{tables.engine} {tables.version} on {tables.gpu_name} has no table of latent attention"
            )
        self.prompts = _of(context, heads, kv, None, "isl", tables)
        self.decodes = _of(generation.assign(isl=generation["step"] + 1), heads, kv, None, "isl", tables)
        rank, query = text.kv_lora_rank, text.get("q_lora_rank") or text.hidden_size
        nope, rope, value = text.qk_nope_head_dim, text.qk_rope_head_dim, text.v_head_dim
        both = gemms.ns(dtype, tokens, query + rank + rope, text.hidden_size, normed=True)
        both = both + gemms.ns(dtype, tokens, heads * (nope + rope), query)
        both = both + gemms.ns(dtype, tokens, text.hidden_size, heads * value)
        self.by_prompt_token = both + gemms.ns(dtype, tokens, heads * (nope + value), rank)
        self.by_decode_token = both + _products(tables, heads, tokens)


def _of(frame: pd.DataFrame, heads: int, kv: str, dtype: str | None, length: str, tables: Tables) -> Surface:
    rows = frame[frame["num_heads"] == heads]
    if not len(rows):
        raise HarnessError(f"the tables of latent attention of {tables.engine} {tables.version} on {tables.gpu_name} "
                           f"have none of {heads} heads")  # fmt: skip
    for column, wanted in (("kv_cache_dtype", kv), ("gemm_type", dtype), ("mla_dtype", "bfloat16")):
        if column in rows and wanted is not None and wanted in set(rows[column]):
            rows = rows[rows[column] == wanted]
    power = 2.0 if rows["op_name"].iloc[0].find("context") >= 0 else 1.0
    return surface(rows, "batch_size", length, power)


def _products(tables: Tables, heads: int, tokens: np.ndarray) -> np.ndarray:
    """The products of a decode that map queries into the latent space and outputs out of it."""
    frame = tables.read("mla_bmm_perf")
    if frame is None:
        return np.zeros(len(tokens))
    rows = frame[(frame["num_heads"] == heads) & (frame["bmm_dtype"] == "bfloat16")]
    total = np.zeros(len(tokens))
    for _, one in rows.groupby("op_name"):
        curve = one.groupby("num_tokens")["latency"].median().sort_index()
        total += np.interp(tokens, curve.index, curve * 1e6)
    return total
