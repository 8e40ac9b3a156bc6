"""`device.latency=operators`: opens the tables, engine and model that a configuration names."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from harness.errors import HarnessError
from harness.operators.compose import Rules, compose
from harness.operators.folder import Tables, engine_and_version
from harness.operators.latency import OperatorLatency
from harness.operators.machines import Machine
from harness.operators.model import Model, Parallel, Precision

PARTS = {"mxfp4": Precision(experts="mxfp4"), "int4_wo": Precision(experts="int4_wo")}  # quantize experts only


def open_operators(cfg: DictConfig, config: Any) -> OperatorLatency:
    """The latency model of `device.tables`, `device.hardware` (a GPU in them), `device.engine` and
    `device.tensor_parallel`.

    Args:
        config: the model's.

    Raises:
        HarnessError: a missing key or table.
    """
    device = cfg.device
    for key, example in (("tables", "DIR, operator tables"), ("hardware", "h100_sxm"), ("engine", "vllm-0.24.0")):
        if device.get(key) is None:
            raise HarnessError(f"device.latency=operators needs device.{key}, for example device.{key}={example}")
    if not isinstance(device.hardware, str):
        raise HarnessError("device.latency=operators needs device.hardware to be the name of a GPU of the tables")
    engine, version = engine_and_version(device.engine)
    tables = Tables(device.tables, device.hardware, engine, version)
    kind = device.get("quantization") or "none"
    precision = PARTS.get(kind) or (Precision(kind, kind, kind) if kind != "none" else Precision())
    if str(device.get("kv_dtype") or "").startswith("fp8"):
        precision = Precision(precision.attention, precision.mlp, precision.experts, "fp8")
    machine, rules = Machine.of(device.hardware, engine), Rules.without(list(device.get("without") or ()))
    costs = compose(Model.of(config), tables, Parallel(device.tensor_parallel), precision, machine, rules)
    said = [f"operators of {engine} {tables.version} on {device.hardware}", *tables.notes, f"constants: {machine.said}"]
    return OperatorLatency(costs, "; ".join(said))
