"""Fig. 17 of the PagedAttention paper: a chatbot, whose prompts are long histories."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from harness.report.curves import draw_curves, pairs
from harness.report.figures import Pair
from harness.report.sweep import Sweep

PANELS = ("opt_13b_chat",)


def draw(sweep: Sweep) -> Figure | None:
    """One panel; None when no search finished."""
    return draw_curves(sweep, "fig17", "Chat with prompts of 1,024 tokens: {}", PANELS)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Capacities, ratios and every drawn point of Fig. 17."""
    return pairs(sweep, "fig17", PANELS)


def why(sweep: Sweep) -> list[str]:
    """How the prompts differ from the paper's."""
    return [
        "The paper cuts each history to its last 1,024 tokens and says that most are that long; here all are. "
        "Answers have the ShareGPT lengths of Fig. 11 up to 1,024 tokens. Shorter histories would help vLLM and Orca "
        "(Oracle).",
        "With 1,024 tokens of prompt every Orca chunk is 2,048 slots whatever the answer, so the three coincide, as "
        "in the paper.",
        "The text of the paper says 2 × the Orca systems; its own curves cross 0.5 s/token at 1.5 ×.",
        "A prompt's share of a step is a roofline's, and prompts matter more here than in Fig. 12.",
    ]
