"""kvlab: what the placement of the KV cache and the forming of batches cost an LLM server.

In a notebook: `simulate`, `make_workload`, `load_workload` and `open_device`, see `harness.library`.
"""

import sys
from typing import Any

from harness.installation import CHECKOUT

if CHECKOUT and (kernels := str(CHECKOUT / "kernels")) not in sys.path:  # its own, whatever is installed beside it
    sys.path.insert(0, kernels)

LIBRARY = ("Run", "load_workload", "make_workload", "open_device", "simulate")


def __getattr__(name: str) -> Any:
    """What belongs to the library, imported when it is first asked for: the command line needs none of it."""
    if name not in LIBRARY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness import library

    return getattr(library, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *LIBRARY])
