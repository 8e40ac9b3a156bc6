"""Compiled code is kept on disk where that is possible, and compiled anew where it is not."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba import njit


def cached_njit(*signature: Any, calls: ModuleType | None = None, **options: Any) -> Callable[..., Any]:
    """`numba.njit(cache=True)` that outlives a read-only home and a full disk.

    The cache is beside the source or in the user's home, else in a folder for temporary files, else there is none.

    Args:
        calls: another module whose compiled functions this one calls (it must have no `signature`). numba looks at the
            file of a function only, and would go on with what it compiled before that module changed.
    """

    compiler: Any = njit

    def decorate(function: Callable[..., Any]) -> Any:
        for place in (None, _temporary):
            if place:
                numba.config.CACHE_DIR = place()  # type: ignore[attr-defined]
            try:
                return _dated(_forgiving(compiler(*signature, cache=True, **options)(function)), calls)
            except RuntimeError:  # numba finds no place it can write to
                continue
            except OSError:  # the disk is full
                break
        return compiler(*signature, **options)(function)

    return decorate


def _forgiving(kernel: Any) -> Any:
    """The kernel; that what it is compiled to later can't be kept is no error."""
    cache: Any = getattr(kernel, "_cache", None)
    save = getattr(cache, "save_overload", None)
    if save is not None:

        def save_if_possible(sig: Any, data: Any) -> None:
            with suppress(OSError):
                save(sig, data)

        cache.save_overload = save_if_possible
    return kernel


def _dated(kernel: Any, calls: ModuleType | None) -> Any:
    """The kernel, which is compiled anew when the file of `calls` has changed, too."""
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if calls and calls.__file__ and index:
        changed = os.stat(calls.__file__)
        index._source_stamp = index._source_stamp, changed.st_mtime, changed.st_size
    return kernel


def _temporary() -> str:
    """A folder that only this user can write to: what lies there is run."""
    path = Path(tempfile.gettempdir()) / f"kvlab-{os.getuid() if hasattr(os, 'getuid') else 'kernels'}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022 and found.st_uid == os.getuid():
            return str(path)
        return tempfile.mkdtemp(prefix="kvlab-")
    except (OSError, AttributeError):
        return ""
