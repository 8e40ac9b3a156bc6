"""The batch timeline: the phases of each request over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.files import records
from harness.metrics.memory_map import FILE

PHASES = {
    "waiting": "arrived, waits for a place",
    "prefill": "its prompt is computed",
    "decode": "it gets its tokens",
    "preempted": "its slots were taken away; it will be computed again",
    "swapped": "it lies in host memory",
    "idle": "finished, but its lane and slots are held until the batch ends",
}
MOST = 240  # requests on a timeline
COLUMNS = ["status", "id", "arrival_s", "first_scheduled_s", "first_token_s", "last_token_s", "prompt_tokens",
           "output_tokens", "preemptions"]  # fmt: skip


def lanes(folder: Path) -> dict[str, Any] | None:
    """The first requests of a job in the order in which they were scheduled; None if none was.

    Returns:
        `requests`: their ids, one row each; `facts`: a text for each; `spans`: (row, phase, start s, end s); `of`: how
        many requests were scheduled in all.
    """
    table = pd.read_csv(folder / "requests.csv", usecols=COLUMNS)
    table = table[table["first_scheduled_s"].notna()].sort_values(["first_scheduled_s", "id"])
    if table.empty:
        return None
    of, table = len(table), table.head(MOST).reset_index(drop=True)
    end = float(np.nanmax(table[["last_token_s", "first_scheduled_s"]].to_numpy()))
    rows = {int(number): row for row, number in enumerate(table["id"])}
    away = _away(folder, rows)
    held = _held_after(folder, rows)
    spans: list[tuple[int, str, float, float]] = []
    for row, request in enumerate(records(table)):
        begun, first, last = (request[f"{name}_s"] for name in ("first_scheduled", "first_token", "last_token"))
        phases = [("waiting", request["arrival_s"], begun), ("prefill", begun, first if first == first else end)]
        if first == first:
            phases.append(("decode", first, last))
        gone = away.get(row, [])
        for phase, start, stop in phases:
            spans += [(row, phase, *piece) for piece in _without(start, stop, gone if phase != "waiting" else [])]
        spans += [(row, event, start, min(stop, end)) for event, start, stop in gone]
        if row in held and held[row] > last:
            spans.append((row, "idle", last, held[row]))
    facts = [
        f"request {row['id']}: {row['prompt_tokens']:.0f} + {row['output_tokens']:.0f} tokens"
        + (f", preempted {row['preemptions']:.0f} ×" if row["preemptions"] else "")
        for row in records(table)
    ]
    kept = [(row, phase, round(start, 6), round(stop, 6)) for row, phase, start, stop in spans if stop > start]
    return {"requests": table["id"].tolist(), "facts": facts, "spans": kept, "of": of}


def _away(folder: Path, rows: dict[int, int]) -> dict[int, list[tuple[str, float, float]]]:
    """By row, the spans in which a request held no slots after it was first scheduled: (event, start, end)."""
    path = folder / "events.csv"
    if not path.exists():
        return {}
    found: dict[int, list[tuple[str, float, float]]] = {}
    open_: dict[int, tuple[str, float]] = {}
    for event in records(pd.read_csv(path)):
        row = rows.get(event["request"])
        if row is None:
            continue
        if event["event"] == "resumed":
            if row in open_:
                found.setdefault(row, []).append((*open_.pop(row), event["start_s"]))
        else:
            open_[row] = event["event"], event["start_s"]
    for row, begun in open_.items():
        found.setdefault(row, []).append((*begun, np.inf))
    return found


def _held_after(folder: Path, rows: dict[int, int]) -> dict[int, float]:
    """By row, the first moment at which a finished request that kept its slots has given them back."""
    if not (folder / FILE).exists():
        return {}
    runs = pd.read_parquet(folder / FILE, columns=["start_s", "request", "kind"])
    moments = np.unique(runs["start_s"].to_numpy())
    held = runs[runs["kind"] == "finished_held"].groupby("request")["start_s"].max()
    after = np.searchsorted(moments, held.to_numpy(), side="right").clip(max=len(moments) - 1)
    until = zip(held.index.tolist(), moments[after].tolist(), strict=True)
    return {rows[number]: end for number, end in until if number in rows}


def _without(start: float, stop: float, gone: list[tuple[str, float, float]]) -> list[tuple[float, float]]:
    """A span without the parts in `gone`."""
    pieces, at = [], start
    for _, left, right in sorted(gone, key=lambda span: span[1]):
        if right <= at or left >= stop:
            continue
        pieces.append((at, max(left, at)))
        at = right
    pieces.append((at, max(stop, at)) if at < stop else (stop, stop))
    return pieces
