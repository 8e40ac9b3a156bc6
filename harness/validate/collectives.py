"""What tensor-parallel devices tell each other, where the kernel tables don't hold it: two all-reduces a layer.

A curve belongs to a machine: two servers with the same GPU differ by a factor of two, by how their GPUs are connected.
So every report names the one that was taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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


class AllReduce(NamedTuple):
    """A curve.

    Attributes:
        name: whose it is, for people.
        rows: (`all_reduce`, tokens, µs), as the dense kernels' table has them.
    """

    name: str
    rows: list[tuple[str, float, float]]


def all_reduces(given: str | None, engine: Engine, folder: Path, tables: Mapping[str, Any]) -> list[AllReduce]:
    """The curves to predict with: the one asked for first; of a file, the ring beside it. Empty if none was asked for.

    Args:
        given: `ring`, or a file of measured collectives (columns source, op, backend, gpus, elements, time_us).

    Raises:
        HarnessError: a file that can't be read or has no such curve, or a hidden size that nobody says.
    """
    devices = engine["tensor_parallel"]
    if given is None or devices == 1:
        return []
    elements = TOKENS * hidden_size(engine, folder, tables)
    ring = ring_ns(2 * elements, devices, **RING) / 1e3
    curves = [AllReduce("ring of 16 GiB/s and 20 µs", _rows(ring))]
    if given != "ring":
        curves.insert(0, _measured(Path(given), engine, devices, elements))
    return curves


def hidden_size(engine: Engine, folder: Path, tables: Mapping[str, Any]) -> int:
    """Of the model: from the run's meta file, a config.json of the tables, or its name."""
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


def _measured(path: Path, engine: Engine, devices: int, elements: np.ndarray) -> AllReduce:
    """The engine's own all-reduce of its own version, inside a CUDA graph unless it ran eagerly; else NCCL's."""
    table = read_csv(path, "validate.collectives", COLUMNS)
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
    name = f"{path.name}: {chosen['source'].iloc[0]}, {chosen['backend'].iloc[0]}, {devices} devices"
    return AllReduce(name, _rows(line(chosen["elements"], chosen["time_us"], elements)))


def _rows(times: np.ndarray) -> list[tuple[str, float, float]]:
    return [("all_reduce", float(tokens), float(time)) for tokens, time in zip(TOKENS, times, strict=True)]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
