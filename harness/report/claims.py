"""Public claims about paging and continuous batching, each with its source and the function that judges it.

This file holds none of our results: each judge computes them from the runs of the same sweep (`harness.tasks.claims`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd

from allocators.base import Move
from harness.files import records
from harness.report.sweep import Sweep
from harness.runner.latency.hardware import load_hardware
from harness.runner.latency.moves import MoveCosts

HOLDS, PARTLY, NOT, NOWHERE = "holds", "holds in part", "does not hold here", "found in no primary source"
MISSING, NO_CLAIM = "not measured here", "no claim to judge"
PAPER = "PagedAttention paper, arXiv 2309.06180"
ARTICLE = "Anyscale article on continuous batching, June 2023"
SLOT_BYTES = 819_200  # of OPT-13B


class Judged(NamedTuple):
    """The verdict of our runs: our numbers as text, the verdict, and a note for the reader."""

    ours: str
    verdict: str
    note: str = ""


class Runs:
    """The finished runs of a sweep by the name of their part; `KeyError` for one that is missing."""

    def __init__(self, sweep: Sweep) -> None:
        table = sweep.table
        done = table[table["status"] == "finished"] if "part" in table else table[:0]
        self.rows: dict[str, dict[str, Any]] = {row["part"]: row for row in records(done)}
        self.sweep = sweep
        self.asked: list[str] = []  # parts used since the list was last emptied

    def __getitem__(self, part: str) -> dict[str, Any]:
        row = self.rows[part]
        self.asked.append(part)
        return row

    def rate(self, name: str) -> float:
        """Capacity in requests/s."""
        return float(self[f"rate_{name}"]["capacity_rate"])

    def used(self, system: str) -> float:
        """Token states in % of the pool, while requests wait for memory."""
        return float(self[f"full_{system}"]["saturated_kv_used_pct"])

    def steps(self, part: str) -> pd.DataFrame:
        return self.sweep.steps(self[part]["dir"])

    def requests(self, part: str) -> pd.DataFrame:
        return pd.read_csv(self.sweep.folder / self[part]["dir"] / "requests.csv")


def useful_before(runs: Runs) -> Judged:
    shares = [runs.used(f"orca_{name}") for name in ("max", "pow2", "oracle")]
    near = abs(shares[0] - 20.4) <= 3 and abs(shares[-1] - 38.2) <= 3
    ours = " – ".join(f"{share:.1f}" for share in (min(shares), max(shares)))
    return Judged(f"{ours} %", HOLDS if near else PARTLY, "while requests wait for memory")


def useful_paged(runs: Runs) -> Judged:
    share = runs.used("vllm")
    return Judged(f"{share:.1f} %", HOLDS if share >= 95.5 else PARTLY if share > 90 else NOT)


def waste(runs: Runs) -> Judged:
    full, load = 100 - runs.used("vllm"), runs["rate_13b_vllm"]
    rest = 100 - load["saturated_kv_used_pct"]
    text = f"{full:.1f} % of a full pool"
    verdict = HOLDS if full < 4 and rest < 4 else PARTLY if full < 4 else NOT
    return Judged(text, verdict, f"at its capacity, where the pool is not always full, {rest:.1f} % holds no token")


def one_block(runs: Runs) -> Judged:
    steps, size = runs.steps("full_vllm"), runs["full_vllm"]["block_size"]
    busy = steps[steps["num_seqs"] > 0]
    most = (busy[["reserved", "over_reserved", "rounding"]].sum(axis=1) / busy["num_seqs"]).max()
    text = f"at most {most:.1f} slots per sequence in any step (a block has {size:.0f})"
    return Judged(text, HOLDS if most < size else NOT)


def throughput(runs: Runs) -> Judged:
    over_oracle, over_max = (runs.rate("13b_vllm") / runs.rate(f"13b_orca_{name}") for name in ("oracle", "max"))
    inside = 1.7 <= over_oracle <= 4.4 and 1.7 <= over_max <= 4.4
    text = f"×{over_oracle:.2f} of Orca (Oracle), ×{over_max:.2f} of Orca (Max)"
    return Judged(text, HOLDS if over_oracle >= 2 and inside else PARTLY if inside else NOT,
                  "OPT-13B, ShareGPT lengths, same limit of 0.5 s per token")  # fmt: skip


def longer(runs: Runs) -> Judged:
    short, long = (runs.rate(f"{name}_vllm") / runs.rate(f"{name}_orca_oracle") for name in ("alpaca", "13b"))
    far = [runs.rate(f"{name}_vllm") / runs.rate(f"{name}_orca_max") for name in ("alpaca", "13b")]
    text = f"over Orca (Oracle) ×{short:.2f} (Alpaca) and ×{long:.2f} (ShareGPT)"
    return Judged(text, PARTLY if long > short and far[1] < far[0] else HOLDS if long > short else NOT,
                  f"over Orca (Max) it is the other way round, ×{far[0]:.1f} and ×{far[1]:.1f}: reserving 2,048 "
                  "slots wastes most where answers are short")  # fmt: skip


def larger(runs: Runs) -> Judged:
    models = ("13b", "66b", "175b")
    small, middle, big = (runs.rate(f"{name}_vllm") / runs.rate(f"{name}_orca_oracle") for name in models)
    text = f"over Orca (Oracle) ×{small:.2f}, ×{middle:.2f}, ×{big:.2f} (13B, 66B, 175B)"
    grows = small < middle < big
    return Judged(text, HOLDS if grows else PARTLY if middle > small else NOT,
                  "what counts is the pool beside the weights (15.7K, 9.7K, 60.1K slots), not the model")  # fmt: skip


def twenty_two(runs: Runs) -> Judged:
    ratios = [runs.rate(f"{name}_vllm") / runs.rate(f"{name}_faster_transformer") for name in ("13b", "66b", "175b")]
    text = ", ".join(f"×{ratio:.1f}" for ratio in ratios) + " (13B, 66B, 175B)"
    return Judged(text, HOLDS if max(ratios) >= 20 else PARTLY if max(ratios) >= 8 else NOT,
                  "ShareGPT lengths, 0.5 s per token; steps begin at its own lone request in the paper. The curves of "
                  "Fig. 12 have 8.4, 9.4 and 20.7 ×")  # fmt: skip


def optimum(runs: Runs) -> Judged:
    rate, burst = (runs[f"{kind}_vllm"][key] / runs[f"{kind}_ideal"][key] for kind, key in
                   (("rate_13b", "capacity_rate"), ("full", "output_throughput")))  # fmt: skip
    text = f"{100 * rate:.0f} % (capacity) and {100 * burst:.0f} % (all at once) of the ideal"
    return Judged(text, NOWHERE, "said of PagedAttention by retellings only; BlendServe (arXiv 2411.16102) says it "
                                 "of its own offline batches. Ideal here: no slot wasted, all lengths known, first "
                                 "come first served, same step times")  # fmt: skip


def utilisation(runs: Runs) -> Judged:
    row, vllm = runs["full_static_contiguous"], runs["full_vllm"]
    text = f"{row['useful_lane_pct']:.0f} % of the lanes computed are useful (vLLM {vllm['useful_lane_pct']:.0f} %)"
    return Judged(text, NOWHERE, "neither the PagedAttention nor the Orca paper states a GPU utilisation; a busy GPU "
                                 "that computes finished lanes counts as utilised")  # fmt: skip


def holes(runs: Runs) -> Judged:
    extent, paged = (runs.requests(f"holes_{name}").query("prompt_tokens + output_tokens > 600")["queueing_ms"].iloc[0]
                     for name in ("first_fit_exact", "paged_on_demand"))  # fmt: skip
    text = f"waits {extent / 1e3:.2f} s with extents, {paged / 1e3:.2f} s with blocks"
    return Judged(text, HOLDS if extent > paged else NOT, "two free holes of 500 slots, a request of 700")


def idles(runs: Runs) -> Judged:
    share = runs["lanes_static"]["useful_lane_pct"]
    return Judged(f"{share:.1f} % of the lanes computed are useful", HOLDS if share < 100 else NOT,
                  "batches of 40, 50, 300 and 500 tokens")  # fmt: skip


def compaction(runs: Runs) -> Judged:
    told, found = list[str](), dict[str, str]()
    for name, lengths in (("first_fit", "lengths known"), ("growing", "grown on demand")):
        before, after = runs[f"full_{name}"], runs[f"full_{name}_compacting"]
        gain = after["output_throughput"] / before["output_throughput"] - 1  # its copies cost time in the run
        cost = copying(runs, f"full_{name}_compacting") - copying(runs, f"full_{name}")
        below = 1 - after["output_throughput"] / runs["full_vllm"]["output_throughput"]
        found[lengths] = HOLDS if gain <= 0 else PARTLY if cost > gain else NOT
        told.append(f"{lengths}: {100 * gain:+.0f} % tokens/s for {100 * cost:.1f} % of the time in copies, "
                    f"{100 * below:.0f} % below vLLM")  # fmt: skip
    verdict = PARTLY if len(set(found.values())) > 1 else found["lengths known"]
    each = ", ".join(f"{lengths}: {one}" for lengths, one in found.items())
    return Judged("; ".join(told), verdict,
                  f"{each}. It holds where throughput falls, in part where it rises by less than the share of time "
                  "that copies take, else it does not; first fit, copies at the speed of the memory and nothing else "
                  "slowed down")  # fmt: skip


def copying(runs: Runs, part: str) -> float:
    """The share of its time that a run (OPT-13B on an A100-40GB) spent copying slots."""
    steps, move = runs.steps(part), MoveCosts(SLOT_BYTES, 0, load_hardware("a100_40gb"))
    copied = steps.loc[steps["copied"] > 0, "copied"]
    ns = sum(move.ns([Move("copy", 0, 0, int(slots))]) for slots in copied)
    return ns / 1e9 / float(runs[part]["duration_s"])


def twenty_three(runs: Runs) -> Judged:
    static, continuous, paged = (runs[f"article_{name}"]["total_token_throughput"]
                                 for name in ("static_lanes", "continuous_lanes", "vllm"))  # fmt: skip
    text = f"×{paged / static:.1f} (continuous alone ×{continuous / static:.1f}), prompt tokens counted as there"
    return Judged(text, HOLDS if paged / static >= 20 else PARTLY if paged / static >= 5 else NOT,
                  "23 × is over Hugging Face pipelines, and FasterTransformer, static too, has 4 × of it: over equal "
                  "kernels the article has 5.75 × and 2 ×")  # fmt: skip


def richer(runs: Runs) -> Judged:
    kinds = {"samples_2": "2 samples", "samples_6": "6 samples", "beams_6": "6 beams"}
    gains = [runs.rate(f"{kind}_vllm") / runs.rate(f"{kind}_orca_oracle") for kind in kinds]
    saved = [runs[f"rate_{kind}_vllm"]["kv_saved_pct"] for kind in kinds]
    text = ", ".join(f"×{gain:.2f} ({name})" for gain, name in zip(gains, kinds.values(), strict=True))
    grows = gains[0] < gains[1] < gains[2]
    shares = ", ".join(f"{share:.0f} %" for share in saved)
    return Judged(f"over Orca (Oracle) {text}", HOLDS if grows else PARTLY if gains[2] > gains[0] else NOT,
                  f"OPT-13B, Alpaca lengths; sharing saves {shares} of the memory. How beams fork is a surrogate's, "
                  "chosen to save what the paper's do")  # fmt: skip


def cost(runs: Runs) -> Judged:
    rows = [(name, runs[f"full_{part}"]["output_throughput"]) for name, part in
            (("static", "static_contiguous"), ("Orca (Max)", "orca_max"), ("vLLM", "vllm"))]  # fmt: skip
    dollars = [f"{name} ${2 / 3600 / rate * 1e6:.2f} – {5 / 3600 / rate * 1e6:.2f}" for name, rate in rows]
    return Judged(", ".join(dollars), NO_CLAIM, "per million output tokens of OPT-13B on one A100-40GB at $2 to $5 "
                                                "an hour, all requests at once")  # fmt: skip


class Claim(NamedTuple):
    """A claim, its source, the published value and the function that judges it."""

    text: str
    source: str
    published: str
    judge: Callable[[Runs], Judged]


CLAIMS = (
    Claim("Before paging, little of the KV cache memory holds token states", f"{PAPER}, Fig. 2", "20.4 – 38.2 %",
          useful_before),
    Claim("With paging, nearly all of it does", f"{PAPER}, Fig. 2", "96.3 %", useful_paged),
    Claim("Paging wastes under 4 % of the memory", "vLLM launch article, June 2023", "< 4 %", waste),
    Claim("A sequence wastes at most one block", f"{PAPER}, Sec. 4", "< 16 slots", one_block),
    Claim("More throughput at the same latency", f"{PAPER}, abstract", "2 – 4 ×", throughput),
    Claim("The gain grows with longer sequences", f"{PAPER}, abstract", "1.33 × → 1.75 × (Fig. 12)", longer),
    Claim("The gain grows with larger models", f"{PAPER}, abstract", "1.75 ×, 2.33 ×, 1.47 × (Fig. 12)", larger),
    Claim("The gain grows with richer decoding", f"{PAPER}, abstract", "1.43 ×, 1.54 ×, 2.22 × (Fig. 14)", richer),
    Claim("Up to 22 times FasterTransformer", f"{PAPER}, Sec. 6.2", "up to 22 ×", twenty_two),
    Claim("Up to 90 % of the theoretical optimum", "retellings", "90 %", optimum),
    Claim("GPUs were utilised to about 50 % before", "retellings", "50 %", utilisation),
    Claim("A request of 700 slots fits no two holes of 500", "textbook example", "it has to wait", holes),
    Claim("Static batches idle until the longest answer ends", f"{ARTICLE}; Orca, OSDI 2022", "idle lanes", idles),
    Claim("Compaction costs more than it gains", f"{PAPER}, Sec. 3.1", "impractical", compaction),
    Claim("Continuous batching with paging beats static batching", ARTICLE, "23 ×", twenty_three),
    Claim("What a million tokens cost", "–", "–", cost),
)  # fmt: skip


def judged(sweep: Sweep) -> pd.DataFrame:
    """One row per claim: claim, source, published, ours, verdict, note, and the parts that ours comes from."""
    runs, rows = Runs(sweep), []
    for claim in CLAIMS:
        runs.asked = []
        try:
            found = claim.judge(runs)
        except KeyError as missing:
            found = Judged("–", MISSING, f"the run {missing.args[0]} is missing")
        rows.append((claim.text, claim.source, claim.published, *found, "; ".join(dict.fromkeys(runs.asked))))
    return pd.DataFrame(rows, columns=["claim", "source", "published", "ours", "verdict", "note", "runs"])
