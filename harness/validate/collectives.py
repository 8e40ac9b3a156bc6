"""Communication between devices that the kernel tables don't hold: with tensor parallelism two all-reduces a layer,
with data parallelism an all-gather before and a reduce-scatter after the experts.

A curve belongs to a machine: two servers with the same GPU differ by a factor of two, because their GPUs are connected
differently. So every report names the curve that was used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.files import read_csv
from harness.operators.collectives import line, ring_ns
from harness.validate.engine import Engine, place
from harness.validate.files import read_json

# Set by hand in LLMServingSim 2 for PCIe 5.0 x16: 16 GiB/s a link, 20 µs a message, 1597 GB/s of memory.
RING = {"bytes_per_ns": 16 * 2**30 / 1e9, "latency_ns": 20_000.0, "memory": 1597.0}
COLUMNS = ("source", "op", "backend", "gpus", "elements", "time_us")
TOKENS = np.unique(np.r_[1:129, 2.0 ** np.arange(7, 16)])
HIDDEN = {"llama-3.1-8b": 4096, "llama-3.1-70b": 8192, "llama-3.3-70b": 8192, "qwen3-8b": 4096, "qwen3-14b": 5120,
          "qwen3-32b": 5120, "qwen3-30b-a3b": 2048, "mistral-7b": 4096}  # fmt: skip
IN_META = ("hf_overrides", "hf_config", "hf_text_config", "config")


Times = Callable[[float], float]  # elements of 2 bytes → µs


class Collectives(NamedTuple):
    """The time that a machine's collectives take.

    Attributes:
        name, said: source of the curves, in short and in full.
        rows: (`all_reduce`, tokens, µs) of the devices that share a layer, as rows of the dense kernels' table.
        gather, scatter: µs of all devices that share the experts, by the number of elements of all of them together.
    """

    name: str
    said: str
    rows: list[tuple[str, float, float]]
    gather: Times
    scatter: Times


NONE = Collectives("", "", [], lambda elements: 0.0, lambda elements: 0.0)


def collectives_of(given: str | None, engine: Engine, hidden: int | None) -> list[Collectives]:
    """Those to predict with, the one asked for first; with a file also the ring, for comparison. Empty if none was
    asked for.

    Args:
        given: `ring`, or a file of measured collectives (columns source, op, backend, gpus, elements, time_us).
        hidden: hidden size of the model; None = its devices don't communicate.

    Raises:
        HarnessError: the file can't be read, or has no such curve.
    """
    if given is None or hidden is None:
        return []
    curves = [_ring(engine, hidden)]
    if given != "ring":
        curves.insert(0, _measured(Path(given), engine, hidden))
    return curves


def _ring(engine: Engine, hidden: int) -> Collectives:
    """All-reduces by `ring_ns`; a gather sends the share of every other device, a scatter also adds them up."""
    share, devices = engine["tensor_parallel"], engine["tensor_parallel"] * engine["data_parallel"]
    others, link, latency = devices - 1, RING["bytes_per_ns"], RING["latency_ns"]

    def gather(elements: float) -> float:
        return others * (latency + 2 * elements / devices / link) / 1e3

    def scatter(elements: float) -> float:
        return gather(elements) + others * 3 * 2 * elements / devices / RING["memory"] / 1e3

    rows = _rows(ring_ns(2 * TOKENS * hidden, share, **RING) / 1e3) if share > 1 else []
    return Collectives("ring", "ring of 16 GiB/s and 20 µs a message, set by hand", rows, gather, scatter)


def hidden_size(engine: Engine, folder: Path, tables: Mapping[str, Any]) -> int:
    """The model's hidden size: from the run's meta file, a config.json beside the tables, or the model's name."""
    for name in IN_META:
        if type(found := place(engine.meta, f"resolved_config.model_config.{name}.hidden_size")) is int:
            return found
    if (folder / "config.json").is_file():
        found = read_json(folder / "config.json", "validate.profile").get("hidden_size")
        if type(found) is int:
            return found
    for name in filter(None, (engine.model, str(tables.get("model") or ""))):
        plain = name.rpartition("/")[2].lower().replace("meta-", "")
        known = [(len(model), size) for model, size in HIDDEN.items() if (plain + "-").startswith(model + "-")]
        if known:
            return max(known)[1]
    raise HarnessError(f"how wide is {engine.model or 'the model'}? Its all-reduces go by it: put its config.json "
                       "beside the tables")  # fmt: skip


def _measured(path: Path, engine: Engine, hidden: int) -> Collectives:
    """The all-reduce of the engine's version (within a CUDA graph, unless it ran eagerly), or else NCCL's; gather and
    scatter are NCCL's.
    """
    table = read_csv(path, "validate.collectives", COLUMNS)
    share, devices = engine["tensor_parallel"], engine["tensor_parallel"] * engine["data_parallel"]
    names, said, rows = [], [], []
    if share > 1:
        chosen = _all_reduce(table, path, engine)
        names.append(str(chosen["source"].iloc[0]))
        said.append(f"{share} devices: all_reduce of {chosen['source'].iloc[0]}, {chosen['backend'].iloc[0]}")
        rows = _rows(line(chosen["elements"], chosen["time_us"], TOKENS * hidden))
    gather, scatter = NONE.gather, NONE.scatter
    if engine["data_parallel"] > 1:
        gather, scatter = (_nccl(table, path, name, devices) for name in ("all_gather", "reduce_scatter"))
        names.append("NCCL")
        said.append(f"{devices} devices: all_gather and reduce_scatter of NCCL")
    return Collectives(" and ".join(names), "; ".join(said), rows, gather, scatter)


def _all_reduce(table: pd.DataFrame, path: Path, engine: Engine) -> pd.DataFrame:
    devices = engine["tensor_parallel"]
    rows = table[(table["op"] == "all_reduce") & (table["gpus"] == devices)]
    eager = bool(place(engine.meta, "resolved_config.model_config.enforce_eager")
                 or place(engine.meta, "engine_kwargs.enforce_eager"))  # fmt: skip
    version = _numbers(str(engine["vllm_version"]))
    own = rows[rows["backend"] == ("vllm_eager" if eager else "vllm_graph")]
    own = own[[_numbers(source)[:2] == version[:2] for source in own["source"]]]
    chosen = own if len(own) else rows[rows["backend"] == "nccl"]
    if not len(chosen):
        raise HarnessError(f"validate.collectives={path} has no all_reduce of {devices} devices by vLLM "
                           f"{engine['vllm_version']} or NCCL")  # fmt: skip
    return chosen


def _nccl(table: pd.DataFrame, path: Path, name: str, devices: int) -> Times:
    rows = table[(table["op"] == name) & (table["gpus"] == devices) & (table["backend"] == "nccl")]
    if not len(rows):
        raise HarnessError(f"validate.collectives={path} has no {name} of {devices} devices by NCCL")
    at, times = rows["elements"].to_numpy(), rows["time_us"].to_numpy()
    return lambda elements: float(line(at, times, np.array([elements]))[0])


def _rows(times: np.ndarray) -> list[tuple[str, float, float]]:
    """As rows of the dense kernels' table; each runs twice a layer."""
    return [("all_reduce", float(tokens), float(time)) for tokens, time in zip(TOKENS, times, strict=True)]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
