"""Describes a trace file: `python -m harness inspect FILE [workload.KEY=VALUE ...]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.workload.build import make_requests
from harness.workload.prefix import unbounded_hit_rate
from harness.workload.readers import Trace, read_trace
from harness.workload.readers.checks import Integers
from harness.workload.readers.clock import offered_rate
from harness.workload.settings import parse_settings

_SECOND = 1_000_000_000
_SPIKE = 0.05  # share of rows with one and the same length or time from which on it is reported


def inspect_file(path: str | Path, console: Console | None = None, keys: Mapping[str, Any] | None = None) -> None:
    """Prints a trace's format, meaning of columns, rows, span, rate, burstiness, lengths, sharing and oddities.

    Faulty rows are left out of the figures and listed by rule.

    Args:
        keys: keys of the group `workload` that say how to read the trace (columns, time_unit, skip_s ...).

    Raises:
        WorkloadError: the file is no trace, or has no valid row; a bad key.
    """
    settings = parse_settings({"invalid": "drop", **(keys or {}), "path": str(path)})
    trace = read_trace(path, settings.reading(seed=0))
    console = console or Console()
    facts = Table(title=escape(Path(path).name), show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(trace):
        facts.add_row(name, escape(value))
    console.print(facts)
    lengths = Table("tokens", "mean", "CV", "min", "p10", "p50", "p90", "p99", "max")
    for name, column in (("prompt", trace.rows.prompt_len), ("output", trace.rows.output_len)):
        lengths.add_row(name, *_percentiles(column))
    lengths.add_row("together", *_percentiles(trace.rows.prompt_len + trace.rows.output_len))
    console.print(lengths)
    for oddity in oddities(trace):
        console.print(f"• {escape(oddity)}")


def _facts(trace: Trace) -> list[tuple[str, str]]:
    rows = trace.rows
    facts = [("format", trace.layout.name), ("read as", _read_as(trace))]
    if trace.unread:
        facts.append(("not read", ", ".join(trace.unread)))
    skipped = f", {trace.skipped:,} skipped" if trace.skipped else ""
    facts.append(("rows", f"{trace.rows_read:,} read, {len(rows):,} valid{skipped}"))
    if rows.arrival_ns is None:
        facts.append(("arrivals", "none; workload.arrival=burst, poisson, gamma or closed_loop replays it"))
    else:
        span, rate = rows.arrival_ns[-1] - rows.arrival_ns[0], offered_rate(rows.arrival_ns)
        facts.append(("span", f"{span / _SECOND:,.3f} s"))
        facts.append(("rate", "all at once" if rate is None else f"{rate:,.4g} requests/s"))
        gaps = np.diff(rows.arrival_ns)
        if rate is not None and len(gaps) > 1:
            facts.append(("CV of gaps", f"{gaps.std() / gaps.mean():.2f} (poisson is 1)"))
    if names := set(rows.more.get("session", ())) - {""}:
        facts.append(("sessions", f"{len(names):,}"))
    shared = unbounded_hit_rate(make_requests(rows, np.zeros(len(rows), dtype=np.int64), rows.output_len))
    sharing = (
        "unknown (no ids)" if shared is None else f"{shared:.1%} of prompt tokens hit a prefix cache without bounds"
    )
    return [*facts, ("sharing", sharing)]


def _read_as(trace: Trace) -> str:
    """Which column was read as which field of a request."""
    parts = []
    for column, field in trace.read_as.items():
        what = f"{field} {trace.time_unit}" if field == "arrival" else field
        parts.append(what if column == what else f"{column} → {what}")
    return ", ".join(parts)


def _percentiles(values: Integers) -> list[str]:
    points = np.percentile(values, [0, 10, 50, 90, 99, 100])
    return [f"{values.mean():,.1f}", f"{values.std() / values.mean():.2f}", *(f"{point:,.0f}" for point in points)]


def oddities(trace: Trace) -> list[str]:
    """What to know before replaying the trace, one sentence each."""
    rows, count = trace.rows, len(trace.rows)
    said = [f"{number:,} faulty rows: {rule}" for rule, number in trace.dropped.items()]
    said += [f"the first of them: {trace.first_fault}"] if trace.first_fault else []
    said += trace.notices
    if rows.arrival_ns is not None and count > 1:
        distinct = len(np.unique(rows.arrival_ns))
        if distinct < (1 - _SPIKE) * count:
            said.append(f"only {distinct:,} distinct arrival times: they are rounded, or requests come in groups")
    for name, column in (("prompt", rows.prompt_len), ("output", rows.output_len)):
        values, times = np.unique(column, return_counts=True)
        if len(values) == 1:
            said.append(f"every {name} has {values[0]:,} tokens")
        elif times.max() > max(1, _SPIKE * count):
            value = values[times.argmax()]
            said.append(
                f"{times.max() / count:.0%} of the {name}s have exactly {value:,} tokens (a cap or a template?)"
            )
    if singles := int((rows.output_len == 1).sum()):
        said.append(f"{singles:,} outputs of one token, which have no time per output token")
    if "hash_ids" in rows.more:
        first = Counter(ids[0] for ids in rows.more["hash_ids"] if ids)
        for value, number in first.most_common(1):
            if number > max(1, _SPIKE * count):
                said.append(f"{number / count:.0%} of the prompts begin with the same piece (hash id {value})")
    return said
