"""Anyscale's article on static and continuous batching: throughput over the variance of answer lengths."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.files import records
from harness.published import load
from harness.report.figures import Pair
from harness.report.looks import system_looks
from harness.report.style import band, frame, new_figure, times
from harness.report.sweep import Sweep

STATIC, CONTINUOUS = "static + contiguous(max_model_len)", "continuous + contiguous(max_model_len)"
METRIC = "total_token_throughput"  # prompts and answers: what the article counts
THEIRS = {CONTINUOUS: "Ray Serve, TGI (continuous)", "vLLM": "vLLM"}


def draw(sweep: Sweep) -> Figure | None:
    """Tokens per second as the article counts them, and as answers only; None without a sweep over `cap`."""
    done = sweep.done
    if done.empty or "cap" not in done:
        return None
    style = system_looks(sweep.groups)
    caps = sorted(done["cap"].unique())
    fig = new_figure(11.5, 5.0)
    axes = fig.subplots(1, 2)
    panels = ((METRIC, "Prompts and answers, as the article counts"), ("output_throughput", "Answers only"))
    for ax, (metric, title) in zip(axes, panels, strict=True):
        for system, rows in done.groupby("system", sort=False):
            rows, look = rows.sort_values("cap"), style[str(system)]
            ax.plot(rows["cap"], rows[metric], color=look.color, marker="o", linewidth=1.9, label=system)
            band(ax, rows, "cap", metric, look.color)
            end = records(rows)[-1]
            base = done.loc[(done["system"] == STATIC) & (done["cap"] == end["cap"]), metric]
            if len(base) and system in THEIRS:
                ax.annotate(times(end[metric] / base.iloc[0]), (end["cap"], end[metric]), xytext=(6, 0), size=9,
                            textcoords="offset points", va="center", color=look.color)  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_xticks(caps, [f"{cap:g}" for cap in caps])
        ax.set(title=title, xlabel="longest possible answer, tokens (log scale)", ylabel="tokens per second")
        if metric == METRIC:
            for system, rate in _rates().items():
                ax.plot(1536, rate, "x", color=style[system].color if system in style else "#444444", markersize=9,
                        markeredgewidth=2)  # fmt: skip
        ax.set_ylim(0)
        ax.set_xlim(caps[0] / 1.15, caps[-1] * 1.6)
        ax.grid()
    factors = _factors(sweep)
    told = " and ".join(f"{system.split(' + ')[0]} {times(factor)}" for system, factor in factors.items())
    title = f"Static batching falls behind as answers vary: at {caps[-1]:g} tokens {told}"
    caption = ("× : against static batching at the longest cap. The article has 8 × (continuous) and 23 × (vLLM) "
               "over naive static batching, and FasterTransformer, static too, at 4 ×: so 2 × and 5.75 × over static "
               "batching whose kernels are as good, which is what is simulated here.")  # fmt: skip
    lines = [line for line in axes[0].get_lines() if not line.get_label().startswith("_")]
    lines.append(Line2D([], [], color="#444444", marker="x", linestyle="", markersize=8, label="the article"))
    return frame(fig, title, sweep.what_ran, caption, lines, ncols=5)


def published(sweep: Sweep) -> Iterator[Pair]:
    """The article's factors, against naive static batching and against FasterTransformer's."""
    said = load("anyscale")["throughput_x"]
    done = sweep.done[sweep.done["cap"] == 1536] if "cap" in sweep.done else sweep.done[:0]
    for row in records(done[done["system"].isin(_rates())]):
        at = "cap 1536, FasterTransformer" if row["system"] == STATIC else "cap 1536"
        theirs = _rates()[row["system"]]
        yield Pair("prompt and generated tokens", "1/s", row["system"], at, theirs, row[METRIC])
    for system, factor in _factors(sweep).items():
        theirs = said[THEIRS[system]]
        at = "cap 1536, prompt and generated tokens"
        yield Pair("throughput over naive static batching", "×", system, at, theirs, factor)
        fair = theirs / said["FasterTransformer (static)"]
        yield Pair("throughput over FasterTransformer", "×", system, at, fair, factor)


def why(sweep: Sweep) -> list[str]:
    """What the factors consist of."""
    return [
        "The article's tokens per second are its factors times the only rate it prints, 81 tokens/s for naive static "
        "batching at the longest cap; its tables are pictures.",
        "The article's throughput counts prompt tokens too. They are the same for all systems, so the factors hold "
        "for answers alone as well; the tokens per second don't compare with those of others.",
        "Naive static batching there is Hugging Face pipelines, whose steps are slower than FasterTransformer's by "
        "the 4 × between the two static systems. Step times here are equal for all systems, so ours stand beside the "
        "factors over FasterTransformer.",
        "Static and continuous batches have 16, 12, 8 and 4 lanes, as there; its continuous systems had budgets of "
        "7,500 to 8,700 tokens, which make the same lanes. vLLM had the whole pool of 15,728 slots.",
        "What remains of a difference for vLLM: the article's server had max_num_batched_tokens of about 8,100, and "
        "ran the first release, whose step also spent time in Python.",
    ]


def _rates() -> dict[str, float]:
    """The article's tokens per second at the longest cap: its factors times the 81 of naive static batching."""
    said = load("anyscale")
    names = {STATIC: "FasterTransformer (static)", **THEIRS}
    return {system: said["naive_static_tokens_per_s"] * said["throughput_x"][name] for system, name in names.items()}


def _factors(sweep: Sweep) -> dict[str, float]:
    done = sweep.done
    if "cap" not in done or done.empty:
        return {}
    last = done[done["cap"] == done["cap"].max()].drop_duplicates("system").set_index("system")[METRIC]
    return {s: last[s] / last[STATIC] for s in THEIRS if s in last and STATIC in last}
