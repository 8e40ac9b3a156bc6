"""The charts of a report page: plotly figures of the same tables as the PNGs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from matplotlib.colors import to_rgb
from plotly.subplots import make_subplots

from harness.files import records
from harness.metrics.spread import LEAST
from harness.report.looks import LINES, Look, row_looks, system_looks
from harness.report.page.bound import CAUSES, bound_over_time
from harness.report.paper import FIG_2, fig_2_applies
from harness.report.repeats import INSIGNIFICANT
from harness.report.style import COLUMNS, with_half
from harness.report.sweep import Sweep

MOST = 24  # systems in a chart; more bars or lines can't be told apart
POINTS = 300  # of a curve
CAUSE_COLORS = dict(zip(CAUSES, ("#D55E00", "#CC79A7", "#E69F00", "#8C6D31", "#0072B2", "#bbbbbb"), strict=True))
DASHES = {"-": "solid"} | {dash: ",".join(f"{2 * part:g}px" for part in dash[1]) for dash, _ in LINES if dash != "-"}
LATENCIES = (("ttft_ms", "time to first token, s", 1e3), ("tpot_ms", "time per further token, ms", 1.0),
             ("e2e_ms", "end to end, s", 1e3))  # fmt: skip


class Chart(NamedTuple):
    """One chart of the page: its id, headline, description and figure."""

    name: str
    title: str
    text: str
    figure: go.Figure


def charts(sweep: Sweep) -> Iterator[Chart]:
    """Every chart that fits this sweep (or single job)."""
    done = sweep.done.head(MOST)
    rows = records(done)
    if not rows:
        return
    looks = row_looks(sweep.groups, sweep.swept)
    if len(rows) > 1:
        yield _throughput(sweep, rows, looks)
    inside = records(sweep.inside.head(MOST))
    if inside:
        yield _books(sweep, inside)
    yield _latencies(sweep, rows, looks)
    if inside:
        yield _over_time(sweep, inside, looks)
        yield _bound(sweep, inside)


def first_repeat(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence for pictures of a single run, if there are repeats."""
    return " The first repeat of each system." if any(row["repeats"] > 1 for row in rows) else ""


def _line(look: Look) -> dict[str, Any]:
    return {"color": look.color, "dash": DASHES[look.dash]}


def color_of(sweep: Sweep) -> dict[str, str]:
    """The colour of every system."""
    return {name: look.color for name, look in system_looks(sweep.groups).items()}


def _throughput(sweep: Sweep, rows: list[dict[str, Any]], looks: dict[str, Look]) -> Chart:
    values = [row["output_throughput"] for row in rows]
    ratios = [with_half(row, "output_throughput_x", "×{:.2f}") if pd.notna(row["output_throughput_x"]) else ""
              for row in rows]  # fmt: skip
    ratios = [f"{ratio}, {row['told_apart']}" if row["told_apart"] in INSIGNIFICANT else ratio
              for ratio, row in zip(ratios, rows, strict=True)]  # fmt: skip
    spread = {}
    if any(row["repeats"] >= LEAST for row in rows):
        spread["error_x"] = _interval(rows, ["output_throughput"] * len(rows))
    whiskers = ["Whiskers and ±: 95 % interval of the mean over repeats (Student's t)."] if spread else []
    labels = [row["label"] for row in rows]
    bars = go.Bar(y=labels, x=values, orientation="h",
                  marker_color=[looks[label].color for label in labels],
                  marker_pattern_shape=[looks[label].hatch[:1] for label in labels],
                  hovertemplate="%{y}<br>%{x:,.1f} output tokens/s<extra></extra>", **spread)  # fmt: skip
    figure = go.Figure(bars, _layout(90 + 34 * len(rows), "output tokens per second", showlegend=False))
    ends = [np.nanmax([row["output_throughput"], row.get("output_throughput_high", np.nan), 0.0]) for row in rows]
    figure.add_scatter(y=labels, x=ends, mode="text", text=[f" {ratio}" for ratio in ratios], hoverinfo="skip",
                       textposition="middle right", cliponaxis=False)  # fmt: skip
    figure.update_xaxes(range=[0, 1.18 * max(*ends, 1e-9)])
    figure.update_yaxes(autorange="reversed", automargin=True)
    said = ["Tokens that were produced, over the whole run. Beside each bar: how many times the baseline's.",
            *whiskers, *sweep.insignificant]  # fmt: skip
    return Chart("throughput", "Throughput", " ".join(said), figure)


def _interval(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Error bars: the 95 % interval of each row's mean over repeats, for the metric named for that row."""
    halves = [row.get(f"{name}_high", np.nan) - row[name] for row, name in zip(rows, names, strict=True)]
    return {"type": "data", "array": [None if pd.isna(half) else half for half in halves], "thickness": 1.3}


def _books(sweep: Sweep, rows: list[dict[str, Any]]) -> Chart:
    saturated = bool(sweep.done["saturated_kv_used_pct"].notna().any())
    paper = saturated and fig_2_applies(sweep.done) and not sweep.swept
    bars: list[tuple[str, dict[str, float]]] = []
    for row in rows:
        prefix = "saturated_kv" if row["saturated_kv_used_pct"] == row["saturated_kv_used_pct"] else "kv"
        bars.append((row["label"], {name: row.get(f"{prefix}_{name}_pct", 0) for name in COLUMNS}))
        if paper and row["system"] in FIG_2:
            bars.append((f"{row['label']}, the paper's Fig. 2", FIG_2[row["system"]]))
    figure = go.Figure(
        layout=_layout(
            210 + 30 * len(bars), "% of the KV pool", barmode="stack", margin={"l": 10, "r": 20, "t": 130, "b": 45}
        )
    )
    for name, (color, text) in COLUMNS.items():
        values = [0 if pd.isna(part := parts.get(name)) else part for _, parts in bars]
        if max(values) > 0.05:
            said = [f"{value:.1f}" if value >= 4 else "" for value in values]
            theirs = ["/" if "the paper's" in label else "" for label, _ in bars]
            figure.add_bar(y=[label for label, _ in bars], x=values, orientation="h", name=text, marker_color=color,
                           marker_pattern_shape=theirs, text=said, textposition="inside", insidetextanchor="middle",
                           hovertemplate="%{y}<br>%{x:.1f} % " + text + "<extra></extra>")  # fmt: skip
    rest = [parts.get("external", 0) for _, parts in bars]
    if any(rest):
        figure.add_bar(y=[label for label, _ in bars], x=rest, orientation="h", marker_color="#b9b3ad",
                       marker_pattern_shape="/", name="paper only: “external fragmentation & others”")  # fmt: skip
    if any(row["repeats"] >= LEAST for row in rows):
        names = [f"{'saturated_kv' if pd.notna(row['saturated_kv_used_pct']) else 'kv'}_used_pct" for row in rows]
        figure.add_scatter(
            y=[row["label"] for row in rows], x=[row[name] for row, name in zip(rows, names, strict=True)],
            mode="markers", marker={"color": "#222222", "size": 1, "opacity": 0}, error_x=_interval(rows, names),
            hoverinfo="skip", showlegend=False,
        )  # fmt: skip
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(range=[0, 100])
    when = "while requests waited for memory" if saturated else "over the whole run (no request waited for memory)"
    text = f"Every {sweep.unit[:-1]} of the pool is in exactly one colour; mean {when}."
    return Chart("books", "Where the KV memory is", text, figure)


def _latencies(sweep: Sweep, rows: list[dict[str, Any]], looks: dict[str, Look]) -> Chart:
    figure = make_subplots(1, len(LATENCIES), shared_yaxes=True, horizontal_spacing=0.03,
                           subplot_titles=[title for _, title, _ in LATENCIES])  # fmt: skip
    share = np.linspace(0, 100, POINTS)
    for row in rows:
        requests = sweep.requests(row["dirs"], [name for name, _, _ in LATENCIES])
        ends = sweep.quantiles(row["dirs"], [name for name, _, _ in LATENCIES], share)
        for column, (name, _, scale) in enumerate(LATENCIES, 1):
            for end, x in enumerate(ends.get(name, ())):
                figure.add_scatter(
                    x=x / scale, y=share, name=row["label"], legendgroup=row["label"], showlegend=False, mode="lines",
                    line={"width": 0}, fill="tonextx" if end else None, hoverinfo="skip", row=1, col=column,
                    fillcolor=f"rgba{(*(round(255 * part) for part in to_rgb(looks[row['label']].color)), 0.18)}",
                )  # fmt: skip
            values = requests[name].dropna().to_numpy() / scale
            if len(values):
                figure.add_scatter(
                    x=np.percentile(values, share), y=share, name=row["label"], legendgroup=row["label"],
                    showlegend=column == 1, line=_line(looks[row["label"]]), row=1, col=column,
                    hovertemplate="%{y:.0f} % of the requests within %{x:.3g}<extra>" + row["label"] + "</extra>",
                )  # fmt: skip
    for column in range(1, len(LATENCIES) + 1):
        drawn = [trace.x for trace in figure.select_traces(row=1, col=column) if trace.line.width != 0]
        low, high = min((x.min() for x in drawn), default=0), max((x.max() for x in drawn), default=0)
        if low > 0 and high / low > 10:
            figure.update_xaxes(type="log", dtick="D2" if high / low < 100 else 1, row=1, col=column)
    figure.update_layout(_layout(440, margin={"l": 10, "r": 20, "t": 110 if len(rows) > 1 else 40, "b": 45},
                                 showlegend=len(rows) > 1))  # fmt: skip
    figure.update_yaxes(title_text="% of the requests", col=1)
    bands = " Bands: 95 % interval of each quantile over repeats." if any(r["repeats"] >= LEAST for r in rows) else ""
    return Chart("latencies", "Latencies", "Share of the requests served within a time, from their scheduled arrival. "
                 f"Click a system to hide it, twice to see it alone.{bands}", figure)  # fmt: skip


def _over_time(sweep: Sweep, rows: list[dict[str, Any]], looks: dict[str, Look]) -> Chart:
    panels = (("num_seqs", "requests in the batch"), ("waiting", "requests waiting"), ("used", "KV pool in use, %"))
    figure = make_subplots(len(panels), 1, shared_xaxes=True, vertical_spacing=0.08,
                           subplot_titles=[title for _, title in panels])  # fmt: skip
    for row in rows:
        edges, values = sweep.over_time(row["dirs"][0], [name for name, _ in panels])
        values[:, 2] *= 100 / sweep.capacity(row["dirs"][0])
        for at, series in enumerate(values.T, 1):
            figure.add_scatter(
                x=edges, y=[*series, series[-1]], name=row["label"], legendgroup=row["label"], showlegend=at == 1,
                line=_line(looks[row["label"]]) | {"shape": "hv", "width": 1.5, "dash": "solid"}, row=at, col=1,
                hovertemplate="%{y:.4g} at %{x:.3g} s<extra>" + row["label"] + "</extra>",
            )  # fmt: skip
    figure.update_layout(_layout(680, margin={"l": 10, "r": 20, "t": 110 if len(rows) > 1 else 40, "b": 45},
                                 showlegend=len(rows) > 1))  # fmt: skip
    figure.update_xaxes(title_text="time, s", row=len(panels))
    text = f"How many requests run and wait, and how full the pool is.{first_repeat(rows)}"
    return Chart("over_time", "Over time", text, figure)


def _bound(sweep: Sweep, rows: list[dict[str, Any]]) -> Chart:
    figure = make_subplots(len(rows), 1, shared_xaxes=True, vertical_spacing=0.45 / (len(rows) + 1))
    seen = set[str]()
    for at, row in enumerate(rows, 1):
        budget = row.get("max_num_batched_tokens")
        limits = int(row["max_num_seqs"]), int(budget) if budget and budget == budget else 1 << 62
        edges, shares = bound_over_time(sweep.folder / row["dirs"][0] / "steps.csv", *limits)
        middles = (edges[1:] + edges[:-1]) / 2
        for (name, text), share in zip(CAUSES.items(), shares.T, strict=True):
            if share.max() > 0.001:
                figure.add_bar(x=middles, y=100 * share, width=edges[1] - edges[0], name=text, legendgroup=name,
                               showlegend=name not in seen, marker_color=CAUSE_COLORS[name], marker_line_width=0,
                               row=at, col=1, hovertemplate="%{y:.0f} % of the time around %{x:.3g} s<extra>"
                               + text + "</extra>")  # fmt: skip
                seen.add(name)
        figure.add_annotation(text=row["label"], xref="x domain" if at == 1 else f"x{at} domain", x=0, xanchor="left",
                              yref="y domain" if at == 1 else f"y{at} domain", y=1, yanchor="bottom", showarrow=False,
                              font_size=12)  # fmt: skip
    figure.update_layout(
        _layout(170 + 74 * len(rows), barmode="stack", bargap=0, margin={"l": 10, "r": 20, "t": 110, "b": 45})
    )
    figure.update_yaxes(range=[0, 100], showticklabels=False)
    figure.update_xaxes(title_text="time, s", row=len(rows))
    text = f"Why no more requests were in the batch, interval by interval.{first_repeat(rows)}"
    return Chart("bound", "What bound the run", text, figure)


def _layout(height: int, x: str = "", **more: Any) -> dict[str, Any]:
    """The common layout of all charts; the page, light or dark, sets the colours of text and grid."""
    return {
        "height": height, "margin": {"l": 10, "r": 60, "t": 40, "b": 45}, "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)", "font": {"family": "system-ui, sans-serif", "size": 13},
        "legend": {"orientation": "h", "yanchor": "top", "yref": "container", "y": 1, "x": 0,
                   "traceorder": "normal"},
        "xaxis": {"title": {"text": x}}, "hoverlabel": {"namelength": -1}, **more,
    }  # fmt: skip
