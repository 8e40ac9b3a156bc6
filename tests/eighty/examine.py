"""Judges one drawn configuration: the steps of `check`, then requests served from pools that are too small for them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import torch
from kvlab_kernels.dispatch import Backend, backend_for
from transformers import DynamicCache

from allocators.base import Allocator
from allocators.checker import Checked
from allocators.paged import Paged
from allocators.vllm_hybrid import VllmHybrid
from harness.errors import HarnessError
from harness.metrics.recorder import Recorder
from harness.replay.clock import MeasuredClock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.base import StepResult
from harness.runner.cache import forward_of
from harness.runner.logits_check import MOST_NOISE, NOISE, SINGLE, STATES, _alone, _apart, _implemented, compare_logits
from harness.runner.probe import Probed, probe
from harness.runner.torch_runner import TorchModelRunner
from schedulers.continuous import Continuous
from schedulers.request import Batch, Request
from schedulers.reservation import RESERVATIONS
from tests.eighty.draw import Config, draw
from tests.runner.serving import poisoned_pool
from tests.runner.test_logits_check import built

LONGEST, SLOTS, BUDGET = 64, 88, 19  # of a sequence, of the pool, tokens of a step
KERNELS = ("torch", "numba")


@dataclass(frozen=True)
class Found:
    """What came of one configuration. Differences are in standard deviations of the logits."""

    number: int
    family: str
    verdict: str
    checked: float | None = None
    served: float | None = None
    tolerance: float | None = None
    preemptions: int | None = None
    seconds: float = 0.0
    reason: str = ""
    config: str = ""


def examine(seed: int, number: int, every: tuple[str, ...] = KERNELS) -> Found:
    """The first draw that `transformers` itself can run, judged with every kind of kernels, worst of all."""
    begun = time.perf_counter()
    family, config, model = _first_that_runs(seed, number)
    said = {"number": number, "family": family, "config": repr(config)}
    try:
        worst = _examine(model, number, every)
        return Found(**said, **worst, seconds=time.perf_counter() - begun)
    except HarnessError as error:
        return Found(**said, verdict="refused", reason=str(error), seconds=time.perf_counter() - begun)


def _first_that_runs(seed: int, number: int) -> tuple[str, Config, Any]:
    for attempt in range(20):
        family, config = draw(seed, number, attempt)
        try:
            model = built(config)
            with torch.inference_mode():
                _alone(model, np.arange(24))
            return family, config, model
        except Exception:  # whatever a config that nobody made does to a model
            continue
    raise RuntimeError(f"case {number} of seed {seed}: no draw of {family} runs in transformers")


def _examine(model: Any, number: int, every: tuple[str, ...]) -> dict[str, Any]:
    numba.set_num_threads(1)
    checked, seen, tolerance, preemptions, equal = 0.0, 0.0, 0.0, 0, True
    for kernels in every:
        backend = backend_for("cpu", torch.float32, kernels)
        verdict = compare_logits(model, backend, number)
        with torch.inference_mode():
            probed = probe(model)
            apart, allowed, times = _served(model, probed, backend, number, by_layers=kernels == "numba")
        checked, seen, preemptions = max(checked, verdict.difference), max(seen, apart), preemptions + times
        tolerance, equal = max(tolerance, allowed, verdict.tolerance), equal and verdict.equal and apart <= allowed
    return {"verdict": "equal" if equal else "different", "checked": checked, "served": seen, "tolerance": tolerance,
            "preemptions": preemptions}  # fmt: skip


class _Watched:
    """A runner that notes the logits of every token, and in which pieces each sequence was computed."""

    def __init__(self, runner: TorchModelRunner) -> None:
        self.runner = runner
        runner.keep_logits = True
        self.logits: dict[int, dict[int, torch.Tensor]] = {}
        self.lives: dict[int, list[list[int]]] = {}

    def execute(self, batch: Batch) -> StepResult:
        result = self.runner.execute(batch)
        for seq, count in zip(batch.seqs, batch.counts, strict=True):
            lives = self.lives.setdefault(seq.request.id, [])
            if seq.stored == count:
                lives.append([0])
            lives[-1].append(seq.stored)
        due = [seq for seq in batch.seqs if seq.stored == seq.num_tokens]
        for seq, row in zip(due, self.runner.logits if due else [], strict=True):
            self.logits.setdefault(seq.request.id, {})[seq.stored - 1] = row.clone()
        return result


def _served(model: Any, probed: Probed, backend: Backend, seed: int, by_layers: bool) -> tuple[float, float, int]:
    """The largest difference, what is allowed, and preemptions, of requests that do not all fit into the pool.

    Args:
        by_layers: groups of layers lie apart, and what lies behind every window is given back.
    """
    allocator = Checked(_allocator(probed, by_layers))
    pool = poisoned_pool(probed, allocator)
    rng, size = np.random.default_rng(seed), model.config.get_text_config().vocab_size
    prompts = [rng.integers(0, size, rng.integers(1, 25)) for _ in range(6)]
    asked = [Request(i, 0, len(ids), int(rng.integers(8, 20)), token_ids=ids) for i, ids in enumerate(prompts)]
    runner = _Watched(TorchModelRunner(model, pool, probed.calls, allocator, backend, lambda r: np.array(r.token_ids)))
    scheduler = Continuous(allocator, RESERVATIONS["on_demand"], max_model_len=LONGEST, watermark=0.0,
                           chunked_prefill=True, max_num_batched_tokens=BUDGET)  # fmt: skip
    recorder = Recorder()
    replay(Source(SimpleNamespace(requests=asked, concurrency=None)), [Engine(scheduler, runner, recorder)],  # type: ignore[arg-type,list-item]
           MeasuredClock())  # fmt: skip
    assert len(recorder.sequences) == len(asked), "not all were served"
    found, plain, singly = [], [], not all(mixer.carries for mixer in probed.calls.mixers)
    rows = {i: np.concatenate([prompts[i], seq.outputs[:-1]]).astype(np.int64) for i, seq in recorder.sequences.items()}
    where = {i: sorted(runner.logits[i]) for i in rows}
    for i, row in rows.items():
        found.append(torch.stack([runner.logits[i][at] for at in where[i]]))
        plain.append(_alone(model, row)[where[i]])
    difference, tolerance = _apart(found, plain), STATES if probed.calls.mixers else SINGLE
    if tolerance < difference < MOST_NOISE or probed.calls.mixers:
        same = [_as_it_was_cut(model, row, runner.lives[i], singly)[where[i]] for i, row in rows.items()]
        if probed.calls.mixers:
            difference = min(difference, _apart(found, same))
        if difference > tolerance:  # the model differs from itself, too
            tolerance = max(tolerance, min(NOISE * _apart(same, plain), MOST_NOISE))
    return difference, tolerance, sum(sequence.preemptions for sequence in recorder.sequences.values())


def _allocator(probed: Probed, by_layers: bool) -> Allocator:
    layout = probed.layout(4).within(LONGEST)
    if not by_layers or not layout.token_bytes or probed.calls.most:
        return Paged(SLOTS, LONGEST, 4)
    longest, capacity = None, LONGEST
    while not longest:
        capacity *= 2
        with suppress(ValueError):  # not even a block
            longest = VllmHybrid(capacity, LONGEST, layout, 4).footprint(LONGEST)
    return VllmHybrid(2 * longest, LONGEST, layout, 4)


def _as_it_was_cut(model: Any, row: np.ndarray, lives: list[list[int]], singly: bool) -> torch.Tensor:
    """``[n, vocabulary]``: the unpatched model with its own cache, in the pieces of every life of a sequence."""
    forward, said = forward_of(model), torch.empty(0)
    ids, positions = (torch.from_numpy(x) for x in (row, np.arange(len(row))))
    with _implemented(model, "eager"):
        for ends in lives:
            cache = DynamicCache(config=model.config)
            ends = [*ends[:2], *range(ends[1] + 1, ends[-1] + 1)] if singly else ends
            pieces = [forward(ids[a:b], positions[a:b], None, cache) for a, b in pairwise(ends)]
            said = torch.cat([said, torch.cat(pieces)[len(said) :]])
    return said
