"""Every number of a run: its name, unit and definition. All tables take them from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WINDOWS = {
    "steady": "while requests waited, without ramp and drain",
    "saturated": "while requests waited for memory",
}
WHOLE = "from start to last token"
SPREAD = ("mean", "p50", "p90", "p99")
BOOKS = (("in use", "used"), ("held by finished", "finished_held"), ("reserved", "reserved"),
         ("over-reserved", "over_reserved"), ("rounding", "rounding"), ("cached", "cached"),
         ("fragmented", "fragmented"), ("too short", "short"), ("free", "free"),
         ("out of every window", "out_of_window"), ("padding", "padding"), ("states", "state"))  # fmt: skip


class Number(NamedTuple):
    """One number of a kind.

    Attributes:
        key: of a summary.
        short: its name among the numbers of its kind.
        definition: what distinguishes it from them.
        window: one of `WINDOWS`; empty = the whole run.
    """

    key: str
    short: str = ""
    definition: str = ""
    window: str = ""

    @property
    def name(self) -> str:
        """``steady output``: its name within its kind, with its window."""
        return f"{self.window} {self.short}".strip()


class Kind(NamedTuple):
    """Numbers of one unit that share a definition."""

    name: str
    unit: str
    numbers: Sequence[Number]
    definition: str = ""

    @property
    def definitions(self) -> str:
        """The common definition, and what distinguishes each."""
        apart = {number.short: number.definition for number in self.numbers if number.definition}
        windows = {number.window: WINDOWS[number.window] for number in self.numbers if number.window}
        return "; ".join([*filter(None, [self.definition]), *(f"{name}: {said}" for name, said in
                                                              (apart | windows).items())])  # fmt: skip


def _spread(name: str) -> list[Number]:
    return [Number(f"{name}_{key}_ms", key) for key in SPREAD]


def _books(window: str = "") -> list[Number]:
    return [Number(f"{window}kv_{column}_pct", short) for short, column in BOOKS]


KINDS = (
    Kind("requests", "", [Number(name, name) for name in ("finished", "rejected", "unfinished", "failed")]),
    Kind("makespan", "s", [Number("duration_s")], "start to last token"),
    Kind("throughput", "tokens/s", [
        Number("output_throughput", "output"),
        Number("steady_output_throughput", "output", window="steady"),
        Number("saturated_output_throughput", "output", window="saturated"),
        Number("total_token_throughput", "with prompts"),
    ], "tokens / time"),
    Kind("served", "requests/s", [
        Number("request_throughput"),
        Number("steady_request_throughput", window="steady"),
    ], "requests finished / time"),
    Kind("goodput", "requests/s", [Number("goodput")], "requests within every limit / time to the last token"),
    Kind("capacity", "requests/s", [Number("capacity_rate")], "highest rate of arrivals that met the criterion"),
    Kind("cost", "dollars per million output tokens", [Number("cost_per_million_output_tokens")],
         "price_per_hour for a million output tokens"),
    Kind("TTFT", "ms", _spread("ttft"), "first token − scheduled arrival"),
    Kind("TPOT", "ms", [*_spread("tpot"), Number("tpot_total_ms", "total/total",
                                                 "both summed over requests, then divided")],
         "(last − first token) / (tokens − 1) of a request"),
    Kind("ITL", "ms", _spread("itl"), "gaps between tokens, of all requests together"),
    Kind("e2e", "ms", _spread("e2e"), "last token − scheduled arrival"),
    Kind("queueing", "ms", _spread("queueing"), "first scheduled − scheduled arrival"),
    Kind("oldest waiting", "s", [Number("waiting_age_mean_s", "mean"), Number("waiting_age_max_s", "most")],
         "age of the request that has waited longest for its first step, over time"),
    Kind("normalized latency", "s per token", [Number("normalized_latency_mean_s", "mean")],
         "e2e / tokens of a request"),
    Kind("batch", "sequences", [
        Number("mean_batch_size", "mean"),
        Number("steady_mean_batch_size", "mean", window="steady"),
        Number("saturated_mean_batch_size", "mean", window="saturated"),
    ], "sequences in a step, mean over the time of steps"),
    Kind("lanes", "%", [Number("useful_lane_pct", "useful")], "lanes that produced a wanted token, of all computed"),
    Kind("preemptions", "", [Number("preemptions")]),
    Kind("recomputed", "% of tokens", [Number("recomputed_pct")], "tokens computed again, of all tokens computed"),
    Kind("prefix hits", "%", [
        Number("prefix_lookup_hit_pct", "of lookups", "of all tokens looked up, also after preemptions"),
        Number("prefix_prompt_hit_pct", "of prompts", "of the tokens of all prompts; hits after preemptions count too"),
        Number("prefix_hit_pct", "once", "at first admissions only, of the tokens of their prompts"),
    ], "tokens found in the pool"),
    Kind("KV in use", "%", [
        Number("kv_used_pct", "by slots", "slots that hold a token in use"),
        Number("kv_held_pct", "by blocks", "slots that a request holds, used or not, as engines count"),
        Number("saturated_kv_used_pct", "by slots", window="saturated"),
        Number("saturated_kv_held_pct", "by blocks", window="saturated"),
    ]),
    Kind("engine's KV cache", "%", [Number("kv_in_use_pct", "in use"), Number("kv_in_use_max_pct", "most")],
         "blocks that requests hold, as the engine reports"),
    Kind("saved by sharing", "% of slots", [
        Number("kv_saved_pct"), Number("saturated_kv_saved_pct", window="saturated"),
    ]),
    Kind("moved", "slots", [Number("copied_slots", "copied"), Number("swapped_slots", "swapped")]),
)  # fmt: skip
POOL = (  # what the slots held
    Kind("KV pool", "%", _books(), "the whole run; sums to 100"),
    Kind("KV pool, saturated", "%", _books("saturated_"), WINDOWS["saturated"]),
)
OF = {number.key: (kind, number) for kind in KINDS for number in kind.numbers}


def definition(key: str) -> str:
    """The definition of a number, in a clause."""
    kind, number = OF[key]
    alike = [one for one in kind.numbers if one.short == number.short]  # of other windows
    apart = next((one.definition for one in alike if one.definition), "")
    window = WINDOWS.get(number.window, WHOLE if len(alike) > 1 else "")
    return ", ".join(filter(None, (kind.definition, apart, window)))
