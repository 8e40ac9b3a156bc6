"""Step times from first principles: each part takes the longer of its bytes over bandwidth and its FLOPs over peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from allocators.layout import KVLayout
from harness.errors import HarnessError
from harness.layout import layout_of
from harness.layout.weights import Weights, weights_of
from harness.runner.latency.base import LatencyModel
from harness.runner.latency.hardware import Hardware, load_hardware
from harness.runner.latency.reads import reads_of, seen_of
from schedulers.request import Batch, BatchStats


class Roofline(LatencyModel):
    """Hardware × model.

    A step is, one after the other: the matrix products of all its tokens (weights are read once, of a mixture of
    experts those that some token chose), the output matrix for the sequences, attention of the prompts, attention of
    the decodes, two all-reduces a layer, and the host's own work. Attention reads what the layers keep: all tokens,
    those in a window or a chunk, latents; a recurrent layer reads and writes one state a sequence.

    Args:
        hardware: a name (`a100_40gb`), a YAML file, or the keys of `Hardware`.
        model: a `transformers` config, a mapping with its names, or the `Weights` that were counted from one.
        tensor_parallel: devices that share every matrix and every head.
        step_overhead_us: host work of a step that kernels do not hide.
        sequence_overhead_us: host work for each sequence in it (sampling, input preparation, output handling).
        layout: what the layers keep; None = as `model` says, in the hardware's element size.

    Raises:
        HarnessError: unknown hardware, or a number of devices that does not divide the heads.
    """

    def __init__(self, hardware: str | Mapping[str, Any] | Hardware, model: Any, tensor_parallel: int = 1,
                 step_overhead_us: float = 1500.0, sequence_overhead_us: float = 10.0,
                 layout: KVLayout | None = None) -> None:  # fmt: skip
        self.hardware = load_hardware(hardware if isinstance(hardware, str | Hardware) else dict(hardware))
        self.weights: Weights = model if isinstance(model, Weights) else weights_of(model)
        if tensor_parallel < 1 or self.weights.heads % tensor_parallel:
            raise HarnessError(
                f"device.tensor_parallel={tensor_parallel} does not divide the model's {self.weights.heads} heads"
            )
        self.tensor_parallel = tensor_parallel
        self.step_ns_overhead = step_overhead_us * 1e3
        self.sequence_ns_overhead = sequence_overhead_us * 1e3
        machine = self.hardware
        self._flop_ns = 1 / (machine.flops_per_ns * tensor_parallel)
        self._byte_ns = 1 / (machine.bytes_per_ns * tensor_parallel)
        text = self.weights.text
        layout = layout or layout_of(text, machine.element_bytes, tensor_parallel=tensor_parallel)
        self._slot_bytes, self._state_bytes = layout.token_bytes, layout.state_bytes
        self._reads = [reads for reads in reads_of(layout, text) if reads.token_bytes]
        self.context_ns = sum([self._longer(r.token_bytes, r.pair_flops) for r in self._reads if not r.kept.reach])
        self._bounded = [reads for reads in self._reads if reads.kept.reach]
        self._lines: dict[tuple[int, int], float] = {}

    def line(self, stats: BatchStats) -> tuple[float, float]:
        lanes = stats.decodes + stats.idle
        base = self._linear_ns(lanes + stats.prompt_tokens, lanes + stats.prompts)
        if stats.prompts:
            for reads in self._reads:
                if not reads.kept.reach:
                    flops = stats.pairs * reads.prompt_flops
                    base += self._longer(stats.prompt_context * reads.token_bytes, flops)
        return base, self.context_ns

    def estimate(self, batch: Batch) -> int:
        if not self._bounded:
            return super().estimate(batch)
        base, slope = self.line(batch.stats)
        return round(base + slope * batch.stats.context + self._within(batch))

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        if not self._bounded:
            return self.along_line(batch, steps)
        stats = batch.stats.after(1)
        base, slope = self.line(stats)
        stored = np.array([seq.stored for seq in batch.seqs])[None] + 1 + np.arange(steps)[:, None]
        ns = base + slope * (stats.context + stats.decodes * np.arange(steps))
        for reads in self._bounded:
            seen = seen_of(reads.kept, stored).sum(axis=1)
            ns = ns + seen * self._longer(reads.token_bytes, reads.pair_flops)
        times: list[int] = np.rint(ns).astype(np.int64).tolist()
        return times

    def _within(self, batch: Batch) -> float:
        """What reading the tokens of windows and chunks takes."""
        lanes = [seq.stored for seq, count in zip(batch.seqs, batch.counts, strict=True) if count == 1]
        stored = np.array(lanes + [seq.stored for seq in batch.idle], dtype=np.int64)
        prompts = [(seq.stored, count) for seq, count in zip(batch.seqs, batch.counts, strict=True) if count != 1]
        total = 0.0
        for reads in self._bounded:
            slope = self._longer(reads.token_bytes, reads.pair_flops)
            total += int(seen_of(reads.kept, stored).sum()) * slope
            context = pairs = 0
            for end, count in prompts:
                seen = seen_of(reads.kept, np.arange(end - count + 1, end + 1))
                pairs += int(seen.sum()) - count // 2
                context += int((seen - np.arange(1, count + 1)).max()) + count
            if prompts:
                total += self._longer(context * reads.token_bytes, pairs * reads.prompt_flops)
        return total

    def _linear_ns(self, tokens: int, sequences: int) -> float:
        """All that depends on the number of tokens and sequences only; remembered, since few pairs of them occur."""
        known = self._lines.get((tokens, sequences))
        if known is None:
            if len(self._lines) > 100_000:
                self._lines.clear()
            known = self._lines[tokens, sequences] = self._linear(tokens, sequences)
        return known

    def _linear(self, tokens: int, sequences: int) -> float:
        weights, size = self.weights, self.hardware.element_bytes
        layers = self._longer(weights.touched(tokens) * size, 2 * weights.active_parameters * tokens)
        output = weights.hidden * weights.vocab
        head = self._longer(output * size, 2 * output * sequences)
        written = tokens * self._slot_bytes * self._byte_ns
        if self._state_bytes:
            written += 2 * sequences * self._state_bytes * self._byte_ns
        host = self.step_ns_overhead + self.sequence_ns_overhead * sequences
        return layers + head + written + self._all_reduce(tokens * weights.hidden * size) + host

    def _all_reduce(self, size: int) -> float:
        """Two rings a layer: each device sends and receives 2 (n − 1) / n of the bytes."""
        n = self.tensor_parallel
        if n == 1:
            return 0.0
        ring = 2 * (n - 1) / n * size / self.hardware.link_gb_per_s
        return 2 * self.weights.layers * (ring + self.hardware.link_latency_us * 1e3)

    def _longer(self, size: float, flops: float) -> float:
        return max(size * self._byte_ns, flops * self._flop_ns)


class Anchored(LatencyModel):
    """Decode steps as somebody measured them, `base + lane · sequences`; what prompts add comes from a roofline.

    Args:
        base_ms, lane_ms: of a decode step.
        hardware, model, tensor_parallel: of the roofline.
        context: tokens that each sequence looked back to when that was measured; then reading them, as the roofline
            has it, is a part of `lane_ms` that grows and shrinks with them. None = it stays as it was.

    Raises:
        HarnessError: as `Roofline`, or reading so much context takes longer than `lane_ms`.
    """

    def __init__(self, base_ms: float, lane_ms: float, hardware: str | Mapping[str, Any], model: Any,
                 tensor_parallel: int = 1, context: int | None = None) -> None:  # fmt: skip
        self.base_ns, self.lane_ns = base_ms * 1e6, lane_ms * 1e6
        self.roofline = Roofline(hardware, model, tensor_parallel)
        self.token_ns = self.roofline.context_ns if context is not None else 0.0
        self.lane_ns -= (context or 0) * self.token_ns
        if self.lane_ns < 0:
            raise HarnessError(f"lane_ms={lane_ms:g} is less than it takes to read context={context} tokens")

    def line(self, stats: BatchStats) -> tuple[float, float]:
        base = self.base_ns + self.lane_ns * (stats.lanes + stats.prompts)
        if stats.prompts:
            without = stats._replace(
                prompts=0, prompt_tokens=0, prompt_context=0, pairs=0, decodes=max(stats.decodes, 1)
            )
            base += self.roofline.line(stats)[0] - self.roofline.line(without)[0]
        return base, self.token_ns

    def further_ns(self, batch: Batch, steps: int) -> list[int]:
        return self.along_line(batch, steps)
