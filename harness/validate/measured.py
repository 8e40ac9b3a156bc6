"""A measured run: its requests with the engine's own timestamps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.validate.files import beside, read_lines
from schedulers.request import Request

MOST_TOKENS = 2**31 - 1
LENGTHS, STAMPS = ("input_toks", "output_toks"), ("queued_ts", "first_token_ts", "last_token_ts")


@dataclass(slots=True)
class Measured:
    """The requests of a run, by arrival.

    Attributes:
        path: the file.
        table: one row per request: `row` in the file, `request_id`, `prompt_tokens`, `output_tokens`; `arrival_s` and
            `queued_s`, counted from the first arrival; `ttft_ms`, `tpot_ms`, `e2e_ms`, counted from the queue
            timestamp; empty where a timestamp is missing.
        hashes: by position, (tokens per hash id, hash ids of the prompt); empty = contents of prompts are unknown.
        prompts: the file that the hashes are from.
        notes: what was done to the rows, for readers of the results.
        series: `t` (s), `running` and `waiting` requests as the engine counted them once a second; None if it did not.
        under_way: most requests that were scheduled and not finished at the same time; None without `scheduled_ts`.
    """

    path: Path
    table: pd.DataFrame
    hashes: list[tuple[int, Any]] = field(default_factory=list)
    prompts: Path | None = None
    notes: list[str] = field(default_factory=list)
    series: pd.DataFrame | None = None
    under_way: int | None = None

    def requests(self) -> list[Request]:
        """Fresh requests for a replay; `id` is the row in `table`."""
        columns = (self.table[name].tolist() for name in ("arrival_s", "prompt_tokens", "output_tokens"))
        requests = [Request(i, round(at * 1e9), prompt, output)
                    for i, (at, prompt, output) in enumerate(zip(*columns, strict=True))]  # fmt: skip
        for request, (block, ids) in zip(requests, self.hashes, strict=False):
            request.hash_block, request.hash_ids = block, ids
        return requests


def read_measured(path: Path) -> Measured:
    """Read a run: a request a line, with `input_toks`, `output_toks`, `queued_ts`, `first_token_ts`, `last_token_ts`
    (seconds of one clock), and `arrival_time` (of any clock) if it is known.

    Requests arrive at `arrival_time` plus the smallest offset between the two clocks: an engine looks at its queue only
    between steps, so most have a `queued_ts` later than their arrival.

    Raises:
        HarnessError: a missing file or key, or an invalid line; the message names it.
    """
    rows = list(read_lines(path, "validate.measured"))
    if not rows:
        raise HarnessError(f"validate.measured={path}: the file has no request")
    notes: list[str] = []
    for number, row in rows:
        for key in LENGTHS:
            if type(row.get(key)) is not int or row[key] < 1:
                raise HarnessError(f"{path}:{number}: {key} must be a whole number of tokens >= 1, {_shown(row, key)}")
            if row[key] > MOST_TOKENS:
                raise HarnessError(f"{path}:{number}: {key} must be below 2**31 tokens, {_shown(row, key)}")
        _stamps(path, number, row)
    raw = pd.DataFrame([row for _, row in rows])
    stamps = {key: _column(raw, key) for key in (*STAMPS, "arrival_time")}
    arrival, queued = stamps["arrival_time"], stamps["queued_ts"]
    if np.isnan(arrival).any():
        notes.append("`arrival_time` is not there for every request: all are admitted at `queued_ts`, which an engine "
                     "stamps between steps")  # fmt: skip
        arrival = queued
    order = np.argsort(arrival, kind="stable")
    offset = float(np.min(queued - arrival))
    table = pd.DataFrame({
        "request_id": [str(row.get("request_id", i)) for i, (_, row) in enumerate(rows)],
        "prompt_tokens": raw["input_toks"].astype("int64"), "output_tokens": raw["output_toks"].astype("int64"),
        "arrival_s": arrival - arrival.min(), "queued_s": queued - offset - arrival.min(),
        "ttft_ms": (stamps["first_token_ts"] - queued) * 1e3, "e2e_ms": (stamps["last_token_ts"] - queued) * 1e3,
    })  # fmt: skip
    further = table["output_tokens"] - 1
    table["tpot_ms"] = ((table["e2e_ms"] - table["ttft_ms"]) / further).where(further > 0)
    table = table.iloc[order].reset_index(names="row")
    answered = table["ttft_ms"].notna() & table["e2e_ms"].notna()
    table.loc[~answered, ["ttft_ms", "tpot_ms", "e2e_ms"]] = np.nan
    unanswered = int((~answered).sum())
    if unanswered == len(table):
        raise HarnessError(f"validate.measured={path}: no request has both first_token_ts and last_token_ts")
    if unanswered:
        notes.append(f"{unanswered} requests have no first or last token: they are load, and in no figure")
    under_way = _most_at_once(_column(raw, "scheduled_ts"), stamps["last_token_ts"])
    return Measured(path, table, notes=notes, series=_series(path, notes), under_way=under_way)


def _most_at_once(begin: np.ndarray, end: np.ndarray) -> int | None:
    """The largest number of spans from `begin` to `end` that overlap; None if any of these times is unknown."""
    if np.isnan(begin).any() or np.isnan(end).any():
        return None
    ended = np.searchsorted(np.sort(end), np.sort(begin), side="right")  # spans that have ended when each begins
    return int((np.arange(1, len(begin) + 1) - ended).max())


def _series(path: Path, notes: list[str]) -> pd.DataFrame | None:
    """The engine's counters from a file beside the run; None if there is no such file, or it has other columns."""
    columns, file = ["t", "running", "waiting"], beside(path, "timeseries", ".csv")
    if file is None:
        return None
    try:
        series = pd.read_csv(file)[columns].astype("float64")
    except (OSError, EOFError, KeyError, ValueError) as error:
        notes.append(f"{file} beside the run has no columns {', '.join(columns)} and was not used: {error}")
        return None
    return series if len(series) else None


def _stamps(path: Path, number: int, row: dict[str, Any]) -> None:
    for key in (*STAMPS, "arrival_time", "scheduled_ts"):
        value = row.get(key)
        known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if key == "queued_ts" and not known:
            raise HarnessError(f"{path}:{number}: queued_ts, the engine's stamp (s) of the arrival, {_shown(row, key)}")
        if value is not None and not known:
            raise HarnessError(f"{path}:{number}: {key} must be seconds, {_shown(row, key)}")
    stamps = [row[key] for key in STAMPS if row.get(key) is not None]
    if stamps != sorted(stamps):
        raise HarnessError(f"{path}:{number}: {', '.join(STAMPS)} must be in this order, and are {stamps}")


def _shown(row: dict[str, Any], key: str) -> str:
    return f"not {row[key]!r:.60}" if key in row else "is missing"


def _column(raw: pd.DataFrame, key: str) -> np.ndarray:
    if key not in raw:
        return np.full(len(raw), np.nan)
    return raw[key].to_numpy(np.float64, na_value=np.nan)
