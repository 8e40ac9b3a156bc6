"""Step times from measured kernels: one table per kind of kernel, put together as an engine runs them.

The format is that of LLMServingSim 2 (MIT): times in microseconds, for one layer, a folder per GPU and model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from harness.errors import HarnessError
from harness.runner.latency.grid import Node, grid, interpolate
from schedulers.request import Batch, Work

ONCE = ("embedding", "final_layernorm")  # by tokens, once a step
PER_LAYER = {  # by tokens, so many times a layer
    "layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1,
    "down_proj": 1, "all_reduce": 2,
}  # fmt: skip
OPTIONAL = {"qk_norm", "all_reduce"}  # models without the first, one device for the second
KINDS = {(True, False): "prompts alone", (False, True): "decodes alone", (True, True): "prompts with decodes"}
PER_SEQUENCE = ("lm_head", "sampler")  # by scheduled sequences, once a step


class Spread(NamedTuple):
    """How unequal the contexts of a step's decodes are: history of the longest and the shortest, their sum and number."""

    longest: int
    shortest: int
    total: int
    lanes: int

    @property
    def rate(self) -> float:
        """Where the mean lies between shortest and longest: with two lengths only, the share of the long ones."""
        return (self.total / self.lanes - self.shortest) / (self.longest - self.shortest)


class Skew(NamedTuple):
    """What unequal contexts cost: `alpha` of the way from the time at their mean to the time at their maximum.

    Attributes:
        bins, labels: by axis (n, skew_rate, kv_big, kp): upper bounds and what the buckets are called.
        alphas: by (prefill chunk, labels of the four axes).
        default: alpha where no bucket was measured.
    """

    bins: Mapping[str, Sequence[float]]
    labels: Mapping[str, Sequence[str]]
    alphas: Mapping[tuple[Any, ...], float]
    default: float

    def alpha(self, chunk: float, history: float, spread: Spread) -> float:
        values = {"n": spread.lanes, "skew_rate": spread.rate, "kv_big": spread.longest, "kp": history}
        return self.alphas.get((chunk, *(self._label(axis, value) for axis, value in values.items())), self.default)

    def _label(self, axis: str, value: float) -> str:
        labels = self.labels[axis]
        return labels[min(max(bisect_left(self.bins[axis], value) - 1, 0), len(labels) - 1)]


class TableLatency:
    """Step times by looking up and adding measured kernels.

    A step is, once: embedding and final norm (by its tokens), output matrix and sampler (by its sequences, those with
    part of a prompt too); a layer: two norms, the projections, the activation (by tokens) and one attention. That is a
    single lookup of all that shares the step: one prefill chunk (several are merged into one that does the same work),
    its history, the number of decodes, their mean context. Between measured points all is linear.

    Args:
        dense: rows (layer, tokens, µs); per_sequence: rows (layer, sequences, µs).
        attention: rows (prefill_chunk, kv_prefill, n_decode, kv_decode, µs); `kv` is history without the new tokens.
        layers: decoder layers of the model.
        skew: the correction for unequal contexts; None = off.
        overhead_us: host work of a step beside its kernels.

    Raises:
        HarnessError: a kernel that every model has is missing.
    """

    def __init__(self, dense: Iterable[Sequence[Any]], per_sequence: Iterable[Sequence[Any]],
                 attention: Iterable[Sequence[float]], layers: int, skew: Skew | None = None,
                 overhead_us: float = 0.0) -> None:  # fmt: skip
        self.layers, self.skew, self.overhead_us = layers, skew, overhead_us
        self._dense, self._per_sequence = _by_layer(dense), _by_layer(per_sequence)
        needed = {*ONCE, *PER_LAYER} - OPTIONAL
        missing = sorted(needed - self._dense.keys()) + sorted({*PER_SEQUENCE} - self._per_sequence.keys())
        if missing:
            raise HarnessError(f"the kernel tables lack {', '.join(missing)}")
        self._attention = _by_kind(attention)
        self._remembered: dict[tuple[int, int], float] = {}

    @classmethod
    def load(cls, folder: str | Path, layers: int, overhead_us: float = 0.0) -> TableLatency:
        """Read a folder of tables; the skew correction is on if its `meta.yaml` says so.

        Raises:
            HarnessError: a file or a column that is not there.
        """
        folder = Path(folder)
        try:
            meta = yaml.safe_load((folder / "meta.yaml").read_text())
            tables = {name: pd.read_csv(folder / f"{name}.csv.gz") for name in ("dense", "per_sequence", "attention")}
            skew = _skew(folder, meta) if meta.get("skew_fit", {}).get("enabled") else None
            columns = {
                "dense": ["layer", "tokens", "time_us"],
                "per_sequence": ["layer", "sequences", "time_us"],
                "attention": ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"],
            }
            rows = {name: tables[name][names].values.tolist() for name, names in columns.items()}
        except (OSError, KeyError) as error:
            raise HarnessError(f"{folder}: these are no kernel tables: {error}") from error
        return cls(**rows, layers=layers, skew=skew, overhead_us=overhead_us)

    def step_ns(self, batch: Batch) -> int:
        """How long the step takes, in nanoseconds."""
        histories = [seq.stored - 1 for seq, count in zip(batch.seqs, batch.counts, strict=True) if count == 1]
        return self._ns(batch.work, self._spread(histories))

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: how long each further step takes if every sequence of `batch` goes on to decode."""
        spread = self._spread([seq.stored for seq in batch.seqs])
        work, times = batch.work.after(1), []
        for _ in range(steps):
            times.append(self._ns(work, spread))
            work = work.after(1)
            if spread:
                spread = Spread(spread.longest + 1, spread.shortest + 1, spread.total + spread.lanes, spread.lanes)
        return times

    def _ns(self, work: Work, spread: Spread | None) -> int:
        attention = self.layers * self.attention_us(work, spread)
        return round((self.linear_us(work) + attention + self.overhead_us) * 1e3)

    def linear_us(self, work: Work) -> float:
        """All kernels but attention: by tokens and by sequences."""
        key = work.lanes + work.prompt_tokens, work.lanes + work.prompts
        if key not in self._remembered:
            tokens, sequences = key
            once = sum(interpolate(self._dense[name], tokens) for name in ONCE)
            once += sum(interpolate(self._per_sequence[name], sequences) for name in PER_SEQUENCE)
            present = ((name, times) for name, times in PER_LAYER.items() if name in self._dense)
            layer = sum(times * interpolate(self._dense[name], tokens) for name, times in present)
            self._remembered[key] = once + self.layers * layer
        return self._remembered[key]

    def attention_us(self, work: Work, spread: Spread | None = None) -> float:
        """Attention of one layer."""
        chunk, lanes = work.prompt_tokens, work.lanes
        history = max(work.pairs / chunk - chunk / 2, 0.0) if chunk else 0.0
        mean = (work.context - lanes) / lanes if lanes else 0.0
        kind = chunk > 0, lanes > 0
        if kind not in self._attention:
            raise HarnessError(f"the attention table has no step of {KINDS[kind]}")
        table, at = self._attention[kind], (*((chunk, history) if chunk else ()), *((lanes,) if lanes else ()))
        time = interpolate(table, *at, *((mean,) if lanes else ()))
        if self.skew is None or spread is None or spread.longest == spread.shortest:
            return time
        longest = interpolate(table, *at, spread.longest)
        return time + self.skew.alpha(chunk, history, spread) * (longest - time)

    def _spread(self, histories: list[int]) -> Spread | None:
        if self.skew is None or not histories:
            return None
        return Spread(max(histories), min(histories), sum(histories), len(histories))


def _by_layer(rows: Iterable[Sequence[Any]]) -> dict[str, Node]:
    points: dict[str, list[tuple[float, float]]] = {}
    for name, amount, time in rows:
        points.setdefault(str(name), []).append((float(amount), float(time)))
    return {name: grid(values) for name, values in points.items()}


def _by_kind(rows: Iterable[Sequence[float]]) -> dict[tuple[bool, bool], Node]:
    """Attention of prompts alone by (chunk, history), of decodes alone by (n, history), of both by all four.

    Apart, for they are other kernels: what lies between the shortest chunk and none is no mean of the two.
    """
    kinds: dict[tuple[bool, bool], list[Sequence[float]]] = {}
    for chunk, history, lanes, context, time in rows:
        where = (*((chunk, history) if chunk else ()), *((lanes, context) if lanes else ()))
        if where:
            kinds.setdefault((chunk > 0, lanes > 0), []).append((*where, time))
    return {kind: grid(points) for kind, points in kinds.items()}


def _skew(folder: Path, meta: Mapping[str, Any]) -> Skew:
    axes, table = meta["skew_fit"]["bucket_axes"], pd.read_csv(folder / "skew_fit.csv.gz")
    names = ("n", "skew_rate", "kv_big", "kp")
    keys = zip(table["pc"], *(table[f"{name}_label"] for name in names), strict=True)
    return Skew(
        bins={name: axes[f"{name}_bins"] for name in names},
        labels={name: axes[f"{name}_labels"] for name in names},
        alphas=dict(zip(keys, table["alpha"], strict=True)),
        default=meta["skew_fit"]["per_tp"][1]["alpha_default"],
    )
