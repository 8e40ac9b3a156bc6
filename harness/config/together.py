"""What keys may be together: rules that the configuration alone decides, so that they are told before any work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from omegaconf import OmegaConf

from harness.devices import KINDS, SIMULATED
from harness.errors import HarnessError
from harness.files import missing
from harness.lookup import locate, nearest
from harness.schema.key import Values, at
from harness.schema.keys.run import MOST_SLOTS

FILES = ("workload.path", "validate.measured", "validate.meta", "model.config")
FOLDERS = ("validate.profile",)


def together(values: Values) -> list[str]:
    """The mistakes in a configuration whose keys are all well by themselves."""
    return [said for rule in RULES for said in rule(values)]


def _pool(values: Values) -> Iterator[str]:
    slots = values["kv_slots"]
    if slots is None and values["kv_bytes"] is None and values["gpu_memory_utilization"] is None:
        yield "kv_slots=None: one of kv_slots, kv_bytes and gpu_memory_utilization must say how large the KV pool is"
    if slots is not None and slots > MOST_SLOTS:
        size = _slot_bytes(values)
        would = f"; so many would take {slots * size / 1e9:,.0f} GB" if size else ""
        yield f"kv_slots={slots}: kv_slots must be a whole number from 1 to 2**31 - 1{would}"


def _slot_bytes(values: Values) -> int | None:
    """Of K and V of one token, in two bytes a number at least; None where the model's file would have to be read."""
    config = at(values, "model.config")
    if at(values, "model.path") is not None or not isinstance(config, Mapping) or "hidden_size" not in config:
        return None
    from harness.layout import layout_of

    try:
        return layout_of(config, 4 if at(values, "device.dtype") == "float32" else 2).token_bytes
    except HarnessError:  # said where the model is opened
        return None


def _tables(values: Values) -> Iterator[str]:
    if "csv" not in values["tables"]:
        yield f"tables={values['tables']}: csv must be among them, as reports read it: tables=[csv,parquet]"


def _clock(values: Values) -> Iterator[str]:
    clock, kind = values["clock"], at(values, "device.kind")
    if clock != "auto" and clock not in (right := KINDS[kind].clocks):
        yield f"clock={clock} does not go with device.kind={kind}; there clock must be auto, {' or '.join(right)}"


def _server(values: Values) -> Iterator[str]:
    if KINDS[at(values, "device.kind")].runs != "elsewhere":
        return
    if at(values, "server.url") is None:
        yield "server.url is null: device=server needs the server's address, such as server.url=http://localhost:8000"
        return
    from harness.config.server import Server

    try:
        Server.of(values["server"])
    except HarnessError as error:
        yield str(error)


def _simulated(values: Values) -> Iterator[str]:
    if at(values, "device.kind") in SIMULATED:
        if at(values, "device.latency") is None:
            yield "device.latency is null: a simulated device needs a latency model, such as device.latency=roofline"
        return
    for key in ("async_scheduling", "compiled"):
        if at(values, f"simulation.{key}"):
            yield f"simulation.{key}=true needs a simulated device: device=simulated"


def _workload(values: Values) -> Iterator[str]:
    """A search sets the arrivals itself, so only what is served as it stands is looked at."""
    if values["task"] != "harness.job.serve":
        return
    from harness.workload.settings import parse_settings

    try:
        parse_settings(values["workload"])
    except HarnessError as error:
        yield str(error)


def _heads(values: Values) -> Iterator[str]:
    config: Any = at(values, "model.config")
    if at(values, "model.path") is not None or not isinstance(config, dict):
        return
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        yield (f"model.config.num_key_value_heads={kv_heads}: model.config.num_attention_heads={heads} must be a "
               "multiple of it")  # fmt: skip
    if heads and config.get("hidden_size") and not config.get("head_dim") and config["hidden_size"] % heads:
        yield (f"model.config.num_attention_heads={heads}: model.config.hidden_size={config['hidden_size']} must be a "
               "multiple of it, or model.config.head_dim be set")  # fmt: skip


def _task(values: Values) -> Iterator[str]:
    """Its module is only looked for: what it imports must not be there before `compiled.use`."""
    module = values["task"].rpartition(".")[0]
    with suppress(ImportError, ValueError):
        if find_spec(module):
            return
    try:
        locate(values["task"], "task")
    except HarnessError as error:
        yield str(error)


def _choices(values: Values) -> Iterator[str]:
    """Names that another key lists."""
    for key, among in (("part", "parts"), ("case", "cases"), ("lengths", "lengths_of")):
        if key in values and among in values and values[key] not in values[among]:
            yield f"{key}={values[key]}: {among} has no such name{nearest(values[key], list(values[among]))}"


def _inputs(values: Values) -> Iterator[str]:
    """What is to be read is there. Where jobs run on other machines, it lies in a folder that all of them see."""
    for key in (*FILES, *FOLDERS):
        path, what = at(values, key), "folder" if key in FOLDERS else "file"
        if isinstance(path, str) and (said := missing(os.path.expanduser(path), what)):
            yield f"{key}={path}: {said}"


def _label(values: Values) -> Iterator[str]:
    """Nobody is called by the name of a published set-up who is another."""
    if values["label"] is None:
        return
    from harness.naming.labels import PUBLISHED, label

    cfg = OmegaConf.create({**values, "label": None})
    if values["label"] in {system.name for system in PUBLISHED} and (name := label(cfg)) != values["label"]:
        yield f"label={values['label']}: that is the name of a published set-up, and this is {name}; take another name"


Rule = Callable[[Values], Iterator[str]]
RULES: tuple[Rule, ...] = (
    _task,
    _pool,
    _tables,
    _clock,
    _server,
    _simulated,
    _workload,
    _heads,
    _choices,
    _inputs,
    _label,
)
