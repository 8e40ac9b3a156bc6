"""The few constants of a machine that no operator table holds, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from harness.errors import HarnessError

PATH = Path(__file__).with_name("machines.yaml")


@dataclass(frozen=True)
class Machine:
    """A GPU with an engine on it.

    Attributes:
        fp8_share: share of its peak that a GPU sustains in fp8 products under its power cap.
        host_ms: host time of every step, added to its kernels.
        eager_kernel_us: least time per kernel (`Model.kernels`) of a step with a prompt, each being launched by itself.
        bare_kernel_us: the same if no part of such a step is compiled or captured (only decodes are).
        tokenize_us: time to tokenize one token of a prompt, in the process in front of the engine, one prompt after the
            other.
        client_ms: further time from a client's sending a request to the engine's seeing it: HTTP, queues.
    """

    fp8_share: float = 1.0
    host_ms: float = 0.0
    eager_kernel_us: float = 0.0
    bare_kernel_us: float = 0.0
    tokenize_us: float = 0.0
    client_ms: float = 0.0

    @classmethod
    def of(cls, gpu: str, engine: str, path: Path = PATH) -> Machine:
        """The constants of `machines.yaml`, or its defaults."""
        values = _read(path)
        return cls(**{name: values[name].get(whose(name, gpu, engine), values[name]["default"])[0] for name in NAMES})

    @property
    def said(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items())


NAMES = tuple(one.name for one in fields(Machine))


def whose(name: str, gpu: str, engine: str) -> str:
    """Of which of them a constant is."""
    return gpu if name == "fp8_share" else engine


@lru_cache(maxsize=8)
def _read(path: Path) -> Mapping[str, Any]:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name in NAMES:
        if not isinstance(values.get(name), dict) or "default" not in values[name]:
            raise HarnessError(f"{path} must give {name} a default")
    return values
