"""REPORT.md: what ran, the table, the findings in numbers, the figures and what to keep in mind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from harness.files import records
from harness.report.columns import definitions, one_line
from harness.report.paper import fig_2_applies
from harness.report.prediction import StepTimes
from harness.report.repeats import INSIGNIFICANT
from harness.report.style import seconds, with_half
from harness.report.sweep import Sweep
from harness.report.table import beside_fig_2, beside_simulated, notes, table_cells
from harness.report.two_by_two import factor


def report_text(sweep: Sweep, square: pd.DataFrame, times: StepTimes | None,
                figures: list[Path], warnings: list[str]) -> str:  # fmt: skip
    """The whole report as Markdown."""
    headers, rows = table_cells(sweep.groups)
    headers = [one_line(header) for header in headers]
    rows = [[cell.replace("\n", "<br>") for cell in row] for row in rows]
    lines = ["# What ran", "", sweep.what_ran or "No job finished.", ""]
    if rows:
        lines += ["| " + " | ".join(cells) + " |" for cells in (headers, ["---"] * len(headers), *rows)] + [""]
        lines += [*(f"- {name}: {text}" for name, text in definitions(sweep.groups)), ""]
    lines += ["# Findings", "", *(f"- {text}" for text in findings(sweep, square, times)), ""]
    for path in figures:
        lines += [f"![{path.stem}](figures/{path.name})", ""]
    if said := remarks(sweep, warnings):
        lines += ["# Keep in mind", "", *(f"- {text}" for text in said)]
    return "\n".join(lines) + "\n"


def remarks(sweep: Sweep, warnings: list[str]) -> list[str]:
    """What to keep in mind: notes on the table, biases of the comparison, and what went wrong."""
    return [*notes(sweep.table, sweep.groups), *caveats(sweep), *warnings]


def findings(sweep: Sweep, square: pd.DataFrame, times: StepTimes | None) -> list[str]:
    """The findings, as sentences with measured numbers only."""
    found, done = [], sweep.done
    if done.empty:
        return ["No job finished, so there is nothing to say."]
    ratios = done.set_index("label")["output_throughput_x"].dropna()
    if len(ratios) > 1:
        best = records(done[done["label"] == ratios.idxmax()])[0]
        untold = ""
        if best["told_apart"] in INSIGNIFICANT:
            untold = f", but is not told apart from it by {best['repeats']} repeats"
        ratio = with_half(best, "output_throughput_x", "{:.2f}")
        found.append(
            f"{best['label']} produces {ratio} times the output tokens per second of {sweep.baseline}{untold}."
        )
    else:
        found += [alone(row) for row in records(done) if not pd.isna(row["output_throughput"])]
    used = done.set_index("label")["saturated_kv_used_pct"].dropna()
    if len(used):
        shares = {row["label"]: with_half(row, "saturated_kv_used_pct", "{:.1f}") for row in records(done)}
        found.append(f"KV {sweep.unit} in use while requests wait for memory: "
                     + ", ".join(f"{name} {shares[name]} %" for name in used.index) + ".")  # fmt: skip
    for row in records(square):
        at = ", ".join(f"{name} {row[name]}" for name in sweep.swept)
        found.append(f"2 × 2{f' at {at}' if at else ''}: paging alone {factor(row, 'paging')}, continuous "
                     f"batching alone {factor(row, 'continuous')}, both {factor(row, 'both')}; ln "
                     f"{row['ln_paging']:.3f} + {row['ln_continuous']:.3f} {row['ln_remainder']:+.3f} (remainder) = "
                     f"{row['ln_both']:.3f}.")  # fmt: skip
    if times is not None:
        sentence = times.sentence()
        found.append(f"{sentence[0].upper()}{sentence[1:]} ({times.steps:,} steps; a model fitted to four fifths of "
                     f"them misses the others by {times.held_back_pct:.1f} %, median).")  # fmt: skip
    found += beside_simulated(sweep.groups) + beside_fig_2(sweep.groups)
    return found


def alone(row: dict[str, Any]) -> str:
    """A sentence about the only system of a sweep."""
    text = f"{row['label']} produces {row['output_throughput']:,.1f} output tokens per second"
    if not pd.isna(steady := row.get("steady_output_throughput")):
        text += f" ({steady:,.1f} without ramp and drain)"
    told = [("ttft_p50_ms", "the median time to the first token is {}"), ("tpot_p50_ms", "to each further one {}")]
    times = [form.format(seconds(row[key] / 1e3)) for key, form in told if not pd.isna(row[key])]
    return f"{text} with {row['mean_batch_size']:.3g} sequences in the batch" + "".join(f"; {t}" for t in times) + "."


def caveats(sweep: Sweep) -> list[str]:
    """Which systems the set-up favours, and how far the numbers may be off by chance."""
    found = []
    if (sweep.done["scheduler"] == "static").any():
        found.append("Prompts of a static batch are not padded to the longest one, which favours the static systems.")
    done = sweep.done
    if len(done) and "injected" in done and fig_2_applies(done):
        n = done["injected"].max()
        if n < 400:
            found.append(f"{n:.0f} requests are a sample: with 128, the share of KV memory in use varies between seeds "
                         "with a standard deviation of 1.4 points, for Orca (Oracle) from 32.7 to 38.2 % over 12 "
                         "seeds (simulated).")  # fmt: skip
    return found
