"""`report.html`: one self-contained page for a sweep or a run, with a map of the pool over time."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.files import records, write_text
from harness.metrics.memory_map import KINDS
from harness.report.columns import definitions, one_line
from harness.report.style import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

    from harness.report.sweep import Sweep

HERE = Path(__file__).parent
MOST = 24  # systems with a memory map and a timeline on the page
NIGHT = {"used": "#3b9fe0", "reserved": "#2b5a78", "fragmented": "#6f7680", "short": "#4d535b", "free": "#262a30"}
PHASE_COLORS = {"waiting": "#c4c7cc", "prefill": "#E69F00", "decode": "#0072B2", "preempted": "#D55E00",
                "swapped": "#CC79A7", "idle": "#8a8d91"}  # fmt: skip
INTERACTIVE = {"throughput_latency", "memory_breakdown", "latency_cdf", "timeline"}  # the page draws these itself
MAP_NOTE = (
    "The map is sampled: at up to 300 moments spread over the run (at every step with memory_map=true), and in a "
    "pool of more than 1,024 slots each row shows the slot in the middle of its part. Between two moments the earlier "
    "one stands. A slot that several requests share is drawn as one's of them. Where layers keep different tokens the "
    "pool is one of bytes; an allocator that ignores this has every slot drawn once for each kind of layers, apart."
)


def write_page(sweep: Sweep, *, findings: Sequence[str], notes: Sequence[str], figures: Sequence[Path] = (),
               pairs: pd.DataFrame | None = None, why: Sequence[str] = ()) -> Path:  # fmt: skip
    """Write `report.html` into the sweep's folder.

    Args:
        findings, notes: the findings, and what to keep in mind.
        figures: PNGs; those that the page draws itself are left out.
        pairs: published numbers beside ours, as returned by `harness.report.figures.table`; `why` explains them.

    Returns:
        The path of the page.
    """
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from harness.report.page.charts import charts, color_of
    from harness.report.page.words import answer_of, command_of, question_of
    from harness.report.table import table_cells

    drawn = list(charts(sweep))
    maps, lanes = _systems(sweep)
    headers, rows = table_cells(sweep.groups)
    meanings = definitions(sweep.groups)
    if all(cells[-1] == "finished" for cells in rows):
        headers, rows = headers[:-1], [cells[:-1] for cells in rows]
    color = color_of(sweep)
    seen = sorted({kind for system in maps for kind in system.pop("seen")})
    data = {
        "charts": {chart.name: json.loads(chart.figure.to_json()) for chart in drawn},
        "maps": maps,
        "lanes": lanes,
        "kinds": [(name, COLUMNS[name][1], COLUMNS[name][0], NIGHT.get(name, COLUMNS[name][0])) for name in KINDS],
        "kinds_seen": seen,
        "phases": _phases(),
    }
    sections = [("table", "Numbers"), *([("map", "The pool")] if maps else []), *((c.name, c.title) for c in drawn),
                *([("lanes", "The batch")] if lanes else []), *([("notes", "Keep in mind")] if notes else []),
                ("again", "Make it again")]  # fmt: skip
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = environment.get_template("page.html.j2").render(
        version=_version(), question=question_of(sweep), answer=answer_of(sweep), what_ran=sweep.what_ran,
        sections=sections, headers=_headed(headers, dict(meanings)), meanings=meanings, numbers=_numbers(sweep),
        rows=[_row(cells, color.get(str(group["system"]), "#888888"))
              for cells, group in zip(rows, records(sweep.groups), strict=False)],
        findings=findings, notes=notes, maps=maps, lanes=lanes, map_note=MAP_NOTE,
        charts=[{"name": c.name, "title": c.title, "text": c.text, "height": c.figure.layout.height} for c in drawn],
        books=Markup(_books(sweep)), figures=_images(figures), beside=_beside(pairs, why),
        command=command_of(sweep.folder), details=_details(sweep),
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")), data=Markup(_json(data)),
        plotly=Markup(get_plotlyjs()), script=Markup((HERE / "page.js").read_text(encoding="utf-8")),
    )  # fmt: skip
    path = sweep.folder / "report.html"
    write_text(path, text)
    return path


def _systems(sweep: Sweep) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(memory map, timeline) of the first repeat of each system."""
    from harness.report.page.lanes import lanes
    from harness.report.page.pool import pool_map

    maps, timelines = [], []
    for row in records(sweep.inside.head(MOST)):
        folder = sweep.folder / row["dirs"][0]
        found = pool_map(folder, int(row["capacity"]), row["duration_s"])
        if found:
            maps.append({"label": row["label"], **found})
        batch = lanes(folder)
        if batch:
            timelines.append({"label": row["label"], **batch})
    return maps, timelines


def _phases() -> dict[str, tuple[str, str]]:
    from harness.report.page.lanes import PHASES

    return {name: (text, PHASE_COLORS[name]) for name, text in PHASES.items()}


def _headed(headers: Sequence[str], meanings: Mapping[str, str]) -> list[tuple[str, str]]:
    """(header in one line, its definition)."""
    names = [one_line(header) for header in headers]
    return [(name, meanings.get(name, "")) for name in names]


def _numbers(sweep: Sweep) -> list[tuple[str, str, str]]:
    """Everything that was measured, if there is only one run."""
    from harness.report.one_run import lines

    return list(lines(records(sweep.groups)[0])) if len(sweep.table) == 1 and len(sweep.done) else []


def _row(cells: Sequence[str], color: str) -> dict[str, Any]:
    """Cells of a table row, a line each for the mean, its interval and its spread, with the values to sort by."""

    def value(text: str) -> str:
        plain = text.replace(",", "").replace("×", "").split()[0]
        try:
            return str(float(plain))
        except ValueError:
            return "" if text == "–" else text

    return {
        "color": color,
        "cells": [{"lines": text.replace(" ± ", "\n± ").split("\n"), "value": value(text)} for text in cells],
    }


def _books(sweep: Sweep) -> str:
    """The books: what each column means, and its share of each system's pool."""
    from markupsafe import escape

    done = records(sweep.inside.head(8))
    saturated = all(row["saturated_kv_used_pct"] == row["saturated_kv_used_pct"] for row in done)
    prefix = "saturated_kv" if saturated else "kv"
    names = [str(escape(row["label"])).replace("(", "<wbr>(").replace("_", "_<wbr>") for row in done]
    head = "".join(f"<th>{name}, %</th>" for name in names)
    lines = []
    for name, (color, text) in COLUMNS.items():
        shares = [row.get(f"{prefix}_{name}_pct") for row in done]
        if any(share and share > 0.005 for share in shares):
            cells = "".join(
                f"<td>{share:.1f}</td>" if share is not None and share == share else "<td>–</td>" for share in shares
            )
            lines.append(
                f'<tr><td><i class="dot" style="background:{color}"></i>{name}</td><td>{escape(text)}</td>{cells}</tr>'
            )
    capacity = {int(row["capacity"]) for row in done if row["capacity"] == row["capacity"]}
    size = f" of {capacity.pop():,} {sweep.unit}" if len(capacity) == 1 else ""
    said = (f"Each {sweep.unit[:-1]} of the pool{size} stands in exactly one line, the first that applies; so each "
            "column sums to 100.")  # fmt: skip
    header = f"<thead><tr><th>column</th><th>meaning</th>{head}</tr></thead>"
    body = f"<tbody>{''.join(lines)}</tbody>"
    return f'<p>{said}</p><div class="scroll"><table class="books">{header}{body}</table></div>'


def _images(figures: Sequence[Path]) -> list[dict[str, str]]:
    return [
        {"name": path.stem, "uri": "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()}
        for path in figures
        if path.stem not in INTERACTIVE
    ]


def _beside(pairs: pd.DataFrame | None, why: Sequence[str]) -> dict[str, Any] | None:
    """Published numbers beside ours, as a table."""
    if pairs is None or (pairs.empty and not why):
        return None
    text = pairs.astype(object).where(pairs.notna(), "")
    rows = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in text.to_numpy()]
    return {"title": "Published, and the same here", "headers": list(pairs.columns), "rows": rows, "why": why}


def _details(sweep: Sweep) -> list[tuple[str, str]]:
    """Configuration and environment of the first job that finished."""
    if sweep.done.empty:
        return []
    folder = sweep.folder / sweep.done["dirs"].iloc[0][0]
    names = (("Configuration", "config.yaml"), ("Environment", "environment.json"))
    return [
        (f"{title} ({name} of the first row)", (folder / name).read_text(encoding="utf-8"))
        for title, name in names
        if (folder / name).exists()
    ]


def _json(data: dict[str, Any]) -> str:
    """JSON that is safe inside a `script` element."""
    return json.dumps(data, separators=(",", ":")).replace("</", "<\\/")


def _version() -> str:
    try:
        return metadata.version("kvlab")
    except metadata.PackageNotFoundError:
        return ""
