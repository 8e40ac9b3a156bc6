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
        "Orca and vLLM have the same step times. FasterTransformer has kernels of its own: its steps begin "
        "at its own lone request in the figure. The paper says of its batcher that B is as large as memory allows in "
        "each experiment; here that is a lane for the longest request of the trace. With 2,048 slots a lane, as "
        "for Orca (Max), its published curves on Alpaca would be out of reach (system=static+contiguous+max_model_len "
        "shows it).",
        "FasterTransformer's latency is mostly waiting for the running batch, divided by short answers; how many "
        "answers have one to three tokens is not visible in the 128 bins of Fig. 11, and matters to this row alone.",
    ]
    models = set(sweep.done["model"]) if "model" in sweep.done else set()
    if "opt_13b" in models:
        found.append("OPT-13B: decode steps take what Fig. 1 of the paper implies, what prompts add is a roofline's. "
                     "On Alpaca that gives its capacities. On ShareGPT all are higher here: the batches of Fig. 13 "
                     "at the capacities of Fig. 12 need steps 5 to 10 ms longer than Fig. 1's, with 7 sequences as "
                     "with 30 (on Alpaca by 2 ms at most). Fig. 1 names no trace.")  # fmt: skip
    if models - {"opt_13b"}:
        found.append("OPT-66B and OPT-175B: nobody published step times. A step with one sequence is anchored at the "
                     "paper's latency under the lowest load, the 0.42 ms for each further one are OPT-13B's, what "
                     "prompts add is a roofline's. Nothing is fitted to a capacity: all but the latency at the lowest "
                     "rates is predicted.")  # fmt: skip
    if "opt_175b" in models:
        found.append("OPT-175B has memory for more sequences than it can compute in time. On Alpaca the 256 sequences "
                     "of a batch and its steps limit vLLM and Orca (Oracle) alike, as in the paper (20.2 and 19.2 "
                     "requests/s). FasterTransformer crosses the limit where its curve is nearly flat, with 100 to "
                     "200 requests in 15 minutes: its capacity there is a matter of luck.")  # fmt: skip
    return found
