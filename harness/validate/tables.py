"""The kernel tables that a run is predicted from: their folder, their model, its number of layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.validate.engine import Engine, Setting, place
from harness.validate.files import read_json

# Decoder layers by the beginning of a model's name: tables are of one layer, and some runs don't record the config.
LAYERS = {
    "llama-2-7b": 32, "llama-2-13b": 40, "llama-2-70b": 80, "llama-3-8b": 32, "llama-3-70b": 80, "llama-3.1-8b": 32,
    "llama-3.1-70b": 80, "llama-3.1-405b": 126, "llama-3.2-1b": 16, "llama-3.2-3b": 28, "llama-3.3-70b": 80,
    "mistral-7b": 32, "mixtral-8x7b": 32, "mixtral-8x22b": 56, "qwen2.5-0.5b": 24, "qwen2.5-1.5b": 28,
    "qwen2.5-3b": 36, "qwen2.5-7b": 28, "qwen2.5-14b": 48, "qwen2.5-32b": 64, "qwen2.5-72b": 80, "qwen3-0.6b": 28,
    "qwen3-1.7b": 28, "qwen3-4b": 36, "qwen3-8b": 36, "qwen3-14b": 40, "qwen3-32b": 64, "qwen3-30b-a3b": 48,
    "gemma-2-2b": 26, "gemma-2-9b": 42, "gemma-2-27b": 46, "phi-4": 40, "opt-13b": 40, "opt-66b": 64, "opt-175b": 96,
}  # fmt: skip
IN_META = ("hf_overrides", "hf_config", "hf_text_config", "config")


def tables_folder(profile: str | None, tensor_parallel: int | None = None) -> Path:
    """The folder with the tables: `profile` itself, its `tpN` for the degree of tensor parallelism, or the only folder
    with tables below it.

    Raises:
        HarnessError: no folder was named, it does not exist, or several folders below it have tables.
    """
    if profile is None:
        raise HarnessError("experiment=validate needs validate.profile=DIR, a folder of kernel tables (dense.csv, "
                           "per_sequence.csv, attention.csv, meta.yaml) of the GPU and the model")  # fmt: skip
    folder = Path(profile)
    if not folder.is_dir():
        raise HarnessError(f"validate.profile={profile}: there is no such folder")
    if (folder / f"tp{tensor_parallel}").is_dir():
        return folder / f"tp{tensor_parallel}"
    below = sorted({file.parent for file in folder.rglob("dense.csv*")})
    if folder in below or not below or (tensor_parallel is None and len(below) > 1):
        return folder
    if len(below) > 1:
        names = ", ".join(str(at.relative_to(folder)) for at in below)
        raise HarnessError(f"validate.profile={profile}: there are several tables in it, in {names}; name one of them")
    return below[0]


def layers_of(given: int | None, engine: Engine, folder: Path, tables: Mapping[str, Any]) -> Setting:
    """How many decoder layers the model has, and the source of that number.

    Raises:
        HarnessError: there is no source.
    """
    if given is not None:
        if type(given) is not int or given < 1:
            raise HarnessError(f"validate.layers must be a whole number >= 1, not {given!r}")
        return Setting("layers", given, "validate.layers")
    places = [f"resolved_config.model_config.{name}.num_hidden_layers" for name in IN_META]
    places += [f"{name}.num_hidden_layers" for name in ("engine_kwargs.hf_overrides", "model_config", "hf_config")]
    for key in [*places, "num_hidden_layers"]:
        if type(found := place(engine.meta, key)) is int:
            return Setting("layers", found, f"meta file: {key}")
    if (folder / "config.json").is_file():
        found = read_json(folder / "config.json", "validate.profile").get("num_hidden_layers")
        if type(found) is int:
            return Setting("layers", found, f"{folder / 'config.json'}: num_hidden_layers")
    for name in filter(None, (engine.model, str(tables.get("model") or ""))):
        plain = name.rpartition("/")[2].lower().replace("meta-", "")
        known = [(len(model), number) for model, number in LAYERS.items() if (plain + "-").startswith(model + "-")]
        if known:
            return Setting("layers", max(known)[1], f"the model's name, {name}")
    raise HarnessError(f"how many decoder layers has {engine.model or 'the model'}? Neither the run's meta file nor "
                       "the tables say: set validate.layers=32, for example")  # fmt: skip


def doubts(engine: Engine, folder: Path, tables: Mapping[str, Any]) -> list[str]:
    """Warnings where the tables may belong to another model or GPU than the run's.

    Raises:
        HarnessError: they are for another degree of tensor parallelism.
    """
    found, degree = [], engine["tensor_parallel"]
    of = _degree(folder, tables)
    if of is not None and of != degree:
        raise HarnessError(f"the run had tensor_parallel={degree} ({engine.settings['tensor_parallel'].source}), and "
                           f"{folder} holds tables of tensor_parallel={of}")  # fmt: skip
    model, profiled = engine.model, str(tables.get("model") or "").rpartition("/")[2]
    if model and profiled and model.lower() != profiled.lower():
        found.append(f"the run is of {model}, the tables are of {profiled}")
    ran, gpu = place(engine.meta, "hardware.device_name"), tables.get("gpu")
    if ran and gpu and str(ran).lower() != str(gpu).lower():
        found.append(f"the run was on {ran}, the tables are of {gpu}")
    return found


def _degree(folder: Path, tables: Mapping[str, Any]) -> int | None:
    """The degree of tensor parallelism in the folder's name, or the only one that `meta.yaml` names."""
    tail = folder.name.rpartition("-")[2] if "-" in folder.name else folder.name
    if tail.startswith("tp") and tail[2:].isdigit():
        return int(tail[2:])
    degrees = tables.get("tp_degrees") or []
    return degrees[0] if len(degrees) == 1 else None
