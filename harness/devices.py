"""What a job runs on. The kinds of devices differ here and in the modules named here, and nowhere else.

A module of a kind has two functions: `open_device(cfg, asked)` and `layout_for(cfg)`, as described below.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from harness.errors import HarnessError

if TYPE_CHECKING:  # the schema reads this file, before it is known whether what follows runs compiled
    from omegaconf import DictConfig

    from allocators.base import Allocator
    from allocators.layout import KVLayout
    from harness.runner.base import Runner


class DeviceKind(NamedTuple):
    """A value of `device.kind`.

    Attributes:
        home: the module that opens such devices.
        runs: `here`: the program computes every step; `simulated`: it says how long each would take; `elsewhere`: a
            server computes them, which requests are sent to. Such a kind opens no device: its home has `serve_live`.
        clocks: that go with it; the first is what `clock=auto` means.
    """

    home: str
    runs: Literal["here", "simulated", "elsewhere"]
    clocks: tuple[str, ...]


_TORCH = DeviceKind("harness.runner.torch_device", "here", ("measured", "wall"))
KINDS = {
    "auto": _TORCH,
    "cpu": _TORCH,
    "cuda": _TORCH,
    "simulated": DeviceKind("harness.runner.simulated_device", "simulated", ("virtual",)),
    "server": DeviceKind("harness.live.serve", "elsewhere", ("wall",)),
}
SIMULATED = [name for name, kind in KINDS.items() if kind.runs == "simulated"]
HERE = [name for name, kind in KINDS.items() if kind.runs == "here"]


class Sampler(Protocol):
    """Watches the hardware while it is entered; `facts` afterwards."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *exc: Any) -> Any: ...

    def facts(self, tokens: int) -> dict[str, Any]:
        """What the summary says of it, for so many output tokens."""


class Device(Protocol):
    """A device with a model on it, opened for one job. What could be refused has been.

    Attributes:
        facts: what `environment.json` says of it; more when it has a runner.
        name: in tables.
        layout: what the model keeps on it of a sequence.
        capacity: of its pool, in units of the layout.
        warnings: what its user should know, a sentence each.
        sampler: None = there is nothing to watch.
    """

    facts: dict[str, Any]

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> KVLayout: ...

    @property
    def capacity(self) -> int: ...

    @property
    def warnings(self) -> list[str]: ...

    @property
    def sampler(self) -> Sampler | None: ...

    def runner(self, allocator: Allocator) -> Runner:
        """A runner with an empty pool for `allocator`, warmed up."""


def open_device(cfg: DictConfig, asked: Collection[str] = ()) -> Device:
    """The device that `device.kind` names, for one job.

    Args:
        cfg: the whole configuration.
        asked: dotted keys given on the command line.

    Raises:
        HarnessError: whatever of it can't be had or is not modelled; it is known before anything runs.
    """
    device: Device = _opener(cfg).open_device(cfg, asked)
    return device


def layout_for(cfg: DictConfig) -> KVLayout:
    """What the model of `cfg` keeps on its device, as far as its config tells: nothing is opened.

    Raises:
        HarnessError: it is not known, or the devices can't share its heads.
    """
    layout: KVLayout = _opener(cfg).layout_for(cfg)
    return layout


def clock_name(cfg: DictConfig) -> str:
    """The clock that a job runs under."""
    return KINDS[cfg.device.kind].clocks[0] if cfg.clock == "auto" else str(cfg.clock)


def must_run_here(cfg: DictConfig, who: str) -> None:
    """See that the device of `cfg` computes what `who` needs it for.

    Raises:
        HarnessError: it does not.
    """
    if KINDS[cfg.device.kind].runs != "here":
        raise HarnessError(f"{who}, and device={cfg.device.kind} has none: use device=cpu or device=cuda")


def is_elsewhere(cfg: DictConfig) -> bool:
    """Whether requests go to a server, whose steps and pool are its own."""
    return "device" in cfg and KINDS[cfg.device.kind].runs == "elsewhere"


def home_of(cfg: DictConfig) -> Any:
    """The module of the device of `cfg`."""
    return import_module(KINDS[cfg.device.kind].home)


def _opener(cfg: DictConfig) -> Any:
    if is_elsewhere(cfg):
        raise HarnessError(f"device={cfg.device.kind}: a server is only sent requests; its model and pool are its own")
    return home_of(cfg)
