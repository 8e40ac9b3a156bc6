"""A folder of operator tables: its GPUs, engines and versions, and the file of each table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from harness.errors import HarnessError
from harness.lookup import hint

KEYS = {  # columns that each table must have
    "gemm_perf": ("gemm_dtype", "m", "n", "k"),
    "context_attention_perf": ("batch_size", "isl", "num_heads", "num_key_value_heads", "attn_dtype", "kv_cache_dtype"),
    "generation_attention_perf": ("batch_size", "step", "num_heads", "num_key_value_heads", "attn_dtype",
                                  "kv_cache_dtype"),
    "moe_perf": ("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
                 "moe_ep_size", "distribution", "kernel_source"),
    "custom_allreduce_perf": ("num_gpus", "message_size"),
    "nccl_perf": ("op_name", "nccl_dtype", "num_gpus", "message_size"),
}  # fmt: skip
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


@dataclass(frozen=True)
class Gpu:
    """A GPU, from `DIR/gpus/GPU.yaml`.

    Attributes:
        bytes_per_ns, memory: bandwidth and size (bytes) of its main memory.
        flops_per_ns: dense peak by element type.
        pointwise_share, pointwise_ns: share of the bandwidth that a pointwise kernel reaches, and its constant time.
        reserve: bytes that an engine keeps beside weights and KV.
        link_bytes_per_ns: to each of its peers, one way.
    """

    name: str
    bytes_per_ns: float
    memory: int
    flops_per_ns: dict[str, float]
    pointwise_share: float
    pointwise_ns: float
    reserve: int
    link_bytes_per_ns: float

    def flops(self, dtype: str) -> float:
        """Peak for elements of `dtype`; if the GPU has no units for them, that of the next wider type."""
        wider = {"nvfp4": "fp8", "fp8_block": "fp8", "fp8": "bfloat16"}
        while dtype not in self.flops_per_ns:
            dtype = wider.get(dtype, "bfloat16")
        return self.flops_per_ns[dtype]


class Tables:
    """The tables of one GPU and one version of an engine.

    Args:
        folder: see the package.
        gpu, engine, version: names of folders below it; version None = the newest.

    Raises:
        HarnessError: there is no such folder; the message names those there are.
    """

    def __init__(self, folder: str | Path, gpu: str, engine: str, version: str | None = None) -> None:
        self.folder, self.gpu_name, self.engine = Path(folder), gpu, engine
        if not self.folder.is_dir():
            raise HarnessError(f"device.tables={folder}: there is no such folder")
        self.gpu = read_gpu(self.folder, gpu)
        known = versions(self.folder / gpu / engine)
        if not known:
            meant = "" if engine in ENGINES else hint(engine, ENGINES)
            raise HarnessError(f"{folder} has no tables of {ENGINES.get(engine, engine)} on {gpu}; it has those of "
                               f"{', '.join(_below(self.folder / gpu)) or 'no engine'} there{meant}")  # fmt: skip
        if version is not None and version not in known:
            meant = hint(version, known)
            raise HarnessError(f"{folder} has {engine} {', '.join(known)} on {gpu}, not {version}{meant}")
        self.version = version or known[-1]
        self.notes: list[str] = []
        self._checked: dict[Path, pd.DataFrame] = {}

    def read(self, name: str) -> pd.DataFrame | None:
        """A table, or None if no version has it. If this version lacks it, it is read from the version that `reuse.csv`
        names, or else from the newest version that has it; that is noted.
        """
        path = self.folder / self.gpu_name / self.engine / self.version / f"{name}.parquet"
        if not path.is_file():
            others = [path.parents[1] / at / path.name for at in self._instead(name)]
            path = next((other for other in others if other.is_file()), path)
            if not path.is_file():
                return None
            self.note(f"{name} is that of {self.engine} {path.parent.name}")
        return self._sound(name, path)

    def every(self, name: str) -> list[tuple[str, pd.DataFrame]]:
        """A table in every version that has it: this version's first, then the newest."""
        place = self.folder / self.gpu_name / self.engine
        order = dict.fromkeys([self.version, *self._instead(name)])
        paths = [(version, place / version / f"{name}.parquet") for version in order]
        return [(version, read_table(path)) for version, path in paths if path.is_file()]

    def note(self, text: str) -> None:
        """Note that a table stands in for another one."""
        if text not in self.notes:
            self.notes.append(text)

    def collectives(self) -> pd.DataFrame | None:
        """The newest table of NCCL."""
        known = versions(self.folder / self.gpu_name / "nccl")
        return read_table(self.folder / self.gpu_name / "nccl" / known[-1] / "nccl_perf.parquet") if known else None

    def _sound(self, name: str, path: Path) -> pd.DataFrame:
        """A table without points that are faster than the GPU's peak.

        Raises:
            HarnessError: there are too many such points to believe the others.
        """
        from harness.operators.health import REFUSED, too_fast

        if path not in self._checked:
            frame = read_table(path)
            wrong, checked = too_fast(name, frame, self.gpu)
            if checked and wrong.sum() > REFUSED * checked:
                raise HarnessError(f"{path}: {wrong.sum() / checked:.0%} of {checked:,} points are faster than the "
                                   f"peak of {self.gpu_name} allows; take another version")  # fmt: skip
            self._checked[path] = frame[~wrong] if wrong.any() else frame
        return self._checked[path]

    def _instead(self, name: str) -> list[str]:
        told = self._reuse
        if len(told):
            told = told[(told["gpu"] == self.gpu_name) & (told["backend"] == self.engine)
                        & (told["version"] == self.version) & (told["table"] == name)]  # fmt: skip
        return [*(told["from_version"].astype(str) if len(told) else []),
                *reversed(versions(self.folder / self.gpu_name / self.engine))]  # fmt: skip

    @cached_property
    def _reuse(self) -> pd.DataFrame:
        path = self.folder / "reuse.csv"
        return pd.read_csv(path, dtype=str) if path.is_file() else pd.DataFrame()


@lru_cache(maxsize=64)
def read_table(path: Path) -> pd.DataFrame:
    """A table, unfiltered.

    Raises:
        HarnessError: it can't be read, lacks a column, or has an invalid `latency`.
    """
    try:
        table = pd.read_parquet(path)
    except Exception as error:
        raise HarnessError(f"{path} can't be read as a parquet table: {' '.join(str(error).split())}") from error
    if "latency" not in table or not pd.api.types.is_numeric_dtype(table["latency"]):
        raise HarnessError(f"{path} has no column `latency` of milliseconds")
    lacking = [name for name in KEYS.get(path.stem, ()) if name not in table]
    if lacking:
        raise HarnessError(f"{path} has no column {', '.join(lacking)}; it has {', '.join(map(str, table.columns))}")
    wrong = ~(table["latency"] > 0 if path.stem in KEYS else table["latency"] >= 0)  # some others are too short to time
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise HarnessError(f"{path}, row {at}: latency {table['latency'].iloc[at]} is no time above 0")
    return table


@lru_cache(maxsize=64)
def read_gpu(folder: Path, gpu: str) -> Gpu:
    """Read a GPU's file.

    Raises:
        HarnessError: there is no such file, or it lacks a number.
    """
    path = folder / "gpus" / f"{gpu}.yaml"
    if not path.is_file():
        known = sorted(other.stem for other in (folder / "gpus").glob("*.yaml"))
        raise HarnessError(f"{folder} has no tables of {gpu}; it has {', '.join(known) or 'none'}{hint(gpu, known)}")
    try:
        values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        one = values["gpu"]
        peaks = {dtype: one[f"{key}_tc_flops"] / 1e9 for dtype, key in (("bfloat16", "bfloat16"), ("fp8", "fp8"),
                 ("nvfp4", "fp4")) if f"{key}_tc_flops" in one}  # fmt: skip
        return Gpu(gpu, one["mem_bw"] / 1e9, int(one["mem_capacity"]), peaks,
                   one.get("mem_bw_empirical_scaling_factor", 0.8),
                   1e9 * one.get("mem_empirical_constant_latency", 3e-6),
                   int(values.get("misc", {}).get("other_mem", 0)), values["node"]["intra_node_bw"] / 1e9)  # fmt: skip
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise HarnessError(f"{path} can't be read: {' '.join(str(error).split())}") from error
    except KeyError as error:
        raise HarnessError(f"{path} lacks {error}") from error
    except TypeError as error:
        raise HarnessError(f"{path} lacks gpu: mem_bw, mem_capacity, …, node: intra_node_bw") from error


def versions(folder: Path) -> list[str]:
    """The versions in a folder, oldest first."""
    return sorted(_below(folder), key=_order)


def engine_and_version(name: str) -> tuple[str, str | None]:
    """`vllm-0.24.0` or `vllm` as (engine, version or None).

    Raises:
        HarnessError: no such engine.
    """
    engine, _, version = name.partition("-")
    if engine not in ENGINES:
        raise HarnessError(f"device.engine={name}: must be {', '.join(ENGINES)}, or one of them with a version "
                           f"(vllm-0.24.0){hint(engine, ENGINES)}")  # fmt: skip
    return engine, version or None


def _below(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []


def _order(version: str) -> list[int]:
    """Sort key of a version; a candidate (rc) comes before its release."""
    numbers = [int(part) for part in re.findall(r"\d+", version.replace("rc", ".").replace("post", "."))]
    return numbers[:3] + ([-1, *numbers[3:]] if "rc" in version else [0, *numbers[3:]])
