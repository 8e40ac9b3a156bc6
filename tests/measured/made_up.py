"""Operator tables of a GPU that never was, and twenty runs on it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

PEAK, BANDWIDTH = 1e15, 4e12  # FLOP/s and B/s
CONFIG = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
          "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 32000,
          "tie_word_embeddings": False}  # fmt: skip
M, WIDTHS = (1, 16, 64, 256, 1024, 4096, 16384), (512, 1024, 2048, 4096, 8192, 32768)


def gemm_ms(m: int, n: int, k: int) -> float:
    """Seven tenths of the roofline, and 2 µs."""
    return 1e3 * max(2 * m * n * k / PEAK, 2 * n * k / BANDWIDTH) / 0.7 + 0.002


def prompt_ms(batch: int, length: int, heads: int) -> float:
    return 1e3 * 4 * batch * length**2 / 2 * heads * 128 / PEAK / 0.5 + 0.004


def decode_ms(batch: int, context: int, kv_heads: int) -> float:
    return 1e3 * batch * context * kv_heads * 128 * 4 / BANDWIDTH / 0.8 + 0.004


def write_tables(
    folder: Path, engines: tuple[str, ...] = ("vllm", "trtllm", "sglang"), version: str = "0.24.0"
) -> Path:
    """A whole folder; `folder` itself."""
    (folder / "gpus").mkdir(parents=True, exist_ok=True)
    gpu = {"mem_bw": BANDWIDTH, "mem_capacity": 2**33, "bfloat16_tc_flops": PEAK, "fp8_tc_flops": 2 * PEAK,
           "mem_bw_empirical_scaling_factor": 0.8, "mem_empirical_constant_latency": 1e-6}  # fmt: skip
    values = {"gpu": gpu, "node": {"intra_node_bw": 4e11}, "misc": {"other_mem": 2**28}}
    (folder / "gpus/made_up.yaml").write_text(yaml.safe_dump(values))
    for engine in engines:
        place = folder / "made_up" / engine / version
        place.mkdir(parents=True, exist_ok=True)
        for name, table in tables().items():
            table.to_parquet(place / f"{name}.parquet")
    return folder


def tables() -> dict[str, pd.DataFrame]:
    """By name."""
    gemm = [{"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": gemm_ms(m, n, k), "kernel_source": "one"}
            for m, n, k in product(M, WIDTHS, WIDTHS)]  # fmt: skip
    attention = {"head_dim": 128, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0,
                 "kernel_source": "one"}  # fmt: skip
    shapes = ((8, 2), (4, 1))
    context = [{"batch_size": b, "isl": n, "num_heads": h, "num_key_value_heads": kv, "step": 0,
                "latency": prompt_ms(b, n, h), **attention}
               for b, n, (h, kv) in product((1, 2, 4, 8), (16, 128, 1024, 4096), shapes) if b * n <= 8192]  # fmt: skip
    generation = [{"batch_size": b, "isl": 1, "step": n - 1, "num_heads": h, "num_key_value_heads": kv,
                   "latency": decode_ms(b, n, kv), **attention}
                  for b, n, (h, kv) in product((1, 8, 64, 256), (2, 64, 1024, 8192), shapes)]  # fmt: skip
    reduce = [{"num_gpus": 2, "message_size": size, "backend": f"vllm_{how}", "kernel_source": how,
               "latency": 0.004 + size * 1e-8 * (1 + late)}
              for size in (1024, 65536, 2**22, 2**24) for late, how in enumerate(("graph", "eager"))]  # fmt: skip
    named = {"gemm_perf": gemm, "context_attention_perf": context, "generation_attention_perf": generation,
             "custom_allreduce_perf": reduce}  # fmt: skip
    return {name: pd.DataFrame(rows) for name, rows in named.items()}


def rows(count: int = 20) -> pd.DataFrame:
    """Runs: three engines, one and two devices, three pairs of lengths, two concurrencies; times of no machine."""
    kinds = product(("vllm", "trtllm", "sglang"), (1, 2), ((256, 64), (1024, 32), (512, 128)), (4, 8))
    found: list[dict[str, Any]] = []
    for number, (engine, devices, (isl, osl), clients) in enumerate(kinds):
        found.append({
            "id": f"run {number}", "origin": "inferencex", "measured": "2026-01-02", "image": "", "backend": engine,
            "concurrency": clients, "backend_version": "0.19.0", "model_path": "made/Up", "system": "made_up",
            "precision": "", "isl": isl, "osl": osl, "gemm_quant_mode": "", "moe_quant_mode": "",
            "batch_size": clients, "tp_size": devices, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": devices,
            "moe_ep_size": 1, "silicon_ttft_ms": 5.0 + number, "silicon_tpot_ms": 1.0,
        })  # fmt: skip
    return pd.DataFrame(found[:count])
