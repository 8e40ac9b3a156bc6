"""The engine settings of a measured run: from its meta file or the command line, or else assumed (and reported so)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import HarnessError
from harness.validate.files import beside, read_json

NULL_BLOCK = 1  # counted in num_gpu_blocks, never handed out


class Setting(NamedTuple):
    """A setting and its source."""

    name: str
    value: Any
    source: str

    @property
    def assumed(self) -> bool:
        return self.source.startswith("assumed")


class Wanted(NamedTuple):
    """How a setting is found in a meta file.

    Attributes:
        kind: type of the value.
        places: dotted keys; the first that exists and is not null counts. Resolved values come before requested ones.
        default: (vLLM version) → the value if none is recorded; None = decided later.
        why: the reason for that value, for the report.
    """

    kind: type
    places: tuple[str, ...]
    default: Callable[[tuple[int, int]], Any] = lambda version: None
    why: str = ""


SCHEDULER, CACHE, PARALLEL = (f"resolved_config.{name}_config" for name in ("scheduler", "cache", "parallel"))
OLD_RULES = (0, 20)  # the last version that frees all blocks to the back of the free list
WANTED = {
    "max_num_seqs": Wanted(int, (f"{SCHEDULER}.max_num_seqs", "engine_kwargs.max_num_seqs", "max_num_seqs"),
                           lambda v: 256, "vLLM's default but on GPUs of 70 GB and more"),
    "max_num_batched_tokens": Wanted(
        int, (f"{SCHEDULER}.max_num_batched_tokens", "engine_kwargs.max_num_batched_tokens", "max_num_batched_tokens"),
        lambda v: 2048, "vLLM's default but on GPUs of 70 GB and more"),
    "max_model_len": Wanted(int, ("resolved_config.model_config.max_model_len", "engine_kwargs.max_model_len",
                                  "max_model_len")),
    "block_size": Wanted(int, (f"{CACHE}.block_size", "kv_cache.block_size", "engine_kwargs.block_size", "block_size"),
                         lambda v: 16, "vLLM's default on CUDA"),
    "num_gpu_blocks": Wanted(int, ("kv_cache.num_gpu_blocks", f"{CACHE}.num_gpu_blocks",
                                   f"{CACHE}.num_gpu_blocks_override", "engine_kwargs.num_gpu_blocks_override",
                                   "num_gpu_blocks")),
    "enable_prefix_caching": Wanted(
        bool, ("kv_cache.enable_prefix_caching", f"{CACHE}.enable_prefix_caching",
               "engine_kwargs.enable_prefix_caching", "enable_prefix_caching"), lambda v: True, "vLLM's default"),
    "async_scheduling": Wanted(
        bool, (f"{SCHEDULER}.async_scheduling", "engine_kwargs.async_scheduling", "async_scheduling"),
        lambda v: v >= (0, 14), "vLLM's default from 0.14 on"),
    "chunked_prefill": Wanted(bool, (f"{SCHEDULER}.enable_chunked_prefill", "engine_kwargs.enable_chunked_prefill"),
                              lambda v: True, "vLLM's default"),
    "long_prefill_token_threshold": Wanted(
        int, (f"{SCHEDULER}.long_prefill_token_threshold", "engine_kwargs.long_prefill_token_threshold"),
        lambda v: 0, "vLLM's default"),
    "reserve_full_isl": Wanted(bool, (f"{SCHEDULER}.scheduler_reserve_full_isl",
                                      "engine_kwargs.scheduler_reserve_full_isl"),
                               lambda v: v >= (0, 19), "vLLM's default from 0.19 on"),
    "watermark": Wanted(float, (f"{SCHEDULER}.watermark", "engine_kwargs.watermark"), lambda v: 0.0, "vLLM's default"),
    "policy": Wanted(str, (f"{SCHEDULER}.policy", "engine_kwargs.scheduling_policy"), lambda v: "fcfs",
                     "vLLM's default"),
    "tensor_parallel": Wanted(int, (f"{PARALLEL}.tensor_parallel_size", "engine_kwargs.tensor_parallel_size",
                                    "tensor_parallel_size"), lambda v: 1, "vLLM's default"),
    "data_parallel": Wanted(int, (f"{PARALLEL}.data_parallel_size", "engine_kwargs.data_parallel_size"),
                            lambda v: 1, "vLLM's default"),
    "expert_parallel": Wanted(bool, (f"{PARALLEL}.enable_expert_parallel", "engine_kwargs.enable_expert_parallel"),
                              lambda v: False, "vLLM's default"),
    "pipeline_parallel": Wanted(int, (f"{PARALLEL}.pipeline_parallel_size", "engine_kwargs.pipeline_parallel_size"),
                                lambda v: 1, "vLLM's default"),
}  # fmt: skip


@dataclass(slots=True)
class Engine:
    """The settings of a run.

    Attributes:
        settings: by name, with their sources.
        meta: the meta file's content, empty without one.
        path: the meta file; None = there is none.
    """

    settings: dict[str, Setting]
    meta: dict[str, Any]
    path: Path | None

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    @property
    def model(self) -> str | None:
        """The model's name without its folder or organisation."""
        name = place(self.meta, "model") or place(self.meta, "engine_kwargs.model")
        return str(name).rstrip("/").rpartition("/")[2] if name else None

    @property
    def rules(self) -> tuple[str, str]:
        """(version of the scheduler's rules, end of the free list that freed blocks go to) for the engine's version."""
        return ("0.19", "back") if version_pair(self["vllm_version"]) <= OLD_RULES else ("0.33", "front")

    def decide(self, name: str, value: Any, why: str) -> None:
        """Set a value that was not recorded and has no default."""
        if self.settings[name].value is None:
            self.settings[name] = Setting(name, value, f"assumed: {why}")


def read_engine(measured: Path, given: Mapping[str, Any], profile_meta: Mapping[str, Any]) -> Engine:
    """The settings of the run in `measured`: from the command line, else from its meta file, else a default.

    Args:
        given: the keys of `validate`; null = look in the meta file.
        profile_meta: `meta.yaml` of the kernel tables, which has a version too.

    Raises:
        HarnessError: a value of the wrong type, or a run that can't be simulated (pipeline stages, drafts).
    """
    path = Path(given["meta"]) if given.get("meta") else beside(measured, "meta", ".json")
    meta = read_json(path, "validate.meta") if path else {}
    settings = {"vllm_version": _version(path, meta, given, profile_meta)}
    version = version_pair(settings["vllm_version"].value)
    for name, wanted in WANTED.items():
        if name == "expert_parallel":
            devices = settings["tensor_parallel"].value * settings["data_parallel"].value
            given = {**given, name: _as_switch(given.get(name), devices)}
        settings[name] = _setting(name, wanted, path, meta, given, version)
    engine = Engine(settings, meta, path)
    if engine["pipeline_parallel"] != 1:
        raise HarnessError(f"{engine.settings['pipeline_parallel'].source}: the run had {engine['pipeline_parallel']} "
                           "pipeline stages, which are not simulated")  # fmt: skip
    if place(meta, "resolved_config.speculative_config") or place(meta, "engine_kwargs.speculative_config"):
        raise HarnessError(f"{path}: the run decoded speculatively, which is not simulated")
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks", "tensor_parallel",
                 "data_parallel"):  # fmt: skip
        if engine[name] is not None and engine[name] < 1 + (name == "num_gpu_blocks"):
            raise HarnessError(f"{name} = {engine[name]} ({engine.settings[name].source}) is no size")
    return engine


def _as_switch(degree: Any, devices: int) -> Any:
    """vLLM's switch (on or off) for a degree of expert parallelism, which must be 1 or the number of all devices."""
    if type(degree) is not int:
        return degree
    if degree not in (1, devices):
        raise HarnessError(f"validate.expert_parallel={degree}: vLLM shares the experts among all {devices} devices of "
                           f"tensor_parallel x data_parallel, or not at all: true, false or {devices}")  # fmt: skip
    return degree > 1


def _version(path: Path | None, meta: Mapping[str, Any], given: Mapping[str, Any],
             profile_meta: Mapping[str, Any]) -> Setting:  # fmt: skip
    name = "vllm_version"
    if given.get(name) is not None:
        found = Setting(name, str(given[name]), f"validate.{name}")
    elif place(meta, name) is not None:
        found = Setting(name, str(meta[name]), f"meta file: {name}")
    elif profile_meta.get(name) is not None:
        found = Setting(name, str(profile_meta[name]), "assumed: the version of the kernel tables")
    else:
        found = Setting(name, "0.19", "assumed: neither the run nor the tables say one")
    try:
        version_pair(found.value)
    except ValueError as error:
        raise HarnessError(f"{found.source}: {found.value!r} is no version such as 0.19.0") from error
    return found


def _setting(name: str, wanted: Wanted, path: Path | None, meta: Mapping[str, Any], given: Mapping[str, Any],
             version: tuple[int, int]) -> Setting:  # fmt: skip
    if given.get(name) is not None:
        return Setting(name, _typed(given[name], wanted.kind, f"validate.{name}"), f"validate.{name}")
    for key in wanted.places:
        value = place(meta, key)
        if value is not None:
            return Setting(name, _typed(value, wanted.kind, f"{path}: {key}"), f"meta file: {key}")
    return Setting(name, wanted.default(version), f"assumed: {wanted.why}")


def _typed(value: Any, kind: type, where: str) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        names = {int: "a whole number", bool: "true or false", str: "a name", float: "a number"}
        raise HarnessError(f"{where} must be {names[kind]}, not {value!r:.60}")
    return value


def place(meta: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None if there is none."""
    value: Any = meta
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def version_pair(version: str) -> tuple[int, int]:
    """(major, minor) of a version such as 0.19.0 or v0.19.0rc1+cu128. Raises ValueError."""
    major, minor, *_ = version.lstrip("v").split(".")
    return int(major), int(minor)
