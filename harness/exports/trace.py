"""`trace.json`: a run in the Chrome Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

One process is the engine (its steps as slices, batch and KV pool as counters), another the requests: a track each,
with its phases as nested slices and preemptions as instants. Times are whole microseconds.
Source of the format: "Trace Event Format", The Chromium Project.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from allocators.base import LayoutBooks
from harness.exports.folder import STEPS, config_of, requests_of
from harness.files import records, written
from harness.metrics.steps import INTEGERS, SPENT

MOST_REQUESTS = 1_000  # of more, so many are shown, evenly spaced by their number
MOST_SLICES = 50_000  # of more rows of the step table, neighbours share a slice
ENGINE, REQUESTS = 1, 2  # the processes
FILE = "trace.json"
WANTED = {"start_s", "num_seqs", "decode_seqs", "prefill_tokens", "waiting", "preempted", "produced", "repeat",
          *LayoutBooks._fields, *(f"{name}_ms" for name in INTEGERS[SPENT])}  # fmt: skip

Event = dict[str, Any]


def write(folder: Path) -> list[str]:
    """Write `trace.json` of a run; the notices say what of it is not in there."""
    table = requests_of(folder)
    shown = table[table["arrival_s"].notna()]
    shown = shown.iloc[np.unique(np.linspace(0, len(shown) - 1, min(len(shown), MOST_REQUESTS)).astype(int))]
    end = _us(np.nanmax([*table["last_token_s"], *table["arrival_s"], 0.0]))
    head, events, notices = list(_named(ENGINE, "engine", {0: "steps"})), list(_told_by_a_server(folder)), []
    if (folder / STEPS).exists():
        steps = pd.read_csv(folder / STEPS, usecols=WANTED.__contains__)
        slices, each = _slices(steps)
        events += slices
        if each > 1:
            notices.append(f"{FILE}: a slice of the engine stands for up to {each} rows of {STEPS}")
    head += _named(REQUESTS, "requests", {int(number): f"request {number}" for number in shown["id"]})
    instants = _instants(folder)
    for row in records(shown):
        events += _request(row, instants.get(int(row["id"]), []), end)
    if len(shown) < table["arrival_s"].notna().sum():
        notices.append(f"{FILE}: {len(shown):,} of {len(table):,} requests are in it, evenly spaced")
    events.sort(key=lambda event: int(event["ts"]))  # stable: of one track they are in order already
    cfg = config_of(folder)
    about = {"made by": "kvlab", "seed": cfg.get("seed"), "requests": len(table), "requests shown": len(shown)}
    with written(folder / FILE) as file:
        lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in [*head, *events])
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n{lines}\n]}}\n')
    return notices


def _named(process: int, name: str, tracks: dict[int, str]) -> Iterator[Event]:
    """The names of a process and of its tracks, which are shown in this order."""
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for place, (track, label) in enumerate(tracks.items()):
        yield {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": label}}
        yield {"ph": "M", "pid": process, "tid": track, "name": "thread_sort_index", "args": {"sort_index": place}}


def _slices(steps: pd.DataFrame) -> tuple[list[Event], int]:
    """A slice a step (or for a few, where there are many) with the counters at its start; rows to a slice at most."""
    repeat = steps["repeat"] if "repeat" in steps else pd.Series(1, index=steps.index)
    spent = steps[[name for name in steps if str(name).endswith("_ms")]].sum(axis=1) / 1e3
    until = steps["start_s"] + spent * repeat
    until = until.clip(upper=steps["start_s"].shift(-1).fillna(np.inf))  # the next one's start, if steps overlap
    each = -(-len(steps) // MOST_SLICES) or 1
    books = [name for name in LayoutBooks._fields if name in steps and steps[name].any()]
    facts = steps.assign(steps=repeat * (steps["num_seqs"] > 0), until=until)
    groups = facts.groupby(np.arange(len(facts)) // each)
    first, last, sums = groups.first(), groups["until"].last(), groups[["steps", "prefill_tokens", "produced",
                                                                       "preempted", "decode_seqs"]].sum()  # fmt: skip
    found: list[Event] = []
    where = {"pid": ENGINE, "tid": 0}
    for row, done, sum_of in zip(records(first), last.tolist(), records(sums), strict=True):
        start = _us(row["start_s"])
        if sum_of["steps"]:
            name = _work(sum_of["prefill_tokens"], sum_of["decode_seqs"])
            facts_of = {"sequences": row["num_seqs"], **sum_of}
            found.append({"ph": "X", **where, "name": name, "ts": start, "dur": _us(done) - start,
                          "args": {key: int(value) for key, value in facts_of.items()}})  # fmt: skip
        batch = {"running": int(row["num_seqs"]), "waiting": int(row["waiting"])}
        pool = {name: int(row[name]) for name in books}
        for name, args in (("sequences", batch), ("KV pool", pool)):
            found.append({"ph": "C", **where, "name": name, "ts": start, "args": args})
    return found, each


def _told_by_a_server(folder: Path) -> Iterator[Event]:
    """The counters of an engine that was only asked for them, once a second or so."""
    if not (folder / "engine.csv").exists():
        return
    for row in records(pd.read_csv(folder / "engine.csv")):
        for name, columns in (("sequences", ("running", "waiting")), ("KV cache in use, %", ("kv_in_use_pct",))):
            if args := {column: round(row[column]) for column in columns if pd.notna(row.get(column))}:
                yield {"ph": "C", "pid": ENGINE, "tid": 0, "name": name, "ts": _us(row["start_s"]), "args": args}


def _work(prompts: int, decodes: int) -> str:
    return "prefill and decode" if prompts and decodes else "prefill" if prompts else "decode"


def _request(row: dict[str, Any], instants: list[tuple[int, str]], end: int) -> list[Event]:
    """A slice from arrival to end, with the phases in it; what is not over lasts to the end of the run."""
    where = {"pid": REQUESTS, "tid": int(row["id"])}
    arrived = _us(row["arrival_s"])
    facts = {name: int(row[name]) for name in ("prompt_tokens", "output_tokens", "preemptions", "recomputed_tokens",
                                               "cached_tokens") if pd.notna(row.get(name))}  # fmt: skip
    facts |= {name: row[name] for name in ("status", "reason") if pd.notna(row.get(name))}
    if row["status"] == "rejected":
        return [{"ph": "i", **where, "name": "rejected", "ts": arrived, "s": "t", "args": facts}]
    over = row["status"] == "finished" or (row["status"] == "failed" and pd.notna(row["last_token_s"]))
    phases = [("waiting", row["first_scheduled_s"]), ("prefill", row["first_token_s"]),
              ("decode", row["last_token_s"] if over else np.nan)]  # fmt: skip
    if pd.isna(row["first_scheduled_s"]) and pd.notna(row["first_token_s"]):  # of a server
        phases = [("waiting and prefill", row["first_token_s"]), phases[2]]
    found: list[Event] = [{"ph": "B", **where, "name": f"request {int(row['id'])}", "ts": arrived, "args": facts}]
    now = arrived
    for name, until in phases:
        found.append({"ph": "B", **where, "name": name, "ts": now})
        now = end if pd.isna(until) else _us(until)
        found.append({"ph": "E", **where, "name": name, "ts": now})
        if pd.isna(until):
            break
    found.append({"ph": "E", **where, "name": f"request {int(row['id'])}", "ts": now})
    found += [{"ph": "i", **where, "name": name, "ts": when, "s": "t"} for when, name in instants]
    return sorted(found, key=lambda event: int(event["ts"]))


def _instants(folder: Path) -> dict[int, list[tuple[int, str]]]:
    """By request, (µs, what): when it was preempted or swapped out and came back, where the run noted it."""
    found: dict[int, list[tuple[int, str]]] = {}
    if (folder / "events.csv").exists():
        for row in records(pd.read_csv(folder / "events.csv")):
            found.setdefault(int(row["request"]), []).append((_us(row["start_s"]), str(row["event"])))
    return found


def _us(seconds: float) -> int:
    return round(float(seconds) * 1e6)
