"""Several answers to each prompt (Figs. 14 and 15 of the PagedAttention paper): rates sustained, and memory saved."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.files import records
from harness.published import curve
from harness.report.curves import AXIS, capacities, caption, draw_panel, legend
from harness.report.figures import Pair
from harness.report.looks import color_of, system_looks
from harness.report.style import frame, new_figure, times, whisker
from harness.report.sweep import Sweep

ANSWERS = "workload.n"
SAVED = "kv_saved_pct"
NOUNS = {"parallel": "samples", "beam": "beams"}


def draw_answers(sweep: Sweep, kind: str) -> Figure | None:
    """A panel of latency curves for each number of answers, and vLLM's savings; None when no search finished.

    Args:
        kind: `parallel` (samples) or `beam` (a search), as in the published files.
    """
    done = _searched(sweep)
    if done.empty:
        return None
    groups = list(done.groupby(ANSWERS, sort=True))
    style = system_looks(sweep.groups)
    fig = new_figure(3.9 * (len(groups) + 1), 5.4)
    *axes, last = fig.subplots(1, len(groups) + 1)
    for ax, (count, rows) in zip(axes, groups, strict=True):
        draw_panel(ax, sweep, rows, style, "fig14", _panel(rows, kind))
        ax.set_title(f"{count} {NOUNS[kind]} for each prompt")
    axes[0].set_ylabel(AXIS)
    vllm = done[done["system"] == "vLLM"].sort_values(ANSWERS)
    draw_saved(last, vllm, kind)
    last.set_title("vLLM: memory saved by sharing")
    first = done["workload"].iloc[0]
    text = caption(done) + (" Right: slots that sharing saves, in % of those held without it, mean over the run at its "
                            "capacity; hatched: Fig. 15.")  # fmt: skip
    return frame(fig, f"{first}: {_finding(done, kind)}", sweep.what_ran, text, legend(done["system"], style, "fig14"),
                 ncols=6)  # fmt: skip


def draw_saved(ax: Axes, rows: pd.DataFrame, kind: str) -> None:
    """Two bars for each row, ours and the paper's where it printed one."""
    for x, row in enumerate(records(rows)):
        theirs = printed(row["model"], row["workload"], kind).get(row[ANSWERS])
        bars = [(x if theirs is None else x - 0.2, row[SAVED], False)]
        bars += [(x + 0.2, theirs, True)] if theirs is not None else []
        for at, value, published in bars:
            ax.bar(at, value, 0.36, color=color_of("vLLM"), alpha=0.45 if published else 1, edgecolor="white",
                   hatch="////" if published else None)  # fmt: skip
            if not published:
                whisker(ax, row, SAVED, at)
            ax.annotate(f"{value:.1f}", (at, value), xytext=(0, 2), textcoords="offset points", ha="center", size=8.5)
    ax.set_xticks(range(len(rows)), [f"{count:g}" for count in rows[ANSWERS]])
    ax.tick_params(axis="x", length=0)
    ax.set(xlabel=f"{NOUNS[kind]} for each prompt", ylabel="% of the slots without sharing")
    ax.set_ylim(0, ax.get_ylim()[1] * 1.06)


def printed(model: str, workload: str, kind: str) -> dict[float, float]:
    """The savings of Fig. 15 and its text in %, by the number of answers."""
    return {point[0]: point[1] for point in curve("fig15", f"{model}_{workload}", kind)}


def saved_pairs(rows: pd.DataFrame, kind: str) -> Iterator[Pair]:
    """vLLM's savings beside Fig. 15."""
    for row in records(rows[rows["system"] == "vLLM"]):
        theirs = printed(row["model"], row["workload"], kind).get(row[ANSWERS])
        if theirs is not None:
            at = f"{row['workload']}, {row[ANSWERS]:g} {NOUNS[kind]}"
            yield Pair("memory saved", "% of slots without sharing", "vLLM", at, theirs, row[SAVED])


def answer_pairs(sweep: Sweep, kind: str) -> Iterator[Pair]:
    """Savings, capacities and the ratios between them."""
    done = _searched(sweep)
    yield from saved_pairs(done, kind)
    for count, rows in done.groupby(ANSWERS, sort=True):
        yield from capacities(rows, "fig14", _panel(rows, kind), f"{count} {NOUNS[kind]}")


WHY = [
    "Saved: slots of blocks that several answers hold, less one for all, over all slots held if nobody shared; mean "
    "over time of the whole run. In the run at its capacity and with all requests at once it is the same within half a "
    "point, for it is a matter of lengths alone.",
    "Step times: 26.2 ms + 0.42 ms a sequence (Fig. 1 of the paper), of which reading 414 tokens of context takes "
    "0.26 ms; answers to Alpaca's prompts look back to about 80. What a prompt adds is a roofline's.",
    "Traces last minutes here and an hour in the paper: where a system serves a request every two seconds (Orca (Max)) "
    "they hold some hundred requests, and its capacity is that uncertain. Overload also shows later, for all.",
]


def _searched(sweep: Sweep) -> pd.DataFrame:
    there = {"capacity_rate", ANSWERS} <= set(sweep.done)
    return sweep.done[sweep.done["capacity_rate"].notna()] if there else sweep.done[:0]


def _panel(rows: pd.DataFrame, kind: str) -> str:
    row = records(rows)[0]
    return f"{row['model']}_{row['workload']}_{kind}_{row[ANSWERS]:g}"


def _finding(done: pd.DataFrame, kind: str) -> str:
    """How the gain over Orca (Oracle) grows with the number of answers."""
    rates = done.pivot_table(index=ANSWERS, columns="system", values="capacity_rate")
    vllm = done[(done["system"] == "vLLM")].sort_values(ANSWERS)
    if "vLLM" not in rates or "Orca (Oracle)" not in rates:
        return f"{NOUNS[kind]} for each prompt"
    ratios = " / ".join(times(ratio) for ratio in (rates["vLLM"] / rates["Orca (Oracle)"]))
    counts, saved = (
        " / ".join(texts) for texts in ([f"{n:g}" for n in rates.index], [f"{s:.1f}" for s in vllm[SAVED]])
    )
    return f"with {counts} {NOUNS[kind]} vLLM saves {saved} % by sharing and sustains {ratios} Orca (Oracle)'s rate"
