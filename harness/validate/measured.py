"""A measured run: its requests with the engine's own time stamps, and what their prompts have in common."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.validate.files import read_lines, stem
from schedulers.request import Request

LENGTHS, STAMPS = ("input_toks", "output_toks"), ("queued_ts", "first_token_ts", "last_token_ts")


@dataclass(slots=True)
class Measured:
    """The requests of a run, by arrival.

    Attributes:
        path: the file.
        table: one row per request: `request_id`, `prompt_tokens`, `output_tokens`, `arrival_s` (from the first),
            and `ttft_ms`, `tpot_ms`, `e2e_ms`, counted from the queue stamp; empty where the engine has no stamp.
        hashes: by position, (tokens per hash id, hash ids of the prompt); empty = nothing is known of the prompts.
        prompts: the file these are from.
        notes: what was done to the rows, for whoever reads the results.
    """

    path: Path
    table: pd.DataFrame
    hashes: list[tuple[int, Any]] = field(default_factory=list)
    prompts: Path | None = None
    notes: list[str] = field(default_factory=list)

    def requests(self) -> list[Request]:
        """Fresh requests for a replay; `id` is the row in `table`."""
        columns = (self.table[name].tolist() for name in ("arrival_s", "prompt_tokens", "output_tokens"))
        requests = [Request(i, round(at * 1e9), prompt, output)
                    for i, (at, prompt, output) in enumerate(zip(*columns, strict=True))]  # fmt: skip
        for request, (block, ids) in zip(requests, self.hashes, strict=False):
            request.hash_block, request.hash_ids = block, ids
        return requests


def read_measured(path: Path) -> Measured:
    """Read a run: a request a line with `input_toks`, `output_toks`, `queued_ts`, `first_token_ts`, `last_token_ts`
    (seconds of one clock), and `arrival_time` (of another or the same) if it is known.

    Requests are admitted at `arrival_time` plus the smallest offset between the two clocks: an engine looks at its
    queue only between steps, so most have a `queued_ts` later than they came.

    Raises:
        HarnessError: a key or a file that is missing, or a line that is wrong; it is named.
    """
    rows = list(read_lines(path, "validate.measured"))
    if not rows:
        raise HarnessError(f"validate.measured={path}: the file has no request")
    notes: list[str] = []
    for number, row in rows:
        for key in LENGTHS:
            if type(row.get(key)) is not int or row[key] < 1:
                raise HarnessError(f"{path}:{number}: {key} must be a whole number of tokens >= 1, {_shown(row, key)}")
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
    table = table.iloc[order].reset_index(drop=True)
    answered = table["ttft_ms"].notna() & table["e2e_ms"].notna()
    table.loc[~answered, ["ttft_ms", "tpot_ms", "e2e_ms"]] = np.nan
    unanswered = int((~answered).sum())
    if unanswered == len(table):
        raise HarnessError(f"validate.measured={path}: no request has both first_token_ts and last_token_ts")
    if unanswered:
        notes.append(f"{unanswered} requests have no first or last token: they are load, and in no figure")
    return Measured(path, table, notes=notes)


def _stamps(path: Path, number: int, row: dict[str, Any]) -> None:
    for key in (*STAMPS, "arrival_time"):
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


def find_prompts(measured: Measured, wanted: str | None) -> None:
    """Add the hash chains of the prompts, matched by `request_id`.

    Args:
        wanted: a file; `auto` = one beside the run that has every request with its length; `none` or None = no chains.

    Raises:
        HarnessError: a file that was asked for and does not fit; the first request that it lacks is named.
    """
    if wanted in (None, "none"):
        return
    if wanted != "auto":
        measured.hashes, measured.prompts = _chains(measured, Path(wanted)), Path(wanted)
        return
    for path in _candidates(measured.path):
        try:
            measured.hashes, measured.prompts = _chains(measured, path), path
        except HarnessError as error:
            measured.notes.append(f"prompts beside the run were not used: {error}")
        else:
            return


def _candidates(path: Path) -> Iterable[Path]:
    """Files beside a run that may hold its prompts, those of its own name first."""
    own = stem(path)
    files = sorted(file for file in path.parent.glob("*prompts*") if ".jsonl" in file.suffixes)
    return sorted(files, key=lambda file: not file.name.startswith(own))


def _chains(measured: Measured, path: Path) -> list[tuple[int, Any]]:
    """(tokens per id, ids) of every request of `measured`, in its order."""
    known: dict[str, tuple[int, int, Any]] = {}
    for number, row in read_lines(path, "validate.prompts"):
        block, length, ids = row.get("block_size"), row.get("input_length"), row.get("hash_ids")
        if row.get("request_id") is None or type(length) is not int or not isinstance(ids, list):
            raise HarnessError(f"{path}:{number}: prompts need request_id, input_length, block_size and hash_ids")
        if type(block) is not int or block < 1 or len(ids) != -(-length // block):
            raise HarnessError(f"{path}:{number}: {length} tokens in pieces of block_size={block} have not {len(ids)} "
                               "hash_ids")  # fmt: skip
        try:
            known[str(row["request_id"])] = length, block, array("Q", [value % (1 << 64) for value in ids])
        except TypeError as error:
            raise HarnessError(f"{path}:{number}: hash_ids must be whole numbers") from error
    chains = []
    for name, length in zip(measured.table["request_id"], measured.table["prompt_tokens"], strict=True):
        if name not in known:
            raise HarnessError(f"{path}: there is no prompt of request {name}")
        if known[name][0] != length:
            raise HarnessError(f"{path}: the prompt of request {name} has {known[name][0]} tokens, and {length} in the "
                               "run: are they of another model?")  # fmt: skip
        chains.append(known[name][1:])
    return chains
