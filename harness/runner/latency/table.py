"""Step times from measured kernels: one table per kind of kernel, put together as an engine runs them.

The format is that of LLMServingSim 2 (MIT): times in microseconds, for one layer, a folder per GPU and model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.runner.latency.experts import Experts
from harness.runner.latency.grid import Node, grid, interpolate
from harness.runner.latency.skew import Skew, Spread, load_skew, skew_enabled
from harness.runner.latency.table_files import read_meta, read_table
from schedulers.request import Batch, BatchStats

ONCE = ("embedding", "final_layernorm")  # by tokens, once a step
PER_LAYER = {  # by tokens, so many times a layer
    "layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1,
    "down_proj": 1, "all_reduce": 2,
}  # fmt: skip
OPTIONAL = {"qk_norm", "all_reduce"}  # models without the first, one device for the second
MLP = {"gate_up_proj", "act_fn", "down_proj"}  # of models without experts
COLUMNS = {
    "dense": ["layer", "tokens", "time_us"],
    "per_sequence": ["layer", "sequences", "time_us"],
    "attention": ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"],
}
KINDS = {(True, False): "prompts alone", (False, True): "decodes alone", (True, True): "prompts with decodes"}
PER_SEQUENCE = ("lm_head", "sampler")  # by scheduled sequences, once a step


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
        experts: µs of a layer's experts, by the tokens of the step; None = it has a dense MLP instead.

    Raises:
        HarnessError: a kernel that every model has is missing.
    """

    def __init__(self, dense: Iterable[Sequence[Any]], per_sequence: Iterable[Sequence[Any]],
                 attention: Iterable[Sequence[float]], layers: int, skew: Skew | None = None,
                 overhead_us: float = 0.0, experts: Callable[[int], float] | None = None) -> None:  # fmt: skip
        self.layers, self.skew, self.overhead_us, self.experts = layers, skew, overhead_us, experts
        self._dense, self._per_sequence = _by_layer(dense), _by_layer(per_sequence)
        needed = {*ONCE, *PER_LAYER} - OPTIONAL - (MLP if experts else set())
        missing = sorted(needed - self._dense.keys()) + sorted({*PER_SEQUENCE} - self._per_sequence.keys())
        if missing:
            raise HarnessError(f"the kernel tables lack {', '.join(missing)}")
        self._attention = _by_kind(attention)
        self._remembered: dict[tuple[int, int], float] = {}
        self._layer: dict[int, float] = {}

    @classmethod
    def load(cls, folder: str | Path, layers: int, overhead_us: float = 0.0, skew: bool | None = None,
             tensor_parallel: int = 1, more: Iterable[Sequence[Any]] = (),
             experts: Callable[[int], float] | None = None) -> TableLatency:  # fmt: skip
        """Read a folder of tables: `dense`, `per_sequence`, `attention` and maybe `skew_fit` and `moe`, each `.csv` or
        `.csv.gz`, and `meta.yaml`, there or in the folder above.

        Args:
            skew: whether unequal contexts are corrected for; None = as `meta.yaml` says.
            tensor_parallel: degree of which the tables are.
            more: rows of `dense` that the folder lacks.
            experts: see the class; None = those of `moe`, on a single device, if it is there.

        Raises:
            HarnessError: a file or a column that is not there, or a row that is no number.
        """
        folder = Path(folder)
        rows: dict[str, Any] = {
            name: read_table(folder, name, columns).values.tolist() for name, columns in COLUMNS.items()
        }
        rows["dense"] += more
        meta = read_meta(folder)
        if skew is None:
            skew = skew_enabled(meta)
        if experts is None and (found := Experts.load(folder)):
            experts = found.alone
        return cls(**rows, layers=layers, skew=load_skew(folder, meta, tensor_parallel) if skew else None,
                   overhead_us=overhead_us, experts=experts)  # fmt: skip

    def step_ns(self, batch: Batch) -> int:
        """How long the step takes, in nanoseconds."""
        return self._ns(batch.stats, self.spread(batch))

    def estimate(self, batch: Batch) -> int:
        """The same: it is known before."""
        return self.step_ns(batch)

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        """``[steps]``: how long each further step takes if every sequence of `batch` goes on to decode."""
        spread = self._spread([seq.stored for seq in batch.seqs])
        stats, times = batch.stats.after(1), []
        for _ in range(steps):
            times.append(self._ns(stats, spread))
            stats = stats.after(1)
            if spread:
                spread = Spread(spread.longest + 1, spread.shortest + 1, spread.total + spread.lanes, spread.lanes)
        return times

    def _ns(self, stats: BatchStats, spread: Spread | None) -> int:
        attention = self.layers * self.attention_us(stats, spread)
        return round((self.linear_us(stats) + attention + self.overhead_us) * 1e3)

    @property
    def kernels(self) -> set[str]:
        """The kernels that are in the tables, attention apart."""
        return {*self._dense, *self._per_sequence}

    def linear_us(self, stats: BatchStats) -> float:
        """All kernels but attention: by tokens and by sequences."""
        key = stats.lanes + stats.prompt_tokens, stats.lanes + stats.prompts
        if key not in self._remembered:
            tokens, sequences = key
            once = sum(interpolate(self._dense[name], tokens) for name in ONCE) + self.sequences_us(sequences)
            self._remembered[key] = once + self.layers * self.layer_us(tokens)
        return self._remembered[key]

    def tokens_us(self, tokens: int) -> float:
        """All kernels that go by tokens."""
        return sum(interpolate(self._dense[name], tokens) for name in ONCE) + self.layers * self.layer_us(tokens)

    def sequences_us(self, sequences: int) -> float:
        """All kernels that go by sequences."""
        return sum(interpolate(self._per_sequence[name], sequences) for name in PER_SEQUENCE)

    def layer_us(self, tokens: int) -> float:
        """One layer without its attention."""
        if tokens not in self._layer:
            present = ((name, times) for name, times in PER_LAYER.items() if name in self._dense)
            layer = sum(times * interpolate(self._dense[name], tokens) for name, times in present)
            self._layer[tokens] = layer + (self.experts(tokens) if self.experts else 0.0)
        return self._layer[tokens]

    def attention_us(self, stats: BatchStats, spread: Spread | None = None) -> float:
        """Attention of one layer."""
        chunk, lanes = stats.prompt_tokens, stats.lanes
        history = max(stats.pairs / chunk - chunk / 2, 0.0) if chunk else 0.0
        mean = (stats.context - lanes) / lanes if lanes else 0.0
        kind = chunk > 0, lanes > 0
        if kind not in self._attention:
            raise HarnessError(f"the attention table has no step of {KINDS[kind]}")
        table, at = self._attention[kind], (*((chunk, history) if chunk else ()), *((lanes,) if lanes else ()))
        time = interpolate(table, *at, *((mean,) if lanes else ()))
        if self.skew is None or spread is None or spread.longest == spread.shortest:
            return time
        longest = interpolate(table, *at, spread.longest)
        return time + self.skew.alpha(chunk, history, spread) * max(longest - time, 0.0)

    def spread(self, batch: Batch) -> Spread | None:
        """How unequal the contexts of a step's decodes are; None where nobody asks."""
        if self.skew is None:
            return None
        return self._spread([seq.stored - 1 for seq, count in zip(batch.seqs, batch.counts, strict=True) if count == 1])

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
