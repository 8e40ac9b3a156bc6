"""What a result was measured with: versions, commit, machine, threads."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import compiled
from harness.installation import commit, version

PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "numba",
    "numpy",
    "pandas",
    "matplotlib",
    "hydra-core",
    "aiohttp",
    "nvidia-ml-py",
)


def environment() -> dict[str, Any]:
    """Everything known without importing torch; the device adds its own facts."""
    return {
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "compiled": compiled.in_use(),
        **_of_this_process(),
    }


@cache
def _of_this_process() -> dict[str, Any]:
    """What was there when it began: what it has imported stays, whatever becomes of the files."""
    head, dirty = commit()
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        "version": version(),
        "commit": head,
        "dirty": dirty,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
