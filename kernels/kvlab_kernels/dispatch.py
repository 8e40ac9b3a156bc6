"""Which kernels run on a device: the one place that chooses, and that says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_MODULES = {
    "torch": ("kvlab_kernels.torch_backend",),
    "numba": ("kvlab_kernels.numba_backend",),
    "triton": ("kvlab_kernels.triton_decode", "kvlab_kernels.triton_prefill", "kvlab_kernels.triton_moves"),
}
_OPERATIONS = (
    "decode_attention",
    "prefill_attention",
    "write_kv",
    "copy_slots",
    "move_slots",
    "swap_out",
    "swap_in",
)


@dataclass(frozen=True)
class Backend:
    """The kernels of one backend; their arguments are described in `kvlab_kernels.torch_backend`.

    Attributes:
        name: ``torch``, ``numba`` or ``triton``.
        reason: why this one was chosen, for the records of a run.
    """

    name: str
    reason: str
    decode_attention: Callable[..., torch.Tensor]
    prefill_attention: Callable[..., torch.Tensor]
    write_kv: Callable[..., None]
    copy_slots: Callable[..., None]
    move_slots: Callable[..., None]
    swap_out: Callable[..., None]
    swap_in: Callable[..., None]


def backend_for(device: torch.device | str, dtype: torch.dtype, name: str = "auto") -> Backend:
    """Return the kernels for a device and dtype.

    Args:
        device: where the pool lies.
        dtype: of the pool.
        name: ``auto``, or a backend to insist on: ``torch``, ``numba`` or ``triton``.

    Raises:
        ValueError: no backend has this name.
        ImportError: the backend insisted on needs a package that is not installed.
    """
    if name == "auto":
        return _load(*_choose(str(device).partition(":")[0], str(dtype)))
    if name not in _MODULES:
        nearest = get_close_matches(name, ["auto", *_MODULES], n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"no kernel backend is called {name!r}; there are auto, {', '.join(_MODULES)}{hint}")
    return _load(name, "asked for by name")


def _choose(device_type: str, dtype: str) -> tuple[str, str]:
    """Name and reason of the fastest backend for a device type (``cpu``) and a dtype (``torch.float32``)."""
    if device_type == "cuda":
        if find_spec("triton") is None:
            return "torch", "triton is not installed"
        return "triton", "device is cuda"
    if device_type != "cpu":
        return "torch", f"no kernels of our own for device {device_type}"
    if dtype != "torch.float32":
        return "torch", f"the CPU kernels are for torch.float32, not {dtype}"
    if find_spec("numba") is None:
        return "torch", "numba is not installed"
    return "numba", "device is cpu, dtype is torch.float32"


def _load(name: str, reason: str) -> Backend:
    """Import a backend's modules, and no other's."""
    modules = [import_module(module) for module in _MODULES[name]]
    kernels = {name: getattr(module, name) for module in modules for name in _OPERATIONS if hasattr(module, name)}
    return Backend(name, reason, **kernels)
