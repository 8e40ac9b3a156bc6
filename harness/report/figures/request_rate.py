"""Fig. 12 of the PagedAttention paper: latency against the rate of arrivals, by system."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from harness.report.curves import draw_curves, pairs
from harness.report.figures import Pair
from harness.report.sweep import Sweep


def draw(sweep: Sweep) -> Figure | None:
    """A panel for each model and workload; None when no search finished."""
    return draw_curves(sweep, "fig12", "{}")


def published(sweep: Sweep) -> Iterator[Pair]:
    """Capacities, ratios and every drawn point of Fig. 12."""
    return pairs(sweep, "fig12")


def why(sweep: Sweep) -> list[str]:
    """What the simulation leaves out, and what that does to the curves."""
    found = [
        "Capacities are compared, and above all their ratios. Near the knee a curve is so steep that a few percent "
        "of rate are a factor in latency, so the relative errors of single points there say little.",
        "The published capacity is where the straight line between two drawn points crosses the limit; ours is the "
        "highest rate that met it.",
        "Here every system has the same step times. The paper's Orca and vLLM shared kernels; FasterTransformer ran "
        "its own: a lone request takes 0.024 s per token there, and vLLM's steps begin at 0.027. Its batcher is "
        "described in one sentence, so its curve is the least comparable, most of all on Alpaca and on OPT-175B.",
    ]
    models = set(sweep.done["model"]) if "model" in sweep.done else set()
    if "opt_13b" in models:
        found.append("OPT-13B: decode steps take what Fig. 1 of the paper implies; a prompt's share is a roofline's, "
                     "which real kernels miss: capacities here are higher than the paper's, for all.")  # fmt: skip
    if models - {"opt_13b"}:
        found.append("OPT-66B and OPT-175B: nobody published step times, so they are a roofline's, without the cost "
                     "of the Python loop of that time, of waiting for the slowest device and of unfused kernels. "
                     "Rates here are therefore higher, and what is bound by computing in the paper (Alpaca on "
                     "OPT-175B) is bound by memory or by the 256 sequences here.")  # fmt: skip
    return found
