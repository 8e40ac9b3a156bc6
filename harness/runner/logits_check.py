"""Does our runner say what the model says? A few sequences through both, and their logits compared.

Logits and not tokens: with small weights every token may agree while the logits are wrong. The sequences are short, cut
into prompts, pieces and single tokens that share steps, lie strewn over the pool, and one of them loses its memory and
is computed again. Windows and chunks of any size are cut down to a few tokens for it, or a check that sees one would
take thousands: an unpatched model with a smaller window is the model that is built with one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from kvlab_kernels.dispatch import Backend
from transformers import DynamicCache

from harness.errors import HarnessError
from harness.runner.cache import forward_of
from harness.runner.dummy import DummyAllocator
from harness.runner.flat import as_it_is
from harness.runner.kv_pool import KVPool
from harness.runner.packing import Packed, slots_of
from harness.runner.probe import Probed, probe
from harness.runner.refusals import longest_served, refuse_kernels
from harness.runner.torch_runner import TorchModelRunner

LENGTHS = (24, 13, 5)
# Of each step: (row of the table, sequence, from which token, to which); those of one token first, as they are packed.
# Sequence 1 lies in row 1, loses its memory and is computed again in row 3.
STEPS = (
    ((0, 0, 0, 6), (1, 1, 0, 5)),
    ((1, 1, 5, 6), (2, 2, 0, 1), (0, 0, 6, 17)),
    ((0, 0, 17, 18), (1, 1, 6, 9), (2, 2, 1, 5)),
    ((0, 0, 18, 23), (3, 1, 0, 10)),
    ((0, 0, 23, 24), (3, 1, 10, 13)),
)
SHORT = {"sliding_window": 7, "attention_chunk_size": 7, "floor_scale": 4}  # for the time of a check
# What may differ, in standard deviations of the logits: in float32, and in 16 bits, where single logits are noise.
SINGLE, HALF = 1e-5, 5e-2
STATES = 1e-4  # where states are recurrent: scans by chunks and step by step sum in another order
NOISE, MOST_NOISE = 2.0, 1e-3  # more is allowed to a model that differs from itself: so many times, up to so much


@dataclass(frozen=True, slots=True)
class LogitsCheck:
    """What a check found, in units of the standard deviation of the logits.

    Attributes:
        difference: the largest of any logit; in 16 bits the root of the mean square at the middle position.
        tolerance: below which the two are equal.
        noise: by how much the model differs from itself if its own cache is cut at the same places; None = it was not
            asked, since it did not matter.
        seconds: that the check took.
    """

    difference: float
    tolerance: float
    noise: float | None
    seconds: float

    @property
    def equal(self) -> bool:
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        compared = "<=" if self.equal else ">"
        own = "" if self.noise is None else f" (the model differs from itself by {self.noise:.1e})"
        return f"{'equal' if self.equal else 'different'}: {self.difference:.1e} {compared} {self.tolerance:.1e}{own}"


def compare_logits(model: Any, backend: Backend, seed: int = 0) -> LogitsCheck:
    """Compare what our runner says with what `model` says unpatched, weights as they are.

    Sums in float32 depend on their order, and the more of them a model has the more. A model of some size differs from
    itself when its prompts are cut; where ours differs by more than a small model may, it is measured against that.

    Args:
        model: whose attention is ours.
        seed: of the tokens.

    Raises:
        HarnessError: something of the model is not modelled.
    """
    started = time.perf_counter()
    config = model.config.get_text_config()
    longest = longest_served(model) or max(LENGTHS)
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, config.vocab_size, length)[:longest] for length in LENGTHS]
    with torch.inference_mode(), _shortened(model):
        probed = probe(model)
        refuse_kernels(model, probed, backend)
        wanted = [_alone(model, row) for row in rows]
        found = _served(model, probed, backend, rows)
        mixers = probed.calls.mixers
        tolerance, noise = HALF if wanted[0].dtype.itemsize < 4 else STATES if mixers else SINGLE, None
        difference = _apart(found, wanted)
        if mixers or tolerance < difference < MOST_NOISE:
            singly = not all(mixer.carries for mixer in mixers)
            own = [_cut(model, i, row, singly) for i, row in enumerate(rows)]
            if mixers:
                difference = min(difference, _apart(found, own))
            if tolerance < difference < MOST_NOISE:
                noise = _apart(own, wanted)
                tolerance = max(tolerance, min(NOISE * noise, MOST_NOISE))
    if probed.calls.most and difference > tolerance:
        raise HarnessError(
            f"model {model.config.model_type}: computes attention by itself, in a way that a mask between sequences "
            f"does not tell apart (logits differ by {difference:.0e} of their standard deviation)"
        )
    return LogitsCheck(difference, tolerance, noise, time.perf_counter() - started)


def _apart(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """How far logits are apart, see `LogitsCheck.difference`; infinite where one is NaN."""
    spread = float(torch.cat(wanted).float().std())
    apart = torch.cat([said.float() - want.float() for said, want in zip(found, wanted, strict=True)]) / spread
    half = wanted[0].dtype.itemsize < 4
    difference = float(apart.square().mean(-1).sqrt().median() if half else apart.abs().max())
    return difference if np.isfinite(difference) else float("inf")


def _alone(model: Any, row: np.ndarray) -> torch.Tensor:
    """``[n, vocabulary]``: one plain forward pass of the unpatched model."""
    ids = torch.from_numpy(row).to(model.device)
    with _implemented(model, "eager"):
        return model(input_ids=ids[None], use_cache=False).logits[0]


def _cut(model: Any, sequence: int, row: np.ndarray, singly: bool = False) -> torch.Tensor:
    """``[n, vocabulary]``: the unpatched model with its own cache, in the pieces of the steps above.

    Args:
        singly: after the first piece token by token, as where a scan of several would start from nothing.
    """
    forward, cache = forward_of(model), DynamicCache(config=model.config)
    ids, positions = (torch.from_numpy(x).to(model.device) for x in (row, np.arange(len(row))))
    parts = [part for step in STEPS for part in step if part[1] == sequence]
    ends = sorted({last for place, _, _, last in parts if place == parts[-1][0] and last < len(row)} | {len(row)})
    if singly:
        ends = [*range(ends[0], len(row)), len(row)]
    with _implemented(model, "eager"):
        return torch.cat([forward(ids[a:b], positions[a:b], None, cache) for a, b in pairwise([0, *ends])])


def _served(model: Any, probed: Probed, backend: Backend, rows: list[np.ndarray]) -> list[torch.Tensor]:
    """``[n, vocabulary]`` of each sequence: what our runner says, in the steps above."""
    weight = next(model.parameters())
    place = DummyAllocator.scattered(4, max(LENGTHS), block_size=4)
    pool = KVPool(probed, place.capacity + 1, weight.dtype, weight.device)
    for buffer in pool.buffers:
        buffer.fill_(torch.nan)
    runner = TorchModelRunner(model, pool, probed.calls, place, backend, lambda request: np.empty(0), as_it_is(model))
    said: list[dict[int, torch.Tensor]] = [{} for _ in rows]
    for step in STEPS:
        parts = [(row, i, first, min(last, len(rows[i]))) for row, i, first, last in step if first < len(rows[i])]
        parts.sort(key=lambda part: part[3] - part[2] > 1)
        logits = iter(runner.forward(_packed(parts, rows, place)) if parts else ())
        for _, i, first, last in parts:
            said[i] |= {position: next(logits) for position in range(first, last)}
    return [torch.stack([each[position] for position in sorted(each)]) for each in said]


def _packed(parts: list[tuple[int, int, int, int]], rows: list[np.ndarray], place: DummyAllocator) -> Packed:
    """A step as `harness.runner.packing.pack` makes it, with the logits of all tokens due."""
    counts = [last - first for _, _, first, last in parts]
    lanes = counts.count(1)
    positions = np.concatenate([np.arange(first, last) for _, _, first, last in parts])
    ids = np.concatenate([rows[i][first:last] for _, i, first, last in parts])
    where = np.array([row for row, _, _, _ in parts], np.int32)
    slots = slots_of(place.tables, place.block_size, np.repeat(where, counts), positions)
    lengths = np.array([last for _, _, _, last in parts], np.int32)
    starts = np.cumsum([0, *counts[lanes:]]).astype(np.int32)
    return Packed(ids, positions, slots, where, lengths, starts, lanes, np.arange(len(ids)), [])


@contextmanager
def _shortened(model: Any) -> Iterator[None]:
    """Within it windows, chunks and the like are so short that a check leaves them behind."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    before = []
    for holder in (*configs.values(), *model.modules()):
        for name, short in SHORT.items():
            size = getattr(holder, name, None)
            if isinstance(size, int) and size > short:
                before.append((holder, name, size))
                setattr(holder, name, short)
    try:
        yield
    finally:
        for holder, name, size in before:
            setattr(holder, name, size)


@contextmanager
def _implemented(model: Any, name: str) -> Iterator[None]:
    """Within it the attention of `model` is `name`, one of those that `transformers` has."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before
