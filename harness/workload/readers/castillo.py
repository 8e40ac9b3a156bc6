"""castillo: several sampled outputs for each prompt; one is taken, chosen by the seed or by `workload.sample`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from harness.workload.errors import WorkloadError
from harness.workload.readers.format import ABSENT, Choice, Columns, Format
from harness.workload.streams import stream

_NOTE = "one of several recorded outputs per row: drawn from the seed, or workload.sample"


def _output_names(header: Sequence[str]) -> list[str]:
    return sorted((name for name in header if re.fullmatch(r"output_\d+", name)), key=lambda name: int(name[7:]))


def _from_columns(columns: Columns, choice: Choice) -> Columns:
    names = _output_names(list(columns))
    rows = [list(outputs) for outputs in zip(*(columns[name] for name in names), strict=True)]
    return {"input_size": columns["input_size"], "output": _choose(rows, choice)}


def _from_lists(columns: Columns, choice: Choice) -> Columns:
    return {"input_size": columns["input_size"], "output": _choose(columns["output_sizes"], choice)}


def _choose(rows: list[Any], choice: Choice) -> list[Any]:
    # Drawn by the row's position, so that a limit or a dropped row changes no other row's output.
    draws = stream(choice.seed, "recorded outputs", choice.rows_before).random(len(rows))
    chosen: list[Any] = []
    for row, draw in zip(rows, draws, strict=True):
        if not isinstance(row, list) or not row:
            chosen.append(ABSENT)
            continue
        index = int(draw * len(row)) if choice.sample is None else choice.sample
        if index >= len(row):
            raise WorkloadError(
                f"workload.sample={index}: the trace records {len(row)} outputs per row, counted from 0"
            )
        chosen.append(row[index])
    return chosen


FORMATS = (
    Format(
        name="castillo",
        required=("input_size", "output_0"),
        columns={"prompt_len": "input_size", "output_len": "output"},
        derive=_from_columns,
        inputs=lambda header: ["input_size", *_output_names(header)],
        note=_NOTE,
    ),
    Format(
        name="castillo JSON",
        required=("input_size", "output_sizes"),
        columns={"prompt_len": "input_size", "output_len": "output"},
        derive=_from_lists,
        inputs=lambda header: ["input_size", "output_sizes"],
        note=_NOTE,
    ),
)
