"""The keys that every workload has, with their checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from harness.lookup import hint, near
from harness.schema.keys.workload import WORKLOAD
from harness.workload.errors import WorkloadError
from harness.workload.readers.detect import NAMEABLE
from harness.workload.readers.trace import Reading

LENGTHS = [key.name.rpartition(".")[2] for key in WORKLOAD if key.name.startswith("workload.prompt.")]


@dataclass(frozen=True)
class Settings:
    """A workload's configuration; the group `workload` of the experiments says the same with comments.

    Attributes:
        name: label of the workload in tables.
        path: a trace to read; None = lengths are drawn from `prompt` and `output`.
        columns: field of a request, or arrival, arrival_s, _ms, _us, _ns → the trace's column that holds it.
        time_unit: of the trace's times, one of `UNITS`; None = from its format or the column's name.
        skip_s: leave out this many seconds at the trace's beginning, in its own time.
        num_requests: how many requests; None = all of a trace. Ignored when `duration_s` is given.
        duration_s: requests that arrive before this time, seconds.
        limit: at most this many valid rows, in the file's order.
        prompt, output: length specs, see `LengthSampler`.
        arrival: see the schema. `auto` is the trace's own times if it has any, else poisson if `rate` is given, else
            burst.
        rate: requests per second; with `trace` the file's times are stretched to this rate.
        cv: coefficient of variation of the gaps of `gamma`.
        concurrency: requests in flight with `closed_loop`.
        time_scale: factor on every arrival time, after `rate`; 0.5 is twice as fast.
        fit: what becomes of a request with prompt + output over max_model_len, see the schema.
        invalid: what becomes of a faulty row, see the schema.
        max_tokens: what the client declares: `auto` (the trace's own cap, else `true`), `true` (the true output
            length), `times:K`, `fixed:N`, `model_max`; never over max_model_len - prompt.
        sample: which of several recorded outputs of a row (castillo; None = drawn per row from the seed), or which run
            of a benchmark's results.
        n: answers to each request: samples of its prompt, or with `use_beam_search` the beams of a search.
        use_beam_search: see `n`.
        ttft_slo_ms, tpot_slo_ms, deadline_ms: limits of requests without their own, see `Request`.
        shared_prefix: tokens prepended to every prompt, the same for all.
    """

    name: str = "workload"
    path: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    skip_s: float | None = None
    num_requests: int | None = None
    duration_s: float | None = None
    limit: int | None = None
    prompt: Mapping[str, Any] = field(default_factory=dict)
    output: Mapping[str, Any] = field(default_factory=dict)
    arrival: str = "auto"
    rate: float | None = None
    cv: float = 1.0
    concurrency: int | None = None
    time_scale: float = 1.0
    fit: str = "drop"
    invalid: str = "error"
    max_tokens: str = "auto"
    sample: int | None = None
    n: int = 1
    use_beam_search: bool = False
    ttft_slo_ms: float | None = None
    tpot_slo_ms: float | None = None
    deadline_ms: float | None = None
    shared_prefix: int = 0

    def reading(self, seed: int) -> Reading:
        """How the trace is read."""
        return Reading(
            invalid=self.invalid,
            limit=self.limit,
            times=self.arrival in ("auto", "trace") or self.skip_s is not None,
            seed=seed,
            sample=self.sample,
            columns=self.columns,
            time_unit=self.time_unit,
            skip_s=self.skip_s,
        )


def parse_settings(config: Mapping[str, Any]) -> Settings:
    """Checks a configuration (missing keys take their defaults). The schema defines what a value may be.

    Raises:
        WorkloadError: a key is unknown or its value out of range; the message names the key as `workload.KEY`.
    """
    given: dict[str, Any] = {
        str(name): dict(value) if isinstance(value, Mapping) else value for name, value in config.items()
    }
    for place, names in (("", [item.name for item in fields(Settings)]), ("prompt.", LENGTHS), ("output.", LENGTHS)):
        there = given.get(place[:-1]) if place else given
        if there is not None and not isinstance(there, dict):
            raise WorkloadError(f"workload.{place[:-1]}={there!r}: must be a spec such as {{kind: fixed, value: 64}}")
        for name in set(there or ()) - set(names):
            said = near(str(name), names, f"workload.{place}") or f"the keys are {', '.join(names)}"
            raise WorkloadError(f"workload.{place}{name}: no such key; {said}")
    if isinstance(columns := given.get("columns"), dict):  # null unsets what a file has named
        given["columns"] = {name: column for name, column in columns.items() if column is not None}
    for key in WORKLOAD:
        *section, name = key.name.split(".")[1:]
        holder = given.get(section[0]) if section else given
        if holder and name in holder:
            try:
                holder[name] = key.read(holder[name])
            except ValueError as error:
                raise WorkloadError(str(error)) from None
    given["columns"] = _columns(given.get("columns"))
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    if settings.use_beam_search and settings.n == 1:
        raise WorkloadError("workload.use_beam_search=true with workload.n=1: a search keeps n >= 2 beams")
    if settings.arrival in ("poisson", "gamma") and settings.rate is None:
        raise WorkloadError(f"workload.rate is not set; workload.arrival={settings.arrival} needs requests per second")
    if settings.arrival == "closed_loop" and settings.concurrency is None:
        raise WorkloadError("workload.concurrency is not set; workload.arrival=closed_loop needs requests in flight")
    if settings.arrival == "trace" and settings.path is None:
        raise WorkloadError("workload.arrival=trace needs workload.path; without a file choose burst, poisson or gamma")
    spread_over_time = settings.arrival in ("poisson", "gamma", "trace") or (
        settings.arrival == "auto" and (settings.rate is not None or settings.path is not None)
    )
    if settings.duration_s is not None and not spread_over_time:
        raise WorkloadError(
            f"workload.duration_s={settings.duration_s:g} means nothing with workload.arrival={settings.arrival}: "
            "set workload.num_requests instead, or an arrival process with a rate"
        )
    if settings.path is None and settings.prompt.get("kind") is None and settings.output.get("kind") is None:
        raise WorkloadError(
            "workload.path is not set: name a trace to read, or give workload.prompt and workload.output"
        )
    if settings.path is None and settings.num_requests is None and settings.duration_s is None:
        raise WorkloadError("workload.num_requests is not set (and neither is workload.duration_s or workload.path)")


def _columns(value: Any) -> dict[str, str]:
    """Checks `workload.columns`: only known fields, and no column or arrival time twice."""
    if value is None:
        return {}
    named = {str(name): str(column) for name, column in value.items()}
    for name in named:
        if name not in NAMEABLE:
            meant = hint(name, NAMEABLE)
            raise WorkloadError(f"workload.columns.{name}: no such field{meant}; the fields are {', '.join(NAMEABLE)}")
    arrivals = [name for name in named if name.startswith("arrival")]
    if len(arrivals) > 1:
        raise WorkloadError(f"workload.columns: {' and '.join(arrivals)} name the arrival twice")
    twice = [column for column, times in Counter(named.values()).items() if times > 1]
    if twice:
        raise WorkloadError(f"workload.columns: the column {twice[0]!r} is named for more than one field")
    return named
