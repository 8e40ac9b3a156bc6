"""Fig. 15 of the PagedAttention paper: memory saved by sharing, for samples of a prompt and for beams."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.report.answers import ANSWERS, NOUNS, SAVED, WHY, draw_saved, saved_pairs
from harness.report.figures import Pair
from harness.report.figures.beam_search import SURROGATE
from harness.report.looks import color_of
from harness.report.style import frame, new_figure
from harness.report.sweep import Sweep

BEAMS = "workload.use_beam_search"


def draw(sweep: Sweep) -> Figure | None:
    """A panel for each workload and way of decoding; None without a sweep of both."""
    panels = list(_panels(sweep))
    if not panels:
        return None
    fig = new_figure(max(9.5, 3.6 * len(panels)), 4.6)
    found = []
    for ax, (workload, kind, rows) in zip(fig.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_saved(ax, rows, kind)
        ax.set_title(f"{workload}, {'samples' if kind == 'parallel' else 'beam search'}")
        found.append(f"{rows[SAVED].min():.0f} – {rows[SAVED].max():.0f} % ({workload}, {NOUNS[kind]})")
    handles = [Patch(color=color_of("vLLM"), label="simulated here"),
               Patch(facecolor=color_of("vLLM"), alpha=0.45, hatch="////", edgecolor="white",
                     label="the paper: Fig. 15; of ShareGPT it gives the smallest and the largest")]  # fmt: skip
    caption = ("Slots that sharing saves, in % of the slots that would be held without it: mean over time of the whole "
               "run, all requests at once.")  # fmt: skip
    return frame(fig, "Sharing saves " + ", ".join(found), sweep.what_ran, caption, handles)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Savings in %."""
    for _, kind, rows in _panels(sweep):
        yield from saved_pairs(rows, kind)


def why(sweep: Sweep) -> list[str]:
    """What is counted, and how beams fork."""
    return [
        WHY[0],
        "Samples: what is saved is the prompt's full blocks, for all answers but one. The paper's three numbers for "
        "Alpaca are 12.2, 11.4 and 11.7 % times (n - 1) / n, so its prompts were that share of the memory; the "
        "lengths of its Fig. 11 give 13 % (and 31 % for ShareGPT, by a plain count of blocks over 40,000 pairs). A few "
        "hundred ShareGPT prompts are uncertain by some points.",
        SURROGATE,
    ]


def _panels(sweep: Sweep) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(workload, kind, its rows by the number of answers)."""
    if {ANSWERS, BEAMS} <= set(sweep.done):
        for (workload, beams), rows in sweep.done.groupby(["workload", BEAMS], sort=False):
            yield str(workload), "beam" if str(beams).lower() == "true" else "parallel", rows.sort_values(ANSWERS)
