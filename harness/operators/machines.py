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
        fp8_share: of its peak, that a GPU under its power cap keeps up in fp8 products.
        host_ms: what every step takes beside its kernels.
        eager_kernel_us: a step with a prompt takes no less a kernel (`Model.kernels`): each is launched by itself.
        bare_kernel_us: the same where nothing of such a step is compiled or captured in pieces (decodes alone are).
        tokenize_us: a token of a prompt, in the process in front of the engine, one prompt after the other.
        client_ms: between a client's sending and the engine's seeing a request beside that: HTTP, a queue or two.
    """

    fp8_share: float = 1.0
    host_ms: float = 0.0
    eager_kernel_us: float = 0.0
    bare_kernel_us: float = 0.0
    tokenize_us: float = 0.0
    client_ms: float = 0.0

    @classmethod
    def of(cls, gpu: str, engine: str, path: Path = PATH) -> Machine:
        """As `machines.yaml` has it; what it has no line for is its default."""
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
