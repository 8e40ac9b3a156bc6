"""The latency model that a configuration names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from harness.errors import HarnessError
from harness.files import parse_yaml
from harness.layout.weights import Weights
from harness.lookup import hint
from harness.naming.names import model_name
from harness.runner.latency.fitted import FittedLatency
from harness.runner.latency.roofline import Roofline
from harness.runner.latency.table import TableLatency
from harness.runner.latency.table_files import read_meta

if TYPE_CHECKING:
    from harness.runner.simulated_device import SimulatedDevice

PRESETS = Path(__file__).parent / "presets"


def choose_latency(device: SimulatedDevice) -> Any:
    """The latency model that `device.latency` names.

    It is `roofline` (of `device.hardware` and the model), `operators` (measured ones, see
    `harness.operators.device`), the name of a preset, a YAML file with a `_target_` (as
    `experiment=calibrate` writes it), the `steps.csv` of a run to fit, a folder of measured kernel tables, or a mapping
    with a `_target_`.

    Raises:
        HarnessError: it is none of these, or what it names can't be read or built.
    """
    wanted = device.cfg.device.latency
    if wanted is None:
        raise HarnessError("device.latency is null: a simulated device needs a latency model")
    try:
        if isinstance(wanted, DictConfig):
            return instantiate(wanted, _convert_="all")
        if wanted == "roofline":
            machine = device.machine("device.latency=roofline")
            return Roofline(machine, device.weights, device.devices, layout=device.layout)
        if wanted == "operators":
            from harness.operators.device import open_operators

            return open_operators(device.cfg, device.weights.text)
        return _named(str(wanted), device)
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


def _named(name: str, device: SimulatedDevice) -> Any:
    preset, path = PRESETS / f"{name}.yaml", Path(name)
    if preset.is_file() or path.suffix in (".yaml", ".yml"):
        values = parse_yaml((preset if preset.is_file() else path).read_text(encoding="utf-8"))
        made = instantiate(OmegaConf.create(values), _convert_="all")
        if not hasattr(made, "step_ns"):
            raise HarnessError(f"device.latency={name}: the file names no latency model; it must have a _target_, as "
                               "experiment=calibrate writes it")  # fmt: skip
        return made
    if path.is_dir():
        return _table(path, device.weights)
    if path.is_file():
        return FittedLatency.fit(pd.read_csv(path))
    names = ["roofline", "operators", *sorted(known.stem for known in PRESETS.glob("*.yaml"))]
    raise HarnessError(
        f"device.latency={name}: there are {', '.join(names)}, or a YAML file, the steps.csv of a run or a folder of "
        f"kernel tables{hint(name, names)}"
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
