"""The report of `experiment=measured`: errors by group, coverage, and every row as a point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from harness.files import records, write_table, write_text
from harness.measured.predict import Predictor
from harness.operators.machines import NAMES, PATH, Machine
from harness.report.drawing import Draw, draw_all
from harness.report.style import frame, new_figure, plain_log

BY = ["model", "gpu", "engine", "precision", "origin"]
METRICS = {"tpot": "time per further token", "ttft": "time to first token"}
COLUMNS = ("rows", "predicted", "not as stated", "TPOT median %", "TPOT mean %", "TTFT median %", "TTFT mean %",
           "TPOT bias %", "TTFT bias %", "TPOT median % as stated", "TTFT median % as stated")  # fmt: skip


def report(table: pd.DataFrame, rows: pd.DataFrame, folder: Path, predictor: Predictor) -> list[dict[str, Any]]:
    """Write `groups.csv`, `by_concurrency.csv`, `figures/` and `REPORT.md`, and print the groups.

    Args:
        table: as `predictions.csv`; rows: the measured runs beside it.
    """
    groups = by(table, BY)
    write_table(folder / "groups.csv", groups)
    write_table(folder / "by_concurrency.csv", by(table, [*BY, "concurrency"]))
    notes: list[str] = []
    figures: dict[str, Draw] = {"scatter": lambda: draw(table, rows), "errors": lambda: draw_errors(table)}
    draw_all(folder / "figures", figures, notes)
    refused = table[table["refused"] != ""].groupby("refused").size().sort_values(ascending=False)
    lines = ["# Predicted beside measured runs", "", *_summary(table), "", "![](figures/scatter.png)", "",
             "![](figures/errors.png)", "", "## By group", "", *markdown(groups), ""]  # fmt: skip
    peers = peer_errors(table, rows)
    if len(peers):
        lines += ["## Beside others' predictions", "", *markdown(peers), ""]
    lines += ["## Refused", "", *(f"- {count}: {why}" for why, count in refused.items()), ""]
    lines += ["", "## Constants", "", *constants(table), "", "## Keep in mind", "", *(f"- {line}" for line in RULES)]
    write_text(folder / "REPORT.md", "\n".join(lines) + "\n")
    _print(groups, [*_summary(table), *(f"refused, {count}: {why}" for why, count in refused.items()), *notes])
    return records(groups)


RULES = (
    "Errors are of the means of TTFT and TPOT over a run's requests; a group's median and mean are over |error| of all "
    "its rows that were predicted.",
    "A row whose measured rate would need more than 115 % of the GPU's time by these tables is named `not as stated`, "
    "and scored all the same: the tables may be too slow instead. The last two columns are without such rows.",
    "TTFT of rows that are not from inferencex is printed, not to be scored: nobody describes their client.",
    "Tables are of a version of the engine that is newer than most runs; which one stands in `assumed`.",
)


def by(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Errors by group."""
    found = [dict(zip(keys, names, strict=True)) | figures_of(part)
             for names, part in table.fillna(dict.fromkeys(keys, "")).groupby(keys, sort=True)]  # fmt: skip
    return pd.DataFrame(found, columns=[*keys, *COLUMNS])


def figures_of(part: pd.DataFrame) -> dict[str, Any]:
    """The error figures of some rows."""
    scored = part[part["refused"] == ""]
    told: dict[str, Any] = {"rows": len(part), "predicted": int((part["refused"] == "").sum()),
                            "not as stated": int((part["not_as_stated"] != "").sum())}  # fmt: skip
    for name in METRICS:
        errors = scored[f"{name}_error_pct"].astype(float).dropna()
        values = (errors.abs().median(), errors.abs().mean(), errors.median()) if len(errors) else (None,) * 3
        for what, value in zip(("median", "mean", "bias"), values, strict=True):
            told[f"{name.upper()} {what} %"] = None if value is None else round(float(value), 1)
        stated = errors[scored.loc[errors.index, "not_as_stated"] == ""].abs()
        told[f"{name.upper()} median % as stated"] = round(float(stated.median()), 1) if len(stated) else None
    return {name: told[name] for name in COLUMNS}


def peer_errors(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Median |error| of others' predictions of the rows: columns NAME_ttft_ms and NAME_tpot_ms."""
    names = sorted({column[:-8] for column in rows.columns if column.endswith("_ttft_ms")} - {"silicon"})
    joined = table.merge(rows.reset_index(drop=True).set_axis(table.index)[
        [column for column in rows.columns if column not in table]], left_index=True, right_index=True)  # fmt: skip
    found = []
    for keys, part in joined.fillna(dict.fromkeys(BY, "")).groupby(BY):
        for name in names:
            there = part[part[f"{name}_ttft_ms"].notna() & (part["refused"] == "")]
            told: dict[str, Any] = {**dict(zip(BY, keys, strict=True)), "who": name, "rows both predict": len(there)}
            for metric in METRICS:
                other = 100 * (there[f"{name}_{metric}_ms"] / there[f"silicon_{metric}_ms"] - 1).abs()
                told[f"their {metric.upper()} median %"] = round(float(other.median()), 1) if len(there) else None
                ours = there[f"{metric}_error_pct"].astype(float).abs()
                told[f"our {metric.upper()} median %"] = round(float(ours.median()), 1) if len(there) else None
            found.append(told)
    return pd.DataFrame(found)


def constants(table: pd.DataFrame) -> list[str]:
    """Lines with the constants of the machines that occur, and the file with their intervals."""
    pairs = sorted({(gpu, engine) for gpu, engine in zip(table["gpu"], table["engine"], strict=True)})
    lines = [f"- {gpu}, {engine}: {Machine.of(gpu, engine).said}" for gpu, engine in pairs]
    return [*lines, f"- intervals and the groups they were fitted on: `{PATH.name}` ({', '.join(NAMES)})"]


def markdown(table: pd.DataFrame) -> list[str]:
    """A table as Markdown."""
    rows = [list(table.columns), ["---"] * len(table.columns), *table.astype(object).values.tolist()]
    cells = (["–" if value is None or value != value else str(value) for value in row] for row in rows)
    return ["| " + " | ".join(row) + " |" for row in cells]


def _summary(table: pd.DataFrame) -> list[str]:
    whole = figures_of(table)
    done, of, wrong = (whole[name] for name in ("predicted", "rows", "not as stated"))
    return [f"{done:,} of {of:,} rows predicted, {wrong} of them not as stated; "
            f"median |error| {whole['TPOT median %']} % of TPOT and {whole['TTFT median %']} % of TTFT."]  # fmt: skip


def _print(groups: pd.DataFrame, lines: list[str]) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=180)
    view = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title="|error| by group", title_justify="left")
    for i, header in enumerate(groups.columns):
        view.add_column(header, justify="left" if i < len(BY) else "right")
    for row in groups.astype(object).values.tolist():
        view.add_row(*("–" if value is None or value != value else str(value) for value in row))
    console.print(view)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def draw(table: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """Predicted over measured, a point per row, coloured by engine."""
    fig = new_figure(11, 5.6)
    axes = fig.subplots(1, 2)
    for ax, name in zip(axes, METRICS, strict=True):
        real, told = rows[f"silicon_{name}_ms"].to_numpy(float), table[f"predicted_{name}_ms"].astype(float).to_numpy()
        there = np.isfinite(told) & (real > 0)
        for colour, engine in zip(COLOURS, sorted(set(table["engine"])), strict=False):
            at = there & (table["engine"] == engine).to_numpy()
            ax.scatter(real[at], told[at], s=9, alpha=0.5, color=colour, linewidths=0, label=engine)
        if there.any():
            ends = [min(real[there].min(), told[there].min()) * 0.8, max(real[there].max(), told[there].max()) * 1.2]
            ax.plot(ends, ends, color="#222222", linewidth=1)
            for factor in (0.8, 1.25):
                ax.plot(ends, [end * factor for end in ends], color="#b5b5b5", linewidth=0.8, linestyle=(0, (4, 2)))
            ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
            for axis in ("x", "y"):
                plain_log(ax, ends[1] / ends[0], axis)
        ax.set(xlabel=f"measured {name.upper()}, ms", ylabel=f"predicted {name.upper()}, ms")
    axes[0].legend(frameon=False)
    frame(fig, "Predicted beside measured", "one point a run; the line is equality, dashed 25 % off")
    return fig


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def draw_errors(table: pd.DataFrame) -> Figure:
    """The distribution of errors: a strip for each group, TPOT and TTFT side by side."""
    scored = table[table["refused"] == ""].fillna(dict.fromkeys(BY, ""))
    groups = list(scored.groupby(BY))
    named = [" ".join(map(str, keys[:4])).replace("_sxm", "") for keys, _ in groups]
    labels = [f"{name} ({keys[4]})" if named.count(name) > 1 else name
              for name, (keys, _) in zip(named, groups, strict=True)]  # fmt: skip
    fig = new_figure(12, 1.8 + 0.3 * max(len(groups), 1))
    axes = fig.subplots(1, 2, sharey=True)
    for ax, name in zip(axes, METRICS, strict=True):
        for i, (_, part) in enumerate(groups):
            errors = part[f"{name}_error_pct"].astype(float).clip(-100, 100)
            spread = np.linspace(-0.25, 0.25, len(errors)) if len(errors) > 1 else [0.0]
            ax.scatter(errors, [i + one for one in spread], s=7, alpha=0.45, color="#0072B2", linewidths=0)
            ax.plot([errors.median()] * 2, [i - 0.35, i + 0.35], color="#D55E00", linewidth=2)
        ax.axvline(0, color="#222222", linewidth=1)
        ax.set(xlim=(-102, 102), xlabel=f"error of {name.upper()}, %")
    axes[0].set_yticks(range(len(groups)), labels)
    axes[0].set_ylim(len(groups) - 0.5, -0.5)
    frame(fig, "Where the error sits", "a point a run, cut at 100 %; the bar is the group's median")
    return fig
