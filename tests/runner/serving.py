"""Serve a handful of requests and keep every logit; and what `transformers` itself says of the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from kvlab_kernels.dispatch import backend_for

from allocators.base import Allocator
from allocators.checker import Checked
from harness.metrics.recorder import Recorder
from harness.replay.clock import MeasuredClock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.base import StepResult
from harness.runner.families import families
from harness.runner.group_pool import GroupPool
from harness.runner.kv_pool import KVPool
from harness.runner.model import build_model, read_config
from harness.runner.probe import Probed, probe
from harness.runner.torch_runner import TorchModelRunner
from schedulers.base import Scheduler
from schedulers.request import Batch, Request, Sequence

VOCABULARY = 512
CONFIGS: dict[str, dict[str, Any]] = {
    "opt": {"model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "ffn_dim": 128, "dropout": 0.0},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
             "attn_pdrop": 0.0, "n_positions": 256},
    "llama": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip


def requests(count: int = 10, longest_prompt: int = 24, output: tuple[int, int] = (16, 32)) -> list[Request]:
    """Random requests whose prompts are token ids below `VOCABULARY`."""
    rng = np.random.default_rng(5)
    drawn = []
    for i in range(count):
        prompt = rng.integers(3, VOCABULARY, rng.integers(1, longest_prompt + 1))
        drawn.append(Request(i, 0, len(prompt), int(rng.integers(*output)), token_ids=prompt))
    return drawn


@lru_cache
def model_of(name: str, ours: bool = True) -> Any:
    """A tiny model with wide random weights (std 0.25), with our attention or with `transformers`' own.

    Args:
        name: of `CONFIGS`, or of a tested family.
    """
    torch.set_num_threads(1)
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 256, "tie_word_embeddings": False}
    mapping = {"config": (CONFIGS.get(name) or families()[name]) | sizes, "init_std": 0.25}
    config = read_config(mapping)
    config.eos_token_id = config.pad_token_id = None
    model = build_model(mapping, config, torch.device("cpu"), torch.float32, seed=1)
    if not ours:
        model.set_attn_implementation("eager")
    return model


@lru_cache
def probed_of(name: str) -> Probed:
    return probe(model_of(name))


def poisoned_pool(probed: Probed, allocator: Allocator) -> KVPool | GroupPool:
    """A pool full of NaN, a scratch slot behind it."""
    pool: KVPool | GroupPool
    if allocator.by_slot:
        pool = KVPool(probed, allocator.capacity + 1, torch.float32, torch.device("cpu"))
    else:
        unit = probed.layout(4).within(allocator.max_model_len).unit_bytes
        pool = GroupPool(probed, allocator, unit, torch.float32, torch.device("cpu"))
    for buffer in pool.buffers:
        buffer.fill_(float("nan"))
    pool.states.fill = float("nan")
    return pool


class KeepingRunner:
    """A runner that keeps the logits of every sampled token, by request."""

    def __init__(self, runner: TorchModelRunner, tamper: Callable[[TorchModelRunner, Batch], None] | None) -> None:
        self.runner, self.tamper = runner, tamper
        runner.keep_logits = True
        self.logits: dict[int, list[torch.Tensor]] = {}

    def execute(self, batch: Batch) -> StepResult:
        if self.tamper:
            self.tamper(self.runner, batch)
        result = self.runner.execute(batch)
        due = [seq for seq in batch.seqs if seq.stored == seq.num_tokens]
        for seq, row in zip(due, self.runner.logits if due else [], strict=True):
            self.logits.setdefault(seq.request.id, []).append(row.clone())
        return result


def serve(name: str, allocator: Allocator, make_scheduler: Callable[[Allocator], Scheduler],
          served: list[Request] | None = None, kernels: str = "auto",
          tamper: Callable[[TorchModelRunner, Batch], None] | None = None) -> dict[int, Any]:  # fmt: skip
    """Serve `served` and give {id: namespace(tokens, answers, logits, preemptions)}; the pool starts full of NaN.

    `tokens` and `logits` are of the first answer, or of all in turn where a request wants several.
    """
    model, probed, checked = model_of(name), probed_of(name), Checked(allocator)
    pool = poisoned_pool(probed, checked)
    backend = backend_for("cpu", torch.float32, kernels)
    plain = TorchModelRunner(model, pool, probed.calls, checked, backend, lambda r: np.array(r.token_ids))
    runner = KeepingRunner(plain, tamper)
    recorder = Recorder()
    workload = SimpleNamespace(requests=served or requests(), concurrency=None)
    replay(Source(workload), [Engine(make_scheduler(checked), runner, recorder)], MeasuredClock())
    finished: dict[int, Sequence] = recorder.sequences
    return {
        i: SimpleNamespace(tokens=seq.outputs, answers=[(each.outputs, each.score) for each in seq.members],
                           logits=torch.stack(runner.logits[i]), preemptions=seq.preemptions)
        for i, seq in sorted(finished.items())
    }  # fmt: skip


def answers(name: str, asked: list[Request]) -> dict[int, Any]:
    """What `generate` says of each prompt, and the logits of one plain forward pass over prompt and answer."""
    model, said = model_of(name, ours=False), {}
    for request in asked:
        prompt = torch.tensor(request.token_ids).unsqueeze(0)
        with torch.inference_mode():
            whole = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=request.output_len,
                min_new_tokens=request.output_len, do_sample=False, pad_token_id=0,
            )  # fmt: skip
            logits = model(whole).logits[0, request.prompt_len - 1 : -1]
        said[request.id] = SimpleNamespace(tokens=whole[0, request.prompt_len :].tolist(), logits=logits)
    return said


@lru_cache
def expected(name: str) -> dict[int, Any]:
    """`answers` to the usual `requests`."""
    return answers(name, requests())


def difference(served: dict[int, Any], wanted: dict[int, Any]) -> float:
    """The largest difference of any logit; infinite where a token differs."""
    worst = 0.0
    for i, answer in wanted.items():
        if served[i].tokens != answer.tokens:
            return float("inf")
        worst = max(worst, float((served[i].logits - answer.logits).abs().max()))
    return worst


def relative(name: str, served: dict[int, Any]) -> float:
    """`difference` to the usual requests in standard deviations of the logits."""
    wanted = expected(name)
    return difference(served, wanted) / float(torch.cat([answer.logits for answer in wanted.values()]).std())
