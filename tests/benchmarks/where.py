"""Where the time of W64 goes: `python -m tests.benchmarks.where [--requests N] [--out FILE]`, a table.

Every operation of the flat step (see `harness.runner.flat`) is timed as it is called; steps that hold a prompt are told
apart from steps of decodes alone. What a step spends outside of operations is Python.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from allocators.paged import Paged
from harness.runner.torch_device import warm_up
from harness.runner.torch_runner import TorchModelRunner
from tests.benchmarks import test_w64 as w64

LINEAR = ("linear", "mm", "addmm", "matmul")


class Clocks:
    """Seconds by kind of step and by what they were spent on."""

    def __init__(self) -> None:
        self.kind = "decodes"
        self.spent: dict[tuple[str, str], float] = defaultdict(float)
        self.steps: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, int] = defaultdict(int)

    def timed(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timing(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent[self.kind, what] += time.perf_counter() - begun

        return timing


def watch(step: Any, clocks: Clocks) -> None:
    """Time each operation of a flat step, and whole steps."""
    names = step.__globals__
    for name, value in list(names.items()):
        if name == "attend":
            names[name] = clocks.timed("attention", value)
        elif name.startswith("call_"):
            linear = name.removeprefix("call_").split("_default")[0].split(".")[0] in LINEAR
            names[name] = clocks.timed("linear" if linear else "other operations", value)
    forward, execute = TorchModelRunner.forward, TorchModelRunner.execute

    def counted(self: Any, packed: Any) -> Any:
        clocks.kind = "prompts" if len(packed.query_starts) > 1 else "decodes"
        clocks.steps[clocks.kind] += 1
        clocks.tokens[clocks.kind] += len(packed.ids)
        return clocks.timed("forward", forward)(self, packed)

    def whole(self: Any, batch: Any) -> Any:
        begun = time.perf_counter()
        result = execute(self, batch)
        clocks.spent[clocks.kind, "step"] += time.perf_counter() - begun
        return result

    TorchModelRunner.forward, TorchModelRunner.execute = counted, whole  # type: ignore[method-assign]


def table(clocks: Clocks, seconds: float) -> pd.DataFrame:
    """Milliseconds a step, and shares of all time; what no step spent is scheduling, books and records."""
    rows = []
    for kind, steps in sorted(clocks.steps.items()):
        spent = {what: clocks.spent[kind, what] for what in ("attention", "linear", "other operations")}
        spent["Python between operations"] = clocks.spent[kind, "forward"] - sum(spent.values())
        spent["packing and sampling"] = clocks.spent[kind, "step"] - clocks.spent[kind, "forward"]
        for what, each in spent.items():
            rows.append({"steps": kind, "count": steps, "tokens": clocks.tokens[kind], "what": what, "seconds": each,
                         "ms_a_step": 1e3 * each / steps, "share_pct": 100 * each / seconds})  # fmt: skip
    steps, outside = sum(clocks.steps.values()), seconds - sum(clocks.spent[kind, "step"] for kind in clocks.steps)
    rows.append({"steps": "all", "count": steps, "tokens": sum(clocks.tokens.values()),
                 "what": "scheduling, books, records", "seconds": outside, "ms_a_step": 1e3 * outside / steps,
                 "share_pct": 100 * outside / seconds})  # fmt: skip
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.where", description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--out", type=Path, help="a CSV file")
    options = parser.parse_args()
    if not w64.W64.exists():
        raise SystemExit(f"the workload is not there: {w64.W64}")
    opened = w64.device(w64.THREADS)
    warm = {"scheduler": {"max_num_batched_tokens": w64.TOKENS, "max_num_seqs": w64.LANES},
            "max_model_len": w64.LONGEST}  # fmt: skip
    warm_up(opened.runner(Paged(4096, w64.LONGEST, block_size=16)), OmegaConf.create(warm))
    begun = time.perf_counter()
    w64.ours(opened, options.requests)
    plain = time.perf_counter() - begun
    clocks = Clocks()
    watch(opened.step, clocks)
    begun = time.perf_counter()
    said = w64.ours(opened, options.requests)
    seconds = time.perf_counter() - begun
    found = table(clocks, seconds)
    tokens = sum(map(len, said.values()))
    print(found.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    print(f"{tokens} tokens in {seconds:.2f} s, {plain:.2f} s without the clocks; {w64.THREADS} threads")
    if options.out:
        found.to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
