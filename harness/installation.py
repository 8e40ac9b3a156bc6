"""Where kvlab lies, in a checkout or installed, and which version of it this is."""

from __future__ import annotations

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _checkout() -> Path | None:
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "kernels" / "kvlab_kernels").is_dir() else None


CHECKOUT = _checkout()  # the repository, where the sources run in one
# Configurations and their data: a wheel holds them in this package, where they are in nobody's way.
EXPERIMENTS = (PACKAGE if (PACKAGE / "experiments").is_dir() else PACKAGE.parent) / "experiments"


def version() -> str | None:
    """Of the sources that run: a checkout's own, whatever is installed beside it."""
    if CHECKOUT:
        return str(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"])
    try:
        return metadata.version("kvlab")
    except metadata.PackageNotFoundError:
        return None


def commit() -> tuple[str | None, bool | None]:
    """(commit, whether there are changes) of the checkout; (None, None) outside one, whatever repository is around."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != CHECKOUT:
        return None, None
    status = _git("status", "--porcelain")
    return _git("rev-parse", "HEAD"), None if status is None else bool(status)


def _git(*arguments: str) -> str | None:
    if CHECKOUT is None:
        return None
    try:
        done = subprocess.run(("git", *arguments), cwd=CHECKOUT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
