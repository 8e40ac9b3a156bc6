"""All that one run measured, a line for each kind of number, with what it is beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.files import records
from harness.report.repeats import aggregate
from harness.report.table import notes

SPREAD = ("mean", "p50", "p90", "p99")
BOOKS = [("in use", "used"), ("held by finished", "finished_held"), ("reserved", "reserved"),
         ("over-reserved", "over_reserved"), ("rounding", "rounding"), ("cached", "cached"),
         ("fragmented", "fragmented"), ("too short", "short"), ("free", "free"),
         ("out of every window", "out_of_window"), ("padding", "padding"), ("states", "state")]  # fmt: skip
STEADY, SATURATED = (
    "steady: while anybody waited, without ramp and drain",
    "saturated: while requests waited for memory",
)
Keys = list[tuple[str, str]]  # what a number is called beside its like, and its key in a summary


class Line(NamedTuple):
    """One kind of number, in `unit`, and what it is."""

    name: str
    unit: str
    keys: Keys
    definition: str = ""


def _spread(name: str) -> Keys:
    return [(key, f"{name}_{key}_ms") for key in SPREAD]


LINES = (
    Line("requests", "", [(name, name) for name in ("finished", "rejected", "unfinished", "failed")]),
    Line("makespan", "s", [("", "duration_s")], "start to last token"),
    Line("throughput", "tokens/s", [("output", "output_throughput"), ("steady", "steady_output_throughput"),
                                    ("saturated", "saturated_output_throughput"),
                                    ("with prompts", "total_token_throughput")],
         f"tokens / makespan; {STEADY}; {SATURATED}"),
    Line("goodput", "requests/s", [("", "goodput")], "requests within every limit / makespan"),
    Line("cost", "dollars per million output tokens", [("", "cost_per_million_output_tokens")]),
    Line("TTFT", "ms", _spread("ttft"), "first token − scheduled arrival"),
    Line("TPOT", "ms", [*_spread("tpot"), ("total/total", "tpot_total_ms")],
         "(last − first token) / (tokens − 1) of a request; total/total: both summed over requests, then divided"),
    Line("ITL", "ms", _spread("itl"), "gaps between tokens, of all requests together"),
    Line("e2e", "ms", _spread("e2e"), "last token − scheduled arrival"),
    Line("queueing", "ms", _spread("queueing"), "first scheduled − scheduled arrival"),
    Line("oldest waiting", "s", [("mean", "waiting_age_mean_s"), ("most", "waiting_age_max_s")],
         "how long whoever waits longest for its first step has waited, over time"),
    Line("normalized latency", "s per token", [("mean", "normalized_latency_mean_s")], "e2e / tokens of a request"),
    Line("batch", "sequences", [("mean", "mean_batch_size"), ("steady", "steady_mean_batch_size"),
                                ("saturated", "saturated_mean_batch_size")], "in a step, mean over the time of steps"),
    Line("lanes", "%", [("useful", "useful_lane_pct")], "that produced a wanted token, of those computed"),
    Line("recomputed", "% of tokens", [("", "recomputed_pct")], "computed again after a preemption, of all computed"),
    Line("prefix hits", "%", [("of lookups", "prefix_lookup_hit_pct"), ("of prompts", "prefix_prompt_hit_pct"),
                              ("once", "prefix_hit_pct")],
         "tokens found, of those looked for; of the prompts' (one preempted counts again); at first admissions alone"),
    Line("KV in use", "%", [("by slots", "kv_used_pct"), ("by blocks", "kv_held_pct"),
                            ("saturated: by slots", "saturated_kv_used_pct"), ("by blocks", "saturated_kv_held_pct")],
         "slots that hold a token in use; slots of blocks (lanes, chunks) that somebody holds, as engines count"),
    Line("engine's KV cache", "%", [("in use", "kv_in_use_pct"), ("most", "kv_in_use_max_pct")],
         "blocks that somebody holds, as the engine says"),
    Line("saved by sharing", "% of slots", [("", "kv_saved_pct"), ("saturated", "saturated_kv_saved_pct")]),
    Line("moved", "slots", [("copied", "copied_slots"), ("swapped", "swapped_slots")]),
    Line("KV pool", "%", [(short, f"kv_{column}_pct") for short, column in BOOKS], "the whole run; sums to 100"),
    Line("KV pool, saturated", "%", [(short, f"saturated_kv_{column}_pct") for short, column in BOOKS], SATURATED),
)  # fmt: skip
RARE = ("saved by sharing", "moved")  # left out where there was none of it


def lines(row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(what, its numbers, what they are) of all that a run measured; kinds that were not measured are left out."""
    for line in LINES:
        there = [f"{short} {_figures(row[key])}".strip() for short, key in line.keys
                 if key in row and pd.notna(row[key])]  # fmt: skip
        idle = line.name in RARE and not any(row.get(key) for _, key in line.keys)
        if there and not idle:
            yield line.name, f"{', '.join(there)} {line.unit}".strip(), line.definition


def print_job(table: pd.DataFrame, console: Console, what_ran: str = "") -> None:
    """Print what one job measured."""
    (row,) = records(table)
    view = Table(box=None, padding=(0, 2, 0, 0), show_header=False, title=Text(str(row["system"])),
                 title_justify="left")  # fmt: skip
    for name, numbers, definition in lines(row):
        view.add_row(name, Text(numbers), Text(definition, style="dim"))
    console.print(view)
    console.print(Text(what_ran, style="dim"))
    for note in notes(table, aggregate(table)):
        console.print(Text(note, style="dim"))


def _figures(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
