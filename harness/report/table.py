"""The comparison on a terminal of any width: one line per system, and what a reader must know below it.

What is the same in all rows stands once, above them; what does not fit beside the names stands in a further table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.comparison import aggregate, names, records
from harness.report.paper import FIG_2, fig_2_applies, other_pool
from harness.report.repeats import told

DASH = "–"


def _cell(form: str, scale: float = 1.0) -> Callable[[object], str]:
    return lambda value: DASH if pd.isna(value) else form.format(float(value) * scale)  # type: ignore[call-overload,arg-type]


COLUMNS: list[tuple[str, str, Callable[[object], str]]] = [
    ("output\ntok/s", "output_throughput", _cell("{:,.1f}")),
    ("ratio", "output_throughput_x", _cell("×{:.2f}")),
    ("mean\nbatch", "mean_batch_size", _cell("{:.1f}")),
    ("KV used\n%", "saturated_kv_used_pct", _cell("{:.1f}")),
    ("waste\n%", "saturated_waste_pct", _cell("{:.1f}")),
    ("recom-\nputed %", "recomputed_pct", _cell("{:.1f}")),
    ("TTFT\np50 s", "ttft_p50_ms", _cell("{:.2f}", 1e-3)),
    ("TPOT\np50 ms", "tpot_p50_ms", _cell("{:.1f}")),
    ("e2e\np99 s", "e2e_p99_ms", _cell("{:.1f}", 1e-3)),
    ("capacity\nreq/s", "capacity_rate", _cell("{:.3g}")),
    ("% of\nideal", "pct_of_ideal", _cell("{:.1f}")),
    ("goodput\nreq/s", "goodput", _cell("{:.3g}")),
    ("$ per\nM tokens", "cost_per_million_output_tokens", _cell("{:.3g}")),
]

SPREAD = ("mean", "p50", "p90", "p99")
BOOKS = [("in use", "used"), ("held by finished", "finished_held"), ("reserved", "reserved"),
         ("over-reserved", "over_reserved"), ("rounding", "rounding"), ("cached", "cached"),
         ("fragmented", "fragmented"), ("too short", "short"), ("free", "free"),
         ("out of every window", "out_of_window"), ("padding", "padding"), ("states", "state")]  # fmt: skip
JOB: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("requests", "", [(name, name) for name in ("finished", "rejected", "unfinished", "failed")]),
    ("makespan", "s", [("", "duration_s")]),
    ("throughput", "tokens/s", [("output", "output_throughput"), ("prompts and output", "total_token_throughput"),
                                ("output while steady", "steady_output_throughput"),
                                ("while saturated", "saturated_output_throughput")]),
    ("goodput", "requests/s", [("", "goodput")]),
    ("cost", "dollars per million output tokens", [("", "cost_per_million_output_tokens")]),
    *((name.upper() if len(name) < 5 else name, "ms", [(key, f"{name}_{key}_ms") for key in SPREAD])
      for name in ("ttft", "tpot", "itl", "e2e", "queueing")),
    ("oldest waiting", "s", [("mean", "waiting_age_mean_s"), ("most", "waiting_age_max_s")]),
    ("normalized latency", "s per token", [("mean", "normalized_latency_mean_s")]),
    ("batch", "sequences", [("mean", "mean_batch_size"), ("while steady", "steady_mean_batch_size"),
                            ("while saturated", "saturated_mean_batch_size")]),
    ("engine's KV cache", "%", [("in use", "kv_in_use_pct"), ("most", "kv_in_use_max_pct"),
                                ("prefix hits", "prefix_hit_pct")]),
    ("lanes", "%", [("useful", "useful_lane_pct")]),
    ("recomputed", "% of tokens", [("", "recomputed_pct")]),
    ("saved by sharing", "% of slots", [("", "kv_saved_pct"), ("while saturated", "saturated_kv_saved_pct")]),
    ("moved", "slots", [("copied", "copied_slots"), ("swapped", "swapped_slots")]),
    ("KV pool", "%", [(short, f"kv_{column}_pct") for short, column in BOOKS]),
    ("KV pool, saturated", "%", [(short, f"saturated_kv_{column}_pct") for short, column in BOOKS]),
]  # fmt: skip
RARE = ("saved by sharing", "moved")  # left out where there was none of it


def table_cells(groups: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(headers, rows) of the short table, as text; a header has a line break where a terminal wants one."""
    there = [column for column in COLUMNS if column[1] in groups]
    rows = [[row["label"], *(form(row[name]) for _, name, form in there), row["status"]] for row in records(groups)]
    return ["system", *(header for header, _, _ in there), "status"], rows


def print_table(table: pd.DataFrame, console: Console, what_ran: str = "") -> None:
    """Print a comparison; repeats become their median, rows that did not finish are marked.

    Args:
        what_ran: what all rows have in common besides.
    """
    if table.empty:
        console.print("There are no jobs to compare.")
        return
    groups = aggregate(table)
    headers, rows = table_cells(groups)
    headers, rows, alike = told_once(headers, rows)
    for line in filter(None, (what_ran, f"In all rows: {alike}." if alike else "")):
        console.print(Text(line, style="dim"))
    colors = ["" if status == "finished" else "red" if status == "failed" else "yellow" for status in groups["status"]]
    for columns in fitting(headers, rows, console.width):
        view = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        for i in columns:
            words = i == 0 or headers[i] == "status"
            view.add_column(headers[i], justify="left" if words else "right", overflow="fold", no_wrap=not words)
        for row, color in zip(rows, colors, strict=True):
            view.add_row(*(Text(row[i]) for i in columns), style=color)
        console.print(view)
    for note in [*notes(table, groups), *beside_fig_2(groups), *beside_simulated(groups)]:
        console.print(Text(note, style="dim"))


def told_once(headers: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]], str]:
    """(headers, rows, what is left out of them because all rows have it); of a single row nothing is.

    A name is made of parts (`vLLM · rate 4`), and each of them may be what all rows have.
    """
    if len(rows) < 2:
        return headers, rows, ""
    names = [row[0].split(" · ") for row in rows]
    shared = [part for part in names[0] if all(part in name for name in names)]
    short = [" · ".join(part for part in name if part not in shared) for name in names]
    if not all(short):  # two rows of one name
        shared, short = [], [row[0] for row in rows]
    same = [i for i in range(1, len(headers)) if headers[i] != "ratio" and len({row[i] for row in rows}) == 1]
    told = [" ".join((headers[i].replace("-\n", "").replace("\n", " "), rows[0][i])) for i in same
            if rows[0][i] != DASH]  # fmt: skip
    left = [i for i in range(1, len(headers)) if i not in same]
    cells = [[name, *(row[i] for i in left)] for name, row in zip(short, rows, strict=True)]
    return [headers[0], *(headers[i] for i in left)], cells, ", ".join([*shared, *told])


NAME_AT_LEAST = 24  # a longer name may be broken


def fitting(headers: list[str], rows: list[list[str]], width: int) -> Iterator[list[int]]:
    """The columns of each table, the names being in all of them, so that none is wider than the terminal."""
    widths = [max(len(line) for cell in (header, *column) for line in cell.split("\n")) + 1
              for header, column in zip(headers, zip(*rows, strict=True), strict=True)]  # fmt: skip
    names = min(widths[0], NAME_AT_LEAST)
    columns, used = [0], names
    for i, own in list(enumerate(widths))[1:]:
        own = min(own, 10) if headers[i] == "status" else own
        if used + own > width and len(columns) > 1:
            yield columns
            columns, used = [0], names
        columns.append(i)
        used += own
    yield columns


def print_job(table: pd.DataFrame, console: Console, what_ran: str = "") -> None:
    """Print what one job measured, a line for each kind of number; kinds that were not measured are left out."""
    (row,) = records(table)
    view = Table(
        box=None, padding=(0, 2, 0, 0), show_header=False, title=Text(str(row["system"])), title_justify="left"
    )
    for name, unit, keys in JOB:
        there = [f"{short} {_figures(row[key])}".strip() for short, key in keys if key in row and pd.notna(row[key])]
        idle = name in RARE and not any(row.get(key) for _, key in keys)
        if there and not idle:
            view.add_row(name, Text(", ".join(there) + f" {unit}"))
    console.print(view)
    console.print(Text(what_ran, style="dim"))
    for note in notes(table, aggregate(table))[1:]:  # the first explains columns of the other table
        console.print(Text(note, style="dim"))


def _figures(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def notes(table: pd.DataFrame, groups: pd.DataFrame) -> list[str]:
    """What the numbers can't say themselves: rejections, failures, warnings, spread, and the paper's figures."""
    found = ["KV used and waste: mean over the time in which requests waited for memory (–: none ever did); "
             "recomputed: share of all tokens computed."]  # fmt: skip
    if (repeats := groups["repeats"].max()) > 1:
        worst = (groups["output_throughput_max"] / groups["output_throughput_min"] - 1).max()
        found.append(f"Medians of up to {repeats} repeats; output throughput varies by up to {100 * worst:.1f} %.")
        found += told(table, groups)
    for row in records(groups):
        lost = [
            f"{row[name]:.0f} {name}" for name in ("rejected", "unfinished", "failed") if name in row and row[name] > 0
        ]
        if lost:
            found.append(f"{row['label']}: {' and '.join(lost)} requests are not in its latencies.")
        if row["status"] != "finished":
            found.append(f"{row['label']}: {row['status']}" + (f": {row['error']}" if pd.notna(row["error"]) else ""))
    if "goodput_limits" in table:
        found += [f"Goodput: requests per second, of those with {text}."
                  for text in dict.fromkeys(table["goodput_limits"].dropna())]  # fmt: skip
    for name in ("banner", "warnings"):
        if name in table:
            for text, rows in table.dropna(subset=[name]).groupby(name, sort=False):
                found.append(f"{text} ({names(rows['system'])})")
    return found


def beside_fig_2(groups: pd.DataFrame) -> list[str]:
    """Our use of the pool beside the paper's, in points; nothing when the workload is another one."""
    if "capacity_rate" in groups:  # a pool at its capacity is not always full, as it was in the paper's figure
        return []
    rows = groups[groups["system"].isin(FIG_2) & groups["saturated_kv_used_pct"].notna()]
    rows = rows.sort_values("output_throughput", ascending=False).drop_duplicates("system").sort_index()  # most load
    if rows.empty or "workload" not in rows or not fig_2_applies(rows["workload"]):
        return []
    parts = []
    for row in records(rows):
        ours, theirs = row["saturated_kv_used_pct"], FIG_2[row["system"]]["used"]
        parts.append(f"{row['label']} {ours:.1f} (paper {theirs}, {ours - theirs:+.1f} points)")
    pool = other_pool(rows["capacity"].dropna()) if "capacity" in rows else ""
    return [f"KV used % beside Fig. 2 of the PagedAttention paper{pool}: " + ", ".join(parts) + "."]


def beside_simulated(groups: pd.DataFrame) -> list[str]:
    """The simulated output throughput beside the measured one; only the extremes when there are many systems."""
    if "simulated_error_pct" not in groups or (rows := groups.dropna(subset=["simulated_error_pct"])).empty:
        return []
    if len(rows) > 10:
        low, high = rows["simulated_error_pct"].min(), rows["simulated_error_pct"].max()
        return [f"The same requests simulated with the fitted step times: output tok/s {low:+.1f} to {high:+.1f} %."]
    parts = [f"{row['label']} {row['simulated_output_throughput']:,.1f} ({row['simulated_error_pct']:+.1f} %)"
             for row in records(rows)]  # fmt: skip
    return ["The same requests simulated with the fitted step times, output tok/s: " + ", ".join(parts) + "."]
