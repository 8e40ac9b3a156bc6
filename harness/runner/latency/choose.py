"""From what the configuration says of a simulated device to a latency model and a pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from allocators.layout import KVLayout
from harness.errors import HarnessError
from harness.layout import layout_of
from harness.names import model_name
from harness.runner.latency.fitted import FittedLatency
from harness.runner.latency.hardware import Hardware, load_hardware
from harness.runner.latency.moves import MoveCosts
from harness.runner.latency.roofline import Roofline
from harness.runner.latency.table import TableLatency
from harness.runner.latency.table_files import read_meta
from harness.runner.latency.weights import Weights, weights_of
from harness.runner.model import read_config
from harness.runner.pool import pool_units

PRESETS = Path(__file__).parent / "presets"
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def choose_latency(cfg: DictConfig) -> Any:
    """The latency model that `device.latency` names.

    It is `roofline` (of `device.hardware` and the model), `operators` (measured ones, see
    `harness.operators.device`), the name of a preset, a YAML file with a `_target_` (as
    `experiment=calibrate` writes it), the `steps.csv` of a run to fit, a folder of measured kernel tables, or a mapping
    with a `_target_`.

    Raises:
        HarnessError: it is none of these, or what it names can't be read or built.
    """
    wanted = cfg.device.latency
    if wanted is None:
        raise HarnessError("device.latency is null: a simulated device needs a latency model")
    try:
        if isinstance(wanted, DictConfig):
            return instantiate(wanted, _convert_="all")
        if wanted == "roofline":
            machine = hardware_of(cfg, "device.latency=roofline")
            return Roofline(machine, model_config(cfg), _devices(cfg), layout=simulated_layout(cfg))
        if wanted == "operators":
            from harness.operators.device import open_operators

            return open_operators(cfg, model_config(cfg))
        return _named(str(wanted), cfg)
    except HarnessError:
        raise
    except Exception as error:
        cause = error.__cause__ or error
        raise HarnessError(f"device.latency={wanted} can't be built: {cause}") from error


def who(cfg: DictConfig) -> str:
    """Whose step times a simulated device has, in short."""
    wanted = cfg.device.latency
    if wanted == "operators":
        return f"operators of {cfg.device.engine} on {cfg.device.hardware} x {cfg.device.tensor_parallel}"
    if wanted == "roofline":
        machine = cfg.device.hardware if isinstance(cfg.device.hardware, str) else "a machine of one's own"
        many = f" x {cfg.device.tensor_parallel}" if cfg.device.tensor_parallel > 1 else ""
        return f"roofline of {Path(machine).stem}{many}"
    if isinstance(wanted, DictConfig):
        return str(wanted.get("_target_", "")).rpartition(".")[2]
    return Path(str(wanted)).name


def mismatch(cfg: DictConfig, asked: Collection[str]) -> list[str]:
    """A warning where a model or a machine was chosen, and the step times are those of a preset that nobody chose."""
    wanted = cfg.device.latency
    if "device.latency" in asked or not isinstance(wanted, str) or not (PRESETS / f"{wanted}.yaml").is_file():
        return []
    chosen = [key for key in ("model", "device.hardware") if any(f"{name}.".startswith(f"{key}.") for name in asked)]
    if not chosen or wanted.startswith(model_name(cfg.model).replace("_", "-")):
        return []
    them = " and ".join(chosen)
    return [f"step times are those of {wanted}, whatever {them} may be; device.latency=roofline goes by them"]


def move_costs(cfg: DictConfig) -> MoveCosts | None:
    """What copies and swaps cost on `device.hardware`; None where no hardware is named."""
    if cfg.device.hardware is None:
        return None
    return MoveCosts.of(simulated_layout(cfg), hardware_of(cfg, ""))


def simulated_layout(cfg: DictConfig) -> KVLayout:
    """What the model of `cfg` keeps on a simulated device.

    Raises:
        HarnessError: it is not known, or the devices can't share its heads.
    """
    return layout_of(model_config(cfg), element_bytes(cfg), tensor_parallel=_devices(cfg))


def simulated_slots(cfg: DictConfig, layout: KVLayout | None = None) -> int:
    """Slots (units of the layout) in the pool of a simulated device; weights are all that lies beside it.

    Raises:
        HarnessError: as `pool_units`, or a share of a memory whose size `device.hardware` does not say.
    """
    device_bytes = weight_bytes = 0
    if cfg.gpu_memory_utilization is not None:
        machine = hardware_of(cfg, "gpu_memory_utilization")
        device_bytes = machine.memory_bytes * _devices(cfg)
        weight_bytes = model_weights(cfg).parameters * element_bytes(cfg)
    return pool_units(cfg, layout or simulated_layout(cfg), device_bytes, weight_bytes)


def model_weights(cfg: DictConfig) -> Weights:
    """Of `cfg.model`."""
    return weights_of(model_config(cfg))


def model_config(cfg: DictConfig) -> Any:
    """Of `cfg.model`. A config written out is taken as it is: `transformers` takes seconds to import."""
    model: Any = OmegaConf.to_container(cfg.model, resolve=True)
    config = model.get("config")
    plain = not model.get("path") and isinstance(config, Mapping) and "hidden_size" in config
    return config if plain else read_config(model)


def hardware_of(cfg: DictConfig, who: str) -> Hardware:
    """The machine that `device.hardware` names, which `who` needs."""
    if cfg.device.hardware is None:
        raise HarnessError(f"{who} needs device.hardware, for example device.hardware=a100_40gb")
    wanted = cfg.device.hardware
    machine = load_hardware(wanted if isinstance(wanted, str) else OmegaConf.to_container(wanted))  # type: ignore[arg-type]
    size = ELEMENT_BYTES.get(cfg.device.get("dtype"))
    return replace(machine, element_bytes=size) if size else machine


def element_bytes(cfg: DictConfig) -> int:
    """Bytes of a weight, and of a number in the KV cache, on a simulated device.

    They follow `device.dtype` as on a real one; `auto` is what the hardware says, and 2 where none is named.
    """
    if cfg.device.hardware is not None:
        return hardware_of(cfg, "").element_bytes
    return ELEMENT_BYTES.get(cfg.device.get("dtype"), 2)


def _devices(cfg: DictConfig) -> int:
    wanted = cfg.device.tensor_parallel
    if type(wanted) is not int or wanted < 1:
        raise HarnessError(f"device.tensor_parallel={wanted}: must be a whole number of devices, at least 1")
    return wanted


def _named(name: str, cfg: DictConfig) -> Any:
    preset, path = PRESETS / f"{name}.yaml", Path(name)
    if preset.is_file() or path.suffix in (".yaml", ".yml"):
        values = yaml.safe_load((preset if preset.is_file() else path).read_text(encoding="utf-8"))
        return instantiate(OmegaConf.create(values), _convert_="all")
    if path.is_dir():
        return _table(path, model_weights(cfg))
    if path.is_file():
        return FittedLatency.fit(pd.read_csv(path))
    names = ["roofline", "operators", *sorted(known.stem for known in PRESETS.glob("*.yaml"))]
    near = get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise HarnessError(
        f"device.latency={name}: there are {', '.join(names)}, or a YAML file, the steps.csv of a run or a folder of "
        f"kernel tables{hint}"
    )


def _table(folder: Path, weights: Weights) -> TableLatency:
    """The tables of `folder`, if they are of a model with the configured heads, or of a whole share of them."""
    meta = read_meta(folder)
    shape = meta.get("engine_effective", {}).get("hf_overrides", {})
    heads, kv_heads = (
        shape.get("num_attention_heads", weights.heads),
        shape.get("num_key_value_heads", weights.kv_heads),
    )
    if weights.heads % heads or weights.heads * kv_heads != weights.kv_heads * heads:
        raise HarnessError(
            f"device.latency={folder}: the tables are of {meta.get('model')} ({heads} heads, {kv_heads} for KV), not "
            f"of a model with {weights.heads} and {weights.kv_heads}: choose its shape with model=..."
        )
    return TableLatency.load(folder, weights.layers)
