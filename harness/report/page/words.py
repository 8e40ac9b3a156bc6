"""The sentences of a page: the question, the answer, and the command that reproduces it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd

from harness.console.listing import first_sentence
from harness.errors import HarnessError
from harness.files import records
from harness.folders.plan import read_plan, summary_of
from harness.installation import EXPERIMENTS
from harness.report.repeats import INSIGNIFICANT
from harness.report.sweep import Sweep

ASKED = "What does it cost the server?"


def command_of(folder: Path) -> str:
    """The command line that reproduces a sweep or a job."""
    words = _words(folder)
    return shlex.join(["python", "-m", "harness", *words]) if words is not None else ""


def question_of(sweep: Sweep) -> str:
    """The experiment's question; for any other sweep, a question about what differs; for a run, about its system."""
    for word in _words(sweep.folder) or []:
        path = EXPERIMENTS / "experiment" / f"{word.removeprefix('experiment=')}.yaml"
        if word.startswith("experiment=") and path.is_file():
            return first_sentence(path).rstrip(":.")
    if sweep.swept:
        return f"What does {' and '.join(name.split('.')[-1] for name in sweep.swept)} change?"
    systems = list(dict.fromkeys(sweep.table["system"].astype(str)))
    if len(systems) > 1:
        return f"How do {', '.join(systems[:-1])} and {systems[-1]} differ?" if len(systems) < 5 else (
            f"How do {len(systems)} systems differ?")  # fmt: skip
    return f"Where do memory and time go with {systems[0]}?" if systems else ASKED


def answer_of(sweep: Sweep) -> str:
    """The main number in a sentence."""
    done = sweep.done
    if done.empty:
        return "No job finished."
    best = max(records(done), key=lambda row: row["output_throughput"])
    used, whole = best["saturated_kv_used_pct"], best["kv_used_pct"]
    share = used if pd.notna(used) else whole
    when = "while requests wait for memory" if pd.notna(used) else "on average"
    memory = f", and {share:.0f} % of the KV pool hold tokens in use {when}" if pd.notna(share) else ""
    speed = f"{best['output_throughput']:,.0f} output tokens per second"
    ratio = best["output_throughput_x"]
    if best["told_apart"] in INSIGNIFICANT:
        untold = f"not told apart from {sweep.baseline} by {best['repeats']} repeats"
        return f"{best['label']} produces {speed}, {untold}{memory}."
    if len(done) > 1 and pd.notna(ratio) and ratio > 1.005:
        return f"{best['label']} produces {speed}, {ratio:.2f} times those of {sweep.baseline}{memory}."
    return f"{best['label']} produces {speed}{memory}."


def _words(folder: Path) -> list[str] | None:
    """The arguments of the command that wrote a folder."""
    try:
        plan = read_plan(folder)
        row = summary_of(folder) if plan is None else None
    except HarnessError:
        return None
    if plan is not None:
        return plan.command
    return list(row.get("overrides", [])) if row else None
