"""The keys of `workload`: which requests come, how long they are, and when."""

from __future__ import annotations

from harness.schema.key import Key, When, at, having, where, without
from harness.schema.kinds import Choice, Number, Spec, Switch, Table, Text, Whole

MOST = 100_000_000  # requests: more are a slip of the finger
TOKENS = Whole(1, 2**31 - 1)
LENGTH = Number(above=0, below=2**31)
ARRIVALS = ("auto", "burst", "poisson", "gamma", "closed_loop", "trace")
FITS = ("drop", "clip", "scale", "error")
INVALIDS = ("error", "drop")
HISTOGRAMS = ("sharegpt_input", "sharegpt_output", "alpaca_input", "alpaca_output")
KINDS = {  # what each needs
    "fixed": ("value",), "uniform": ("low", "high"), "lognormal": ("mean", "cv"), "exponential": ("mean",),
    "histogram": ("histogram",),
}  # fmt: skip
BOUNDED = ("lognormal", "exponential", "histogram")  # kinds whose samples outside low and cap are drawn again

DRAWN = without("workload.path")
READ = having("workload.path")
SPREAD = When("where requests arrive over time", lambda values: at(values, "workload.arrival") not in (
    "burst", "closed_loop"))  # fmt: skip
_OF_KIND = {"value": ("fixed",), "mean": ("lognormal", "exponential"), "cv": ("lognormal",), "cap": BOUNDED,
            "low": ("uniform", *BOUNDED), "high": ("uniform",), "histogram": ("histogram",)}  # fmt: skip
_LENGTHS = {"value": "the length of `fixed`", "mean": "of `lognormal` and `exponential`",
            "cv": "coefficient of variation of `lognormal`", "low": "shortest of `uniform`; shorter samples of others "
            "are drawn again", "high": "longest of `uniform`", "cap": "longer samples are drawn again"}  # fmt: skip


def _lengths(whose: str) -> list[Key]:
    """A spec of lengths, `whose` being `prompt` or `output`."""
    name = f"workload.{whose}"

    def counts(key: str) -> tuple[When, ...]:
        return DRAWN, where(f"{name}.kind", *_OF_KIND[key])

    return [
        Key(f"{name}.kind", Choice(*KINDS), f"how lengths of {whose}s are drawn", null=True, when=(DRAWN,)),
        *(Key(f"{name}.{key}", TOKENS if key == "value" else LENGTH, about, "" if key == "cv" else "tokens", null=True,
              when=counts(key))
          for key, about in _LENGTHS.items()),
        Key(f"{name}.histogram", Choice(*HISTOGRAMS), "which published histogram", null=True, when=counts("histogram")),
    ]  # fmt: skip


WORKLOAD = [
    Key("workload.name", Text(), "how the workload is called in tables", needed=True),
    Key("workload.path", Text("the path of a trace"), "a trace to read instead of drawing lengths", null=True),
    Key("workload.columns", Table(Text(), "a mapping from fields to columns"), "which of a trace's columns is what",
        null=True, when=(READ,)),
    Key("workload.time_unit", Choice("s", "ms", "us", "ns"), "of a trace's times; null = as its format says", null=True,
        when=(READ,)),
    Key("workload.skip_s", Number(above=0), "leave out the first part of a trace", "s", null=True, when=(READ,)),
    Key("workload.num_requests", Whole(1, MOST), "how many; null = every row of a trace", "requests", null=True,
        when=(without("workload.duration_s"),)),
    Key("workload.duration_s", Number(above=0), "requests that arrive in so long", "s", null=True),
    Key("workload.limit", Whole(1, MOST), "at most so many valid rows, in the file's order", "rows", null=True),
    *_lengths("prompt"),
    *_lengths("output"),
    Key("workload.arrival", Choice(*ARRIVALS), "how requests arrive; `auto`: at a trace's own times if it has some, "
        "else `poisson` if `rate` is set, else `burst`"),
    Key("workload.rate", Number(above=0), "stretches a trace's own times to that rate, too", "requests per second",
        null=True, hint="all at once is workload.arrival=burst"),
    Key("workload.cv", Number(above=0), "coefficient of variation of `gamma`'s gaps; 1 = poisson",
        when=(where("workload.arrival", "gamma"),)),
    Key("workload.concurrency", Whole(1, MOST), "requests in flight with `closed_loop`", "requests", null=True),
    Key("workload.time_scale", Number(above=0), "factor on every arrival time; 0.5 = twice as fast", when=(SPREAD,)),
    Key("workload.fit", Choice(*FITS), "what becomes of requests longer than `max_model_len`"),
    Key("workload.invalid", Choice(*INVALIDS), "what becomes of a trace's faulty rows", when=(READ,)),
    Key("workload.max_tokens", Spec(("auto", "true", "model_max"), {
        "times": ("K", Number(above=0, below=1e6)), "fixed": ("N", TOKENS)}), "the cap that clients declare"),
    Key("workload.sample", Whole(0, 2**31 - 1), "which of a row's recorded outputs; null = drawn", null=True,
        when=(READ,)),
    Key("workload.n", Whole(1, 16384), "answers to each request: samples of its prompt, or beams"),
    Key("workload.use_beam_search", Switch(), "whether the `n` answers are the beams of a search"),
    *(Key(f"workload.{name}", Number(above=0), f"limit of every request that has none, on {what}", "ms", null=True)
      for name, what in (("ttft_slo_ms", "the time to its first token"), ("tpot_slo_ms", "the time per token after it"),
                         ("deadline_ms", "the time from its arrival to its last token"))),
    Key("workload.shared_prefix", Whole(0, 2**31 - 1), "tokens that every prompt begins with, the same for all",
        "tokens"),
]  # fmt: skip
