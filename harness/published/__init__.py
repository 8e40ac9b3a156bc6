"""Published numbers, as small files with their source: what others measured, to stand beside what is measured here."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError

FOLDER = Path(__file__).parent

# What the papers call the systems that are called otherwise here.
THEIRS = {"static + contiguous(max_model_len)": "FasterTransformer"}

Curve = list[list[float]]  # [x, y] points; a third value of 1 marks one that its axis clips


@cache
def load(name: str) -> dict[str, Any]:
    """A file of this folder, without its ending.

    Raises:
        HarnessError: there is no such file.
    """
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in FOLDER.glob("*.json"))) or "none"
        raise HarnessError(f"no published numbers {name!r} in {FOLDER}; there are {there}")
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def source(name: str) -> str:
    """``Fig. 12, arXiv 2309.06180``, or the article."""
    told = load(name)["source"]
    return f"Fig. {told['figure']}, arXiv {told['arxiv']}" if "figure" in told else str(told["article"])


def curve(name: str, panel: str, system: str) -> Curve:
    """The points of a curve, empty when nobody drew one.

    Args:
        panel: `MODEL_WORKLOAD`, as in the file.
        system: our label.
    """
    points: Curve = load(name)["panels"].get(panel, {}).get(THEIRS.get(system, system), [])
    return points


def rates(name: str, panel: str, system: str) -> list[float]:
    """The rates of its points that lie within the axes, each once."""
    return sorted({point[0] for point in curve(name, panel, system) if len(point) == 2})


def crossing(points: Curve, limit: float) -> float | None:
    """Where a rising curve first passes `limit`, on the straight line between its points; None if it never does."""
    for (x0, y0, *_), (x1, y1, *_) in pairwise(points):
        if y0 <= limit < y1:
            return float(np.interp(limit, [y0, y1], [x0, x1]))
    return None
