"""Fig. 16 of the PagedAttention paper: prompts with a common prefix that is stored and computed once."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from harness.files import records
from harness.published import crossing, curve
from harness.report.curves import AXIS, LIMIT, capacities, caption, draw_panel, legend
from harness.report.figures import Pair
from harness.report.looks import ramp, system_looks
from harness.report.style import frame, new_figure, times
from harness.report.sweep import Sweep

PREFIX, LENGTHS = "workload.shared_prefix", "lengths"
OURS = "continuous + paged(on_demand) + prefix cache"  # what the paper calls vLLM here
SHOWN = "middle"  # the assumed lengths that stand beside the published curves
RATIOS = {80: 1.67, 341: 3.58}  # of the paper's text; its curves give 1.69 and 3.54


def draw(sweep: Sweep) -> Figure | None:
    """A panel for each prefix, and the gain by assumed lengths; None when no search finished."""
    done = _searched(sweep)
    if done.empty:
        return None
    shown = done[done[LENGTHS] == SHOWN] if LENGTHS in done else done
    groups = list(shown.groupby(PREFIX, sort=True))
    style = system_looks(done)
    fig = new_figure(4.4 * (len(groups) + 1), 5.4)
    *axes, last = fig.subplots(1, len(groups) + 1)
    for ax, (prefix, rows) in zip(axes, groups, strict=True):
        draw_panel(ax, sweep, rows, style, "fig16", _panel(rows))
        ax.set_title(f"{prefix} tokens that all prompts begin with")
    axes[0].set_ylabel(AXIS)
    ratios = gains(done)
    _sensitivity(last, ratios, done, _means(sweep, done))
    found = " and ".join(f"{times(_gain(ratios, prefix))} with {prefix}" for prefix, _ in groups)
    title = f"A prefix kept once: vLLM sustains {found} shared tokens, against Orca (Oracle)"
    text = caption(shown) + (f" Left and middle: {_means(sweep, done)[SHOWN]} tokens on average. The paper does not "
                             "say how long its sentences were; right: other assumptions.")  # fmt: skip
    return frame(fig, title, sweep.what_ran, text, legend(done["system"], style, "fig16"), ncols=4)


def gains(done: pd.DataFrame) -> pd.DataFrame:
    """Capacity of vLLM over Orca (Oracle)'s: a row for each prefix, a column for each set of lengths, short ones first.

    NaN where one of the two is missing.
    """
    keys = [PREFIX, LENGTHS] if LENGTHS in done else [PREFIX]
    rates = done.pivot_table(index=keys, columns="system", values="capacity_rate")
    rates = rates.reindex(columns=["vLLM", "Orca (Oracle)"])
    ratios = rates["vLLM"] / rates["Orca (Oracle)"]
    if LENGTHS not in done:
        return ratios.to_frame(SHOWN)
    order = [name for name in ("short", SHOWN, "long") if name in set(done[LENGTHS])]
    return ratios.unstack(LENGTHS)[[*order, *sorted(set(done[LENGTHS]) - set(order))]]


def published(sweep: Sweep) -> Iterator[Pair]:
    """Capacities and ratios at the lengths shown, beside the paper's curves and text."""
    done = _searched(sweep)
    if done.empty:
        return
    ratios = gains(done)
    for prefix, rows in done.groupby(PREFIX, sort=True):
        for lengths, some in rows.groupby(LENGTHS, sort=False) if LENGTHS in rows else [(SHOWN, rows)]:
            yield from capacities(some, "fig16", _panel(some), f"prefix of {prefix}, {lengths} sentences")
    for prefix, ratio in RATIOS.items():
        if prefix in ratios.index and SHOWN in ratios:
            yield Pair("capacity of vLLM over, in the text", f"× at {LIMIT} s/token", "Orca (Oracle)",
                       f"prefix of {prefix}, {SHOWN} sentences", ratio, _gain(ratios, prefix))  # fmt: skip


def why(sweep: Sweep) -> list[str]:
    """What is assumed."""
    return [
        "Lengths: the paper does not publish those of its sentences. Assumed are log-normal ones with a coefficient of "
        "variation of 0.6 and means of 20 → 30 (short), 30 → 45 (middle) and 45 → 68 (long) tokens, the translation "
        "half as long again as the sentence. Set lengths_of.middle=[...] for others.",
        "Prompts: computing one takes what a roofline says at 65 % of the A100's peak. Orca computes the prefix again "
        "for each request, and with 341 tokens of it that limits its rate more than memory does. vLLM computes what "
        "follows the prefix's last full block: 5 of 341 tokens are computed each time, where the paper copies them; 80 "
        "are five whole blocks.",
        "Here the prefix is found by its content and nobody reserves it; while requests run it is never evicted.",
        "Step times are those of Fig. 1 (OPT-13B, which is as large), of which the part for reading context goes with "
        "its length. At most 256 sequences run, as in vLLM's first release.",
    ]


def _searched(sweep: Sweep) -> pd.DataFrame:
    there = {"capacity_rate", PREFIX} <= set(sweep.done)
    done = sweep.done[sweep.done["capacity_rate"].notna()] if there else sweep.done[:0]
    return done.assign(system=done["system"].replace(OURS, "vLLM"))


def _gain(ratios: pd.DataFrame, prefix: object) -> float:
    """The gain at the lengths shown, or at the only ones."""
    column = SHOWN if SHOWN in ratios else ratios.columns[0]
    return float(ratios[column].to_dict()[prefix])


def _panel(rows: pd.DataFrame) -> str:
    row = records(rows)[0]
    return f"{row['model']}_prefix_{row[PREFIX]:g}"


def _means(sweep: Sweep, done: pd.DataFrame) -> dict[str, str]:
    """``30 → 45`` by the name of the lengths."""
    cfg = OmegaConf.load(sweep.folder / done["dirs"].iloc[0][0] / "config.yaml")
    return {str(name): " → ".join(f"{mean:g}" for mean in means) for name, means in cfg.lengths_of.items()}


def _sensitivity(ax: Axes, ratios: pd.DataFrame, done: pd.DataFrame, means: dict[str, str]) -> None:
    """The gain by assumed lengths, and the paper's as lines."""
    for color, (prefix, row) in zip(ramp(len(ratios)), ratios.iterrows(), strict=True):
        ax.plot(range(len(row)), row, color=color, marker="o", linewidth=1.9)
        for x, value in enumerate(row):
            ax.annotate(times(value), (x, value), xytext=(0, 7), textcoords="offset points", ha="center", size=8.5)
        panel = _panel(done[done[PREFIX] == prefix])
        theirs = [crossing(curve("fig16", panel, system), LIMIT) for system in ("vLLM", "Orca (Oracle)")]
        if theirs[0] and theirs[1]:
            ratio = theirs[0] / theirs[1]
            ax.axhline(ratio, color=color, linewidth=1.2, linestyle=(0, (4, 2)))
            ax.annotate(f"prefix of {prefix} (the paper {times(ratio)})", (0.99, ratio), ha="right", size=8.5,
                        xytext=(0, 4 if ratio > row.iloc[-1] else -12), color=color, textcoords="offset points",
                        xycoords=("axes fraction", "data"))  # fmt: skip
    ax.set_xticks(range(ratios.shape[1]), [f"{name}\n{means.get(str(name), '')}" for name in ratios.columns])
    ax.set(xlim=(-0.4, ratios.shape[1] - 0.6), ylabel="× Orca (Oracle)'s rate", title="Gain by assumed lengths",
           xlabel="mean tokens of a sentence → its translation")  # fmt: skip
    ax.set_ylim(0, 1.15 * max(4.0, float(ratios.to_numpy().max())))
    ax.grid(axis="y")
