"""A run and kernel tables small enough to reckon with by hand.

Times in µs. Once a step: 20, and 5 + 10 a sequence. Each of 2 layers: 22 + 1 a token, and attention: a prompt's tokens
and history, history of the decodes, 100 for both together.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.tasks.claims import composed

DENSE = {"embedding": 10, "final_layernorm": 10, "layernorm": 1, "qkv_proj": 2, "rotary_emb": 3, "gate_up_proj": 4,
         "act_fn": 5, "down_proj": 6}  # fmt: skip
PROFILE_META = "model: somebody/Tiny-1B\nvllm_version: 0.19.0\n"
META: dict[str, Any] = {
    "model": "somebody/Tiny-1B", "vllm_version": "0.19.0",
    "engine_kwargs": {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256},
    "kv_cache": {"num_gpu_blocks": 33, "block_size": 4, "enable_prefix_caching": True},
    "resolved_config": {"scheduler_config": {"async_scheduling": True},
                        "model_config": {"hf_overrides": {"num_hidden_layers": 2}}},
}  # fmt: skip
# By hand, one step ahead: A's prompt takes 20 + 15 + 2 (22 + 16 + 16) = 143, a decode 20 + 15 + 2 (22 + 1 + 16) = 113.
# B comes at 50, is seen at 143 when A's decode is handed over already, and takes 20 + 15 + 2 (22 + 32 + 32) = 207.
ROWS = [
    {"request_id": "a", "input_toks": 16, "output_toks": 2, "arrival_time": 1e9, "queued_ts": 5.0,
     "first_token_ts": 5.000143, "last_token_ts": 5.000256},
    {"request_id": "b", "input_toks": 32, "output_toks": 1, "arrival_time": 1e9 + 50e-6, "queued_ts": 5.000143,
     "first_token_ts": 5.000463, "last_token_ts": 5.000463},
]  # fmt: skip
# Without: B shares A's decode step: 20 + 25 + 2 (22 + 33 + 32 + 16 + 100) = 451, from 143 on.
SYNCHRONOUS_TTFT_MS = {"a": 0.143, "b": 0.451}


def write_profile(folder: Path, meta: str = PROFILE_META, ending: str = ".csv") -> Path:
    """The tables, in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    dense = [f"{layer},{tokens},{time}" for layer, time in DENSE.items() for tokens in (1, 4096)]
    dense += [f"o_proj,{tokens},{tokens}" for tokens in (1, 4096)]
    sequences = [f"lm_head,{n},{10 * n}" for n in (1, 256)] + [f"sampler,{n},5" for n in (1, 256)]
    prompts = [(pc, kp) for pc in (16, 2048) for kp in (0, 4096)]
    decodes = [(n, kd) for n in (1, 256) for kd in (16, 4096)]
    attention = [f"{pc},{kp},0,0,{pc + kp}" for pc, kp in prompts] + [f"0,0,{n},{kd},{n * kd}" for n, kd in decodes]
    attention += [f"{pc},{kp},{n},{kd},{pc + kp + n * kd + 100}" for pc, kp in prompts for n, kd in decodes]
    tables = {"dense": ("layer,tokens,time_us", dense), "per_sequence": ("layer,sequences,time_us", sequences),
              "attention": ("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", attention)}  # fmt: skip
    for name, (header, rows) in tables.items():
        write(folder / f"{name}{ending}", "\n".join([header, *rows]) + "\n")
    (folder / "meta.yaml").write_text(meta)
    return folder


def write_run(folder: Path, rows: list[dict[str, Any]] | None = None, meta: dict[str, Any] | None = META,
              ending: str = "") -> Path:  # fmt: skip
    """The run, and its meta file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / f"run.jsonl{ending}", ROWS if rows is None else rows)
    if meta is not None:
        write(folder / f"run.meta.json{ending}", json.dumps(meta))
    return folder / f"run.jsonl{ending}"


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    write(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def validate(folder: Path, run: Path | None, profile: Path | None, *overrides: str) -> dict[str, Any]:
    """Run the experiment; its row."""
    named = [f"validate.{key}={value}" for key, value in (("measured", run), ("profile", profile)) if value]
    every = ["experiment=validate", *named, *overrides]
    return run_job(composed(every), folder, every)


def changed(meta: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `meta` with another value at a dotted key; None takes the key out."""
    copy: dict[str, Any] = json.loads(json.dumps(meta))
    *path, last = key.split(".")
    inner = copy
    for part in path:
        inner = inner.setdefault(part, {})
    inner[last] = value
    if value is None:
        del inner[last]
    return copy
