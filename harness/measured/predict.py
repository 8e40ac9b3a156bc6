"""Predicts a measured row: composes its tables, sets up its loop, and serves its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError
from harness.layout import layout_of
from harness.measured.exact import serve_exactly
from harness.measured.loop import CHUNKED, PROMPTS_FIRST, WHOLE, Loop, serve
from harness.measured.models import model_config
from harness.measured.settings import Row, Settings, precision_of, settings_of
from harness.operators.compose import Rules, compose
from harness.operators.costs import Costs, step_ns
from harness.operators.folder import Tables
from harness.operators.machines import Machine
from harness.operators.model import Model, Parallel, Precision

KINDS = {"vllm": CHUNKED, "trtllm": WHOLE, "sglang": PROMPTS_FIRST}


@dataclass(slots=True)
class Prediction:
    """The prediction of a row.

    Attributes:
        ttft_ms, tpot_ms: means over its requests, as the client sees them; NaN if every answer is one token.
        assumed: what the row does not record.
        pool: whether memory may have been the limit.
    """

    ttft_ms: float
    tpot_ms: float
    assumed: list[str]
    pool: str = ""


@dataclass(slots=True)
class Predictor:
    """Predicts rows from one folder of tables; the costs of each configuration are composed once.

    Args:
        version: of every engine's tables; None = the newest.
        machines: constants that replace those of `machines.yaml`, by (GPU, engine).
    """

    tables: Path
    models: Path | None = None
    version: str | None = None
    rules: Rules = field(default_factory=Rules)
    seed: int = 0
    machines: dict[tuple[str, str], Machine] = field(default_factory=dict)
    _costs: dict[Any, tuple[Costs, list[str]]] = field(default_factory=dict)
    _tables: dict[tuple[str, str], Tables] = field(default_factory=dict)

    def predict(self, row: Row) -> Prediction:
        """Predict a row. Raises HarnessError with the reason if that is not possible."""
        settings, machine = settings_of(row), self.machine(row)
        costs, notes = self.costs(row, settings, machine)
        loop, pool = self.loop(row, settings, machine)
        prompts, outputs = self.lengths(row, settings)
        if loop.blocks and row.engine == "vllm":
            if loop.engines > 1:
                raise HarnessError("the pool may fill, which is not simulated of engines in lockstep")
            sent, first, last, preemptions = serve_exactly(loop, costs, prompts, outputs)
            pool += f", {preemptions} preemptions"
        else:
            sent, first, last = serve(loop, costs, prompts, 1 + np.ceil((outputs - 1) / loop.grows).astype(int))
            if (first < 0).any():
                raise HarnessError(f"a request never fits: {pool}")
        several = outputs > 1
        tpot = (last - first)[several] / (outputs - 1)[several] if several.any() else np.array([np.nan])
        assumed = [*row.notes, *settings.sources, *notes, f"constants: {machine.said}"]
        return Prediction(float((first - sent).mean()) / 1e6, float(tpot.mean()) / 1e6, assumed, pool)

    def machine(self, row: Row) -> Machine:
        return self.machines.get((row.gpu, row.engine)) or Machine.of(row.gpu, row.engine)

    def opened(self, row: Row) -> Tables:
        """The tables of the row's GPU and engine."""
        key = row.gpu, row.engine
        if key not in self._tables:
            self._tables[key] = Tables(self.tables, *key, self.version)
        return self._tables[key]

    def costs(self, row: Row, settings: Settings, machine: Machine) -> tuple[Costs, list[str]]:
        """The costs of the row's configuration on a machine, and notes on tables that stand in for others."""
        config = model_config(row.model, self.models)
        precision = precision_of(row, config, settings)
        how = settings.experts, settings.fuses, settings.drafts
        key = row.model, row.gpu, row.engine, row.parallel, precision, how, self.rules, machine.fp8_share
        if key not in self._costs:
            tables = self.opened(row)
            tables.notes.clear()
            costs = compose(Model.of(config), tables, row.parallel, precision, machine, self.rules, *how)
            said = f"tables of {tables.engine} {tables.version}" + (f" for {row.version}" if row.version else "")
            self._costs[key] = costs, [said, f"precision {_said(precision)}", *tables.notes]
        costs, notes = self._costs[key]
        return with_machine(costs, machine, self.rules, settings), notes

    def loop(self, row: Row, settings: Settings, machine: Machine) -> tuple[Loop, str]:
        """The row's loop, and whether its pool may fill."""
        config, kind = model_config(row.model, self.models), KINDS[row.engine]
        batch = -(-row.clients // row.parallel.data)
        budget = settings.budget or -(-((settings.drafts + 1) * batch + row.isl + 64) // 64) * 64
        if kind == WHOLE and row.isl > budget:
            kind = CHUNKED  # it can only have run with chunked prompts (enable_chunked_context)
        precision = precision_of(row, config, settings)
        blocks, slots = pool(Model.of(config), self.opened(row), row.parallel, precision, settings)
        longest = -(-(row.isl + row.osl) // settings.block)
        lanes = min(settings.lanes, row.clients)
        engines = row.parallel.data
        binds = longest * -(-lanes // engines) > blocks
        loop = Loop(kind, budget, settings.lanes, settings.ahead, blocks if binds else 0, settings.block,
                    machine.client_ms * 1e6, machine.tokenize_us * 1e3 if self.rules.tokenized else 0.0,
                    settings.wait_steps, settings.wait_ratio * budget, settings.balance_steps,
                    settings.poll_steps, settings.grows if self.rules.drafts else 1.0, engines,
                    row.clients)  # fmt: skip
        return loop, f"pool of {slots:,} tokens may fill" if binds else ""

    def lengths(self, row: Row, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
        """Prompt and output lengths of every request: uniform from `shortest` times the longest to the longest."""
        rng = np.random.default_rng([self.seed, row.isl, row.osl, row.clients])
        count = settings.rounds * row.clients
        both = [rng.integers(max(int(settings.shortest * most), 1), most + 1, count) for most in (row.isl, row.osl)]
        return both[0], both[1]


def with_machine(costs: Costs, machine: Machine, rules: Rules, settings: Settings) -> Costs:
    """`costs` with the constants of a machine that apply to an engine with these settings."""
    kernel = {"eager": machine.eager_kernel_us, "bare": machine.bare_kernel_us, "captured": 0.0}[settings.launched]
    hidden = settings.overlaps and rules.overlapped_host
    return costs._replace(
        floor=1e3 * kernel * costs.kernels if rules.eager_prompts else 0.0,
        host=1e6 * machine.host_ms if rules.host and not hidden else 0.0,
    )


def pool(model: Model, tables: Tables, parallel: Parallel, precision: Precision, settings: Settings) -> tuple[int, int]:
    """(blocks, tokens) of one engine's KV pool: its share of the memory less weights and a reserve.

    Raises:
        HarnessError: nothing is left.
    """
    gpu, weights = tables.gpu, model.weight_bytes(precision, parallel)
    left = settings.utilization * gpu.memory - weights - gpu.reserve
    if tables.engine == "trtllm":  # its share is of the memory that weights leave free (free_gpu_memory_fraction)
        left = settings.utilization * (gpu.memory - weights - gpu.reserve)
    layout = layout_of(model.text, 2, precision.kv_bytes, parallel.tensor)
    token = sum(len(group.layers) * group.token_bytes for group in layout.groups)
    slots = int(left / token) if left > 0 else 0
    if slots < settings.block:
        raise HarnessError(f"{weights / 2**30:.0f} GiB of weights a device leave no "
                           f"room for KV in {gpu.memory / 2**30:.0f} GiB")  # fmt: skip
    return slots // settings.block, slots


def busy(predictor: Predictor, row: Row, ttft_ms: float, tpot_ms: float) -> float:
    """Share of the GPU's time that the measured rate would need: λ · (prefill + osl / C · decode(C)).

    From the row's measured rate and the operators alone (no constants); above about 1.15 the run was not as stated.
    """
    settings = settings_of(row)
    bare, _ = predictor.costs(row, settings, Machine())
    mean = (1 + settings.shortest) / 2
    isl, osl, engines = max(mean * row.isl, 1), max(mean * row.osl, 1), row.parallel.data
    clients = max(row.clients / engines, 1)
    rate = clients / (ttft_ms + (osl - 1) * tpot_ms)
    chunks = max(1, -(-isl // (settings.budget or isl)))
    prefill = chunks * step_ns(bare, 0, 0.0, 1, int(isl / chunks), int(isl), isl * isl / 2 / chunks) / 1e6
    decode = step_ns(bare, round(clients), clients * (isl + osl / 2), 0, 0, 0, 0.0) / 1e6
    steps = osl / (settings.grows if predictor.rules.drafts else 1.0)
    return float(rate * (prefill + steps / clients * decode))


def _said(precision: Precision) -> str:
    return f"{precision.attention} / {precision.mlp} / {precision.experts}, KV {precision.kv}"
