"""W64: real requests through a 14 M Llama on the CPU, ours beside what people run, one after the other in every round.

Peers run the same weights: `transformers` `generate` over batches of 16 sorted by output length (it knows the lengths),
and its continuous batching (slow). The bound is our own loop with attention removed: same batches, same forward passes,
nothing read from the pool. ``extra_info`` has output tokens per second, and ratios by wall time and by processor time:
the latter hardly notices what else the machine does. Nothing is asserted about time.

A part of the workload by default; KVLAB_W64=64 for all of it, KVLAB_W64_ROUNDS and KVLAB_W64_THREADS as you like.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pytest_benchmark.fixture import BenchmarkFixture

from allocators.paged import Paged
from harness.metrics.recorder import Recorder
from harness.replay.clock import MeasuredClock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.device import Loaded, load
from harness.runner.model import build_model, read_config
from harness.runner.torch_device import warm_up
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import RESERVATIONS

W64 = Path(__file__).parents[3] / "shared" / "bench" / "w64"
LONGEST, TOKENS, LANES = 2048, 2048, 64
THREADS = int(os.environ.get("KVLAB_W64_THREADS", "2"))
VLLM_TO_GENERATE = 804 / 353.5  # as recorded on another, quiet machine; vLLM itself is not run here

pytestmark = pytest.mark.skipif(not W64.exists(), reason=f"the workload is not there: {W64}")


@cache
def rows(count: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (W64 / "workload64.jsonl").read_text().splitlines()[:count]]


def model_group() -> dict[str, Any]:
    config = json.loads((W64 / "llama15m.config.json").read_text()) | {"eos_token_id": None}
    return {"name": "llama15m", "path": None, "config": config, "init_std": 0.1}


@cache
def device(threads: int) -> Loaded:
    settings = {"kind": "cpu", "dtype": "float32", "threads": threads, "kernels": "auto"}
    pool = {"kv_slots": 8192, "kv_bytes": None, "gpu_memory_utilization": None, "max_model_len": LONGEST}
    return load(OmegaConf.create({"model": model_group(), "device": settings, "seed": 0} | pool))


@cache
def peer() -> Any:
    """The same weights in an untouched `transformers` model."""
    group = model_group()
    model = build_model(group, read_config(group), torch.device("cpu"), torch.float32, seed=0)
    model.set_attn_implementation("sdpa")
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def ours(opened: Loaded, count: int) -> dict[int, list[int]]:
    """Serve with the engine's caps: 64 sequences, 2,048 tokens a step, prompts not cut, no prefix cache."""
    requests = [
        Request(row["id"], 0, len(row["prompt_token_ids"]), row["output_tokens"], token_ids=row["prompt_token_ids"])
        for row in rows(count)
    ]
    slots = sum(r.prompt_len + r.output_len + 16 for r in requests)
    scheduler = Continuous(
        Paged(slots // 16 * 16, LONGEST, block_size=16), RESERVATIONS["on_demand"], max_model_len=LONGEST,
        max_num_seqs=LANES, max_num_batched_tokens=TOKENS,
    )  # fmt: skip
    recorder = Recorder()
    workload = SimpleNamespace(requests=requests, concurrency=None)
    engine = Engine(scheduler, opened.runner(scheduler.allocator), recorder)
    replay(Source(workload), [engine], MeasuredClock())
    return {i: seq.outputs for i, seq in recorder.sequences.items()}


def without_attention(opened: Loaded) -> Loaded:
    """The same device, whose attention neither reads nor writes the pool."""
    nothing = {name: lambda *args, **kwargs: None for name in ("write_kv", "decode_attention", "prefill_attention")}
    return dataclasses.replace(opened, backend=dataclasses.replace(opened.backend, **nothing))


def sorted_static(count: int, batch_size: int = 16) -> dict[int, list[int]]:
    """`generate` over batches of requests with like output lengths, prompts padded on the left."""
    outputs = {}
    ordered = sorted(rows(count), key=lambda row: row["output_tokens"])
    for first in range(0, count, batch_size):
        batch = ordered[first : first + batch_size]
        width = max(len(row["prompt_token_ids"]) for row in batch)
        ids, mask = torch.zeros(2, len(batch), width, dtype=torch.int64)
        for i, row in enumerate(batch):
            ids[i, width - len(row["prompt_token_ids"]) :] = torch.tensor(row["prompt_token_ids"])
            mask[i, width - len(row["prompt_token_ids"]) :] = 1
        longest = batch[-1]["output_tokens"]
        answers = peer().generate(ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest,
                                  do_sample=False)  # fmt: skip
        outputs |= {row["id"]: answers[i, width:][: row["output_tokens"]].tolist() for i, row in enumerate(batch)}
    return outputs


def continuous_batching(count: int) -> dict[int, list[int]]:
    """`generate_batch`, to which each request brings its own length."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = peer()
    model.set_attn_implementation("sdpa")
    # one block size and pool for all; no end token, so that only lengths end an answer
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=256)
    batching = ContinuousBatchingConfig(max_batch_tokens=TOKENS)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, block=True
    ) as manager:
        for row in rows(count):
            manager.add_request(row["prompt_token_ids"], str(row["id"]), max_new_tokens=row["output_tokens"])
        outputs: dict[int, list[int]] = {}
        while len(outputs) < count:
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                outputs[int(result.request_id)] = list(result.generated_tokens)
    model.set_attn_implementation("sdpa")
    return outputs


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, processor) seconds of each call, taken in turns."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            wall, processor = time.perf_counter(), time.process_time()
            call()
            spent[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return spent


def compare(benchmark: BenchmarkFixture, names: list[str], count: int, rounds: int) -> None:
    """Measure our loop, its bound and the peers in turns; record rates and ratios."""
    opened = device(THREADS)
    bare = without_attention(opened)
    known: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(opened, count),
        "without_attention": lambda: ours(bare, count),
        "generate": lambda: sorted_static(count),
        "continuous_batching": lambda: continuous_batching(count),
    }
    calls = {name: known[name] for name in names}
    warm = {"scheduler": {"max_num_batched_tokens": TOKENS, "max_num_seqs": LANES}, "max_model_len": LONGEST}
    warm_up(opened.runner(Paged(4096, LONGEST, block_size=16)), OmegaConf.create(warm))
    spent = interleaved(calls, rounds)
    tokens = sum(row["output_tokens"] for row in rows(count))
    wall = {name: median(w for w, _ in times) for name, times in spent.items()}
    processor = {name: median(p for _, p in times) for name, times in spent.items()}
    facts: dict[str, Any] = {"requests": count, "output_tokens": tokens, "rounds": rounds, **opened.facts}
    facts["tokens_per_second"] = {name: tokens / seconds for name, seconds in wall.items()}
    facts["tokens_per_processor_second"] = {name: tokens / seconds for name, seconds in processor.items()}
    for peer_name in set(names) - {"ours"}:
        facts[f"ours_to_{peer_name}"] = wall[peer_name] / wall["ours"]
        facts[f"ours_to_{peer_name}_by_processor"] = processor[peer_name] / processor["ours"]
    facts["recorded_vllm_to_generate"] = VLLM_TO_GENERATE
    benchmark.extra_info.update(facts)
    print(json.dumps(facts, indent=1))
    benchmark.pedantic(known["ours"], rounds=1)


def test_w64(benchmark: BenchmarkFixture) -> None:
    count = int(os.environ.get("KVLAB_W64", "16"))
    rounds = int(os.environ.get("KVLAB_W64_ROUNDS", "1"))
    compare(benchmark, ["ours", "without_attention", "generate"], count, rounds)


@pytest.mark.slow
def test_w64_against_continuous_batching(benchmark: BenchmarkFixture) -> None:
    compare(benchmark, ["ours", "continuous_batching"], int(os.environ.get("KVLAB_W64", "64")), 1)


def test_answers_are_those_of_generate(benchmark: BenchmarkFixture) -> None:
    """Token for token, on the shortest eight; beside the point of speed, but it would be none without it."""
    assert (served := benchmark.pedantic(ours, args=(device(THREADS), 8), rounds=1)) == sorted_static(8), served
