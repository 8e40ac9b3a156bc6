"""The few constants of a machine that no operator table holds, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from harness.errors import HarnessError

PATH = Path(__file__).with_name("machines.yaml")
NAMES = {"prompt_work": "gpu", "host_ms": "engine", "eager_kernel_us": "engine", "bare_kernel_us": "engine",
         "client_ms": "engine"}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A GPU with an engine on it.

    Attributes:
        prompt_work: products and attention of a prompt take so many times their operators, measured at top clocks.
        host_ms: what every step takes beside its kernels.
        eager_kernel_us: a step with a prompt takes no less a kernel (`Model.kernels`): each is launched by itself.
        bare_kernel_us: the same where nothing of such a step is compiled or captured in pieces (decodes alone are).
        client_ms: between a client's sending and the engine's seeing a request: HTTP, tokenising, a queue or two.
    """

    prompt_work: float = 1.0
    host_ms: float = 0.0
    eager_kernel_us: float = 0.0
    bare_kernel_us: float = 0.0
    client_ms: float = 0.0

    @classmethod
    def of(cls, gpu: str, engine: str, path: Path = PATH) -> Machine:
        """As `machines.yaml` has it; what it has no line for is its default."""
        values = _read(path)
        key = {"gpu": gpu, "engine": engine}
        return cls(**{name: values[name].get(key[of], values[name]["default"])[0] for name, of in NAMES.items()})

    @property
    def said(self) -> str:
        return ", ".join(f"{name} {getattr(self, name):g}" for name in NAMES)


@lru_cache(maxsize=8)
def _read(path: Path) -> Mapping[str, Any]:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name in NAMES:
        if not isinstance(values.get(name), dict) or "default" not in values[name]:
            raise HarnessError(f"{path} must give {name} a default")
    return values
