"""The comparison on a terminal of any width: one line per system, with notes for the reader below.

Values that are the same in all rows are printed once, above them; columns that do not fit go into a further table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.files import records
from harness.report.columns import DASH, definitions, one_line, shown
from harness.report.comparison import names
from harness.report.paper import FIG_2, fig_2_applies, other_pool
from harness.report.repeats import aggregate, insignificant


def table_cells(groups: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(headers, rows) of the short table, as text; headers may have a line break, for terminals.

    Cells have two lines if there are enough repeats.
    """
    columns = list(shown(groups))
    rows = [[row["label"], *(column.cell(row) for column in columns), row["status"]] for row in records(groups)]
    return ["system", *(column.header for column in columns), "status"], rows


def print_table(table: pd.DataFrame, console: Console, what_ran: str = "", baseline: str = "") -> None:
    """Print a comparison; repeats become their mean, rows that did not finish are marked.

    Args:
        what_ran: further values that all rows have in common.
        baseline: see `aggregate`.
    """
    if table.empty:
        console.print("There are no jobs to compare.")
        return
    groups = aggregate(table, baseline)
    headers, rows = table_cells(groups)
    headers, rows, alike = merge_constant_columns(headers, rows)
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
    said = "; ".join(f"{name}: {text}" for name, text in definitions(groups)) + "."
    for note in [said, *notes(table, groups), *beside_fig_2(groups), *beside_simulated(groups)]:
        console.print(Text(note, style="dim"))


def merge_constant_columns(headers: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]], str]:
    """(headers, rows, the values that are left out because all rows share them); a single row is left unchanged.

    A name consists of parts (`vLLM · rate 4`); a part that all rows share is left out as well.
    """
    if len(rows) < 2:
        return headers, rows, ""
    names = [row[0].split(" · ") for row in rows]
    shared = [part for part in names[0] if all(part in name for name in names)]
    short = [" · ".join(part for part in name if part not in shared) for name in names]
    if not all(short):  # two rows of one name
        shared, short = [], [row[0] for row in rows]
    same = [i for i in range(1, len(headers)) if headers[i] != "ratio" and len({row[i] for row in rows}) == 1]
    told = [" ".join((one_line(headers[i]), rows[0][i].replace("\n", ", ")))
            for i in same if rows[0][i] != DASH]  # fmt: skip
    left = [i for i in range(1, len(headers)) if i not in same]
    cells = [[name, *(row[i] for i in left)] for name, row in zip(short, rows, strict=True)]
    return [headers[0], *(headers[i] for i in left)], cells, ", ".join([*shared, *told])


NAME_AT_LEAST = 24  # longer names may be wrapped


def fitting(headers: list[str], rows: list[list[str]], width: int) -> Iterator[list[int]]:
    """Split the columns into tables no wider than the terminal; each table begins with the names."""
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


def notes(table: pd.DataFrame, groups: pd.DataFrame) -> list[str]:
    """What the numbers don't show: systems that are not told apart, rejections, failures and warnings."""
    found = insignificant(table, groups)
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
    """Our pool usage beside the paper's, in points; nothing for another workload."""
    if "capacity_rate" in groups:  # a pool at its capacity is not always full, as it was in the paper's figure
        return []
    rows = groups[groups["system"].isin(FIG_2) & groups["saturated_kv_used_pct"].notna()]
    rows = rows.sort_values("output_throughput", ascending=False).drop_duplicates("system").sort_index()  # most load
    if rows.empty or not fig_2_applies(rows):
        return []
    parts = []
    for row in records(rows):
        ours, theirs = row["saturated_kv_used_pct"], FIG_2[row["system"]]["used"]
        parts.append(f"{row['label']} {ours:.1f} (paper {theirs}, {ours - theirs:+.1f} points)")
    pool = other_pool(rows["capacity"].dropna()) if "capacity" in rows else ""
    return [f"KV used % beside Fig. 2 of the PagedAttention paper{pool}: " + ", ".join(parts) + "."]


def beside_simulated(groups: pd.DataFrame) -> list[str]:
    """The simulated output throughput beside the measured one; only the extremes for many systems."""
    if "simulated_error_pct" not in groups or (rows := groups.dropna(subset=["simulated_error_pct"])).empty:
        return []
    if len(rows) > 10:
        low, high = rows["simulated_error_pct"].min(), rows["simulated_error_pct"].max()
        return [f"The same requests simulated with the fitted step times: output tok/s {low:+.1f} to {high:+.1f} %."]
    parts = [f"{row['label']} {row['simulated_output_throughput']:,.1f} ({row['simulated_error_pct']:+.1f} %)"
             for row in records(rows)]  # fmt: skip
    return ["The same requests simulated with the fitted step times, output tok/s: " + ", ".join(parts) + "."]
