"""The memory map as a picture, small enough for a page: the content of each part of the pool at each moment."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.metrics.memory_map import FILE, KINDS

CELLS = 1024  # parts of the pool that are shown; in a larger pool each shows its middle slot
NOBODY = 0xFFFF


def pool_map(folder: Path, capacity: int, end_s: float) -> dict[str, Any] | None:
    """The pool of a job over time, for the page's script; None where the job kept no memory map.

    Args:
        capacity: slots of the pool; bytes where layers keep different tokens.
        end_s: when the run ended.

    Returns:
        `times`: start of each of T moments (s), and the end; `seen`: kinds that occur; `cells`: C, the number of parts;
        `slots`: slots of a part, or `bytes`; `kinds`, `requests`: ``[T, C]`` uint8 and uint16 (little endian),
        deflated, base64: index of `KINDS`, and the request's id modulo 65,535 (65,535 = of no request). A slot that
        several sequences share is drawn for one of them.
    """
    if not (folder / FILE).exists():
        return None
    runs = pd.read_parquet(folder / FILE)
    if runs.empty:
        return None
    times, moment = np.unique(runs["start_s"].to_numpy(), return_inverse=True)
    cells = min(CELLS, capacity)
    kinds, requests = _raster(runs, moment, len(times), capacity, cells)
    return {
        "times": [*times.round(6).tolist(), round(max(end_s, float(times[-1])), 6)],
        "cells": cells,
        "slots": capacity / cells,
        "capacity": capacity,
        "bytes": runs["first"].dtype == np.int64,  # a pool shared by layers that keep different tokens
        "seen": sorted({int(kind) for kind in np.unique(kinds)}),
        "kinds": _packed(kinds),
        "requests": _packed(requests.astype("<u2")),
    }


def _raster(runs: pd.DataFrame, moment: np.ndarray, moments: int, capacity: int,
            cells: int) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(kinds, requests), both ``[moments, cells]``: the content of the middle slot of each cell."""
    kind, request = runs["kind"].cat.codes.to_numpy(), runs["request"].to_numpy()
    first, slots = runs["first"].to_numpy(), runs["slots"].to_numpy()
    free = np.full(moments, KINDS.index("free"))
    told = first < 0  # rows that give the kind of all free slots at a moment
    free[moment[told]] = kind[told]
    kinds = np.repeat(free.astype(np.uint8)[:, None], cells, axis=1)
    requests = np.full((moments, cells), NOBODY, dtype=np.uint16)
    # Cell c shows slot floor((c + 1/2) * capacity / cells), so a run covers the cells from `low` to `high` - 1.
    low = np.ceil(first * cells / capacity - 0.5).astype(np.int64)
    high = np.ceil((first + slots) * cells / capacity - 0.5).astype(np.int64)
    length = np.where(told, 0, np.maximum(high - low, 0))
    run = np.repeat(np.arange(len(runs)), length)
    cell = np.arange(len(run)) - np.repeat(np.cumsum(length) - length, length) + low[run]
    kinds[moment[run], cell] = kind[run]
    owner = request[run]
    requests[moment[run], cell] = np.where(owner < 0, NOBODY, owner % NOBODY)
    return kinds, requests


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
