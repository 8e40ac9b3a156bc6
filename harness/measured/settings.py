"""The settings of client and engine of a measured row, from a table of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from harness.errors import HarnessError
from harness.lookup import hint
from harness.operators.folder import ENGINES
from harness.operators.model import Parallel, Precision

PATH = Path(__file__).with_name("settings.yaml")
DEVICES = 8  # of a node; no run of the table spans two
MODES = {"": "bfloat16", "bf16": "bfloat16"}  # others are called as in the operator tables


@dataclass(frozen=True)
class Row:
    """A row of measured runs, under our names.

    Attributes:
        clients: requests in flight at one engine, or at a group in lockstep.
        seen: the columns that rules look at.
        notes: entries that were interpreted differently from what they say.
    """

    number: int
    name: str
    model: str
    gpu: str
    engine: str
    version: str
    isl: int
    osl: int
    clients: int
    parallel: Parallel
    mode: tuple[str, str]
    seen: Mapping[str, Any] = field(hash=False, compare=False, default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The settings of engine and client of a row, which of them are assumed, and their sources.

    Attributes:
        budget: tokens of a step; 0 = enough for one prompt and a step of decodes, in multiples of 64, as in
            TensorRT-LLM's scripts with MTP: (drafts + 1) x batch + isl + 64.
        launched: how kernels of a step with a prompt are launched: `eager`, `bare` (not even compiled) or `captured` in
            pieces.
        drafts, accepted: tokens drafted per step, and the probability that one is accepted if those before it are.
    """

    shortest: float
    rounds: int
    budget: int
    lanes: int
    ahead: int
    kv: str
    utilization: float
    block: int
    wait_steps: int
    wait_ratio: float
    poll_steps: int
    experts: str
    fuses: bool
    launched: str
    balance_steps: int
    overlaps: bool
    drafts: int
    accepted: float
    sources: tuple[str, ...]

    @property
    def grows(self) -> float:
        """Mean tokens of a decode step: one, and each draft if those before it were accepted."""
        return sum(self.accepted**i for i in range(self.drafts + 1))


def read_row(number: int, values: Mapping[str, Any]) -> Row:
    """Read a row of the table.

    Raises:
        HarnessError: it is not a valid run.
    """
    text = {key: "" if value is None or value != value else value for key, value in values.items()}
    tensor, isl, osl, batch = (_whole(text, name, 1) for name in ("tp_size", "isl", "osl", "batch_size"))
    experts = _whole(text, "moe_tp_size", 0), _whole(text, "moe_ep_size", 0)
    if text["backend"] not in ENGINES:
        raise HarnessError(f"backend={text['backend']}: must be one of {', '.join(ENGINES)}"
                           f"{hint(str(text['backend']), ENGINES)}")  # fmt: skip
    if _whole(text, "pp_size", 0) > 1:
        raise HarnessError(f"pp_size={text['pp_size']}: pipeline stages are not modelled")
    clients = _whole(text, "concurrency", 0) or batch
    notes: list[str] = []
    data = _whole(text, "attention_dp_size", 0)
    parallel = _parallel(tensor, data, *experts, notes)
    if str(text["origin"]) == "dynamo":  # several workers: one of them
        if clients != batch:
            notes.append(f"one of {clients / batch:g} workers, with {batch} of {clients} requests")
        clients = batch
    seen = {"origin": text["origin"], "engine": text["backend"], "version": str(text["backend_version"]),
            "model": text["model_path"], "gpu": text["system"], "precision": text["precision"], "isl": isl, "osl": osl,
            "tensor": parallel.devices, "data": parallel.data, "experts": parallel.expert, "concurrency": clients,
            "measured": str(text["measured"])}  # fmt: skip
    mode = (str(text["gemm_quant_mode"]), str(text["moe_quant_mode"]))
    return Row(number, str(text["id"]), str(text["model_path"]), str(text["system"]), str(text["backend"]),
               str(text["backend_version"]), isl, osl, clients, parallel, mode, seen,
               tuple(notes))  # fmt: skip


def _whole(text: Mapping[str, Any], name: str, least: int) -> int:
    """A column's whole number, at least `least`; an empty cell is 0 if that is allowed."""
    value = text[name] if text[name] != "" or least else 0
    try:
        number = int(float(value))
        if number != float(value):
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise HarnessError(f"{name}={value} is no whole number") from error
    if number < least:
        raise HarnessError(f"{name}={value} is no size")
    return number


def _parallel(tensor: int, data: int, inner: int, expert: int, notes: list[str]) -> Parallel:
    """The parallelism. Some rows multiply attention's degree by the experts': no node has that many devices.

    `tp 64, experts 8 x 8` is 8 devices that share attention and hold an eighth of the experts each; with
    `attention_dp_size` as large it is 8 engines of one device.
    """
    inner, expert = max(inner, 1), max(expert, 1)
    whole = tensor * max(data, 1)
    if whole > DEVICES or inner * expert > DEVICES:
        devices = max(tensor if tensor <= DEVICES else 1, inner if inner <= DEVICES else 1, 1)
        notes.append(f"tp {tensor}, dp {data}, experts {inner} x {expert} read as {devices} devices")
        if data > 1:
            return Parallel(1, devices, 1, devices)
        return Parallel(devices, 1, 1, devices)
    if data == 0 and inner * expert > tensor and not inner * expert % tensor:
        data = inner * expert // tensor
        notes.append(f"attention_dp_size is not said: {data}, for {inner} x {expert} devices share the experts")
    data = max(data, 1)
    if inner * expert != tensor * data:
        inner, expert = tensor * data, 1
    return Parallel(tensor, data, inner, expert)


def settings_of(row: Row, path: Path = PATH) -> Settings:
    """The settings that the table of rules gives a row."""
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for rule in _read(path)["rules"]:
        if all(_holds(row.seen[key], wanted) for key, wanted in rule["where"].items()):
            found |= rule["set"]
            sources |= dict.fromkeys(rule["set"], rule["source"])
    by: dict[str, list[str]] = {}
    for name, source in sources.items():
        by.setdefault(source, []).append(name)
    return Settings(**found, sources=tuple(f"{', '.join(names)}: {source}" for source, names in by.items()))


def precision_of(row: Row, config: Mapping[str, Any], settings: Settings, path: Path = PATH) -> Precision:
    """Element types of the row's checkpoint."""
    gemm, experts = (MODES.get(mode, mode) for mode in row.mode)
    if (config.get("quantization_config") or {}).get("weight_block_size"):
        gemm, experts = (f"{mode}_block" if mode == "fp8" else mode for mode in (gemm, experts))
    parts = {"attention": gemm, "mlp": gemm, "experts": experts}
    for rule in _read(path)["checkpoints"]:
        if _holds(row.model, rule["model"]) and _holds(
            row.seen["precision"], rule.get("precision", [row.seen["precision"]])
        ):
            parts |= {part: rule[part] for part in parts if part in rule}
    return Precision(**parts, kv=settings.kv)


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    if isinstance(wanted, dict):
        if value == "":
            return False
        one, least, below = (_ordered(part) for part in (value, wanted.get("least"), wanted.get("below")))
        return (least is None or one >= least) and (below is None or one < below)
    return bool(value == wanted)


def _ordered(value: Any) -> Any:
    """Numbers unchanged, versions and dates as lists of their numbers, for comparison."""
    if isinstance(value, str):
        return [int("".join(c for c in part if c.isdigit()) or 0) for part in value.replace("-", ".").split(".")]
    return value


@lru_cache(maxsize=4)
def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values
