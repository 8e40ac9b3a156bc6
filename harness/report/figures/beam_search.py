"""Figs. 14 and 15 of the PagedAttention paper, lower rows: a beam search for each prompt."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from harness.report.answers import WHY, answer_pairs, draw_answers
from harness.report.figures import Pair
from harness.report.sweep import Sweep
from harness.runner.surrogate import BREAK

SURROGATE = (
    "How the beams fork: no model runs. The likelihoods of a beam's next tokens are the pieces of a stick broken "
    f"again and again at shares drawn from Beta(1, {BREAK}), so that the likeliest token has "
    f"{100 / (1 + BREAK):.0f} % on average; the search over them is a real one (the best sums of logarithms go "
    "on). That number was chosen because it comes near Fig. 15, so the saving confirms little; with 0.1 and 4 in "
    "its place two to six beams save 32-50 % and 40-66 %. The rates follow from it."
)


def draw(sweep: Sweep) -> Figure | None:
    """A panel for each width, and one for the memory saved; None when no search finished."""
    return draw_answers(sweep, "beam")


def published(sweep: Sweep) -> Iterator[Pair]:
    """Savings, capacities and ratios."""
    return answer_pairs(sweep, "beam")


def why(sweep: Sweep) -> list[str]:
    """How the beams fork, what is counted, and what explains the differences."""
    return [
        SURROGATE,
        *WHY,
        "Orca's chunks can't be shared: a beam that continues another one copies that one's answer, at the "
        "bandwidth of the memory.",
        "vLLM's beams save so much that the 256 sequences that may run limit it, not memory: a higher limit would "
        "raise its rates.",
        "Rates are a sixth to two thirds higher than the paper's: what a search cost the server of that time, "
        "choosing among the beams at each step and moving them, is in no step time here. The ratios suffer less.",
    ]
