"""Figs. 14 and 15 of the PagedAttention paper, upper rows: several samples of each prompt."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from harness.report.answers import WHY, answer_pairs, draw_answers
from harness.report.figures import Pair
from harness.report.sweep import Sweep


def draw(sweep: Sweep) -> Figure | None:
    """A panel for each number of samples, and one for the memory saved; None when no search finished."""
    return draw_answers(sweep, "parallel")


def published(sweep: Sweep) -> Iterator[Pair]:
    """Savings, capacities and ratios."""
    return answer_pairs(sweep, "parallel")


def why(sweep: Sweep) -> list[str]:
    """What is counted, and what explains the differences."""
    return [
        *WHY,
        "With two samples rates are a tenth to a quarter higher than the paper's: what a request cost the server of "
        "that time beside its tokens is not known; with more samples to each it matters less.",
        "All samples of a prompt are as long as its answer in the trace. Only full blocks of the prompt stay shared: a "
        "sample copies the last one before it writes there.",
    ]
