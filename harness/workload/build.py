"""From a configuration to the requests of a run."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from harness.workload.arrivals import offered_rate, process_arrivals, stretch, trace_arrivals
from harness.workload.errors import WorkloadError
from harness.workload.fields import BY_NAME, DEFAULTS, LIMITS
from harness.workload.fit import Fitted, declared_cap, fit_rows
from harness.workload.readers import read_trace
from harness.workload.readers.checks import Integers
from harness.workload.readers.rows import Rows
from harness.workload.settings import Settings, parse_settings
from harness.workload.streams import stream
from harness.workload.synthetic import draw_rows
from schedulers.request import Request

_SECOND = 1_000_000_000
_BANNER_SHARE = 0.20  # of drawn rows; if more are changed, the workload is no longer what its name says


@dataclass(slots=True)
class Workload:
    """The requests of a run and where they come from.

    Attributes:
        requests: in order of arrival; `id` is the position in this list.
        concurrency: requests to keep in flight (closed loop: then every `arrival_ns` is 0 and the replayer sets it);
            None = open loop.
        notes: what was read, dropped, changed and generated; JSON values only.
        banner: a sentence for every table when rows of a trace, or more than 20 % of drawn ones, were changed or left
            out; else None.
    """

    requests: list[Request]
    concurrency: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    banner: str | None = None


def build_workload(config: Mapping[str, Any], max_model_len: int, seed: int) -> Workload:
    """Reads or draws the requests of a run.

    Args:
        config: the keys of `Settings`.
        max_model_len: most tokens of prompt and output together.
        seed: of the run; every draw comes from a stream of its own under it.

    Raises:
        WorkloadError: a bad key, a bad file, or no request left.
    """
    settings = parse_settings(config)
    stream(seed, "arrivals")  # a bad seed is told before a file is read
    if isinstance(max_model_len, bool) or not isinstance(max_model_len, int):
        raise WorkloadError(f"max_model_len must be a whole number of tokens, got {max_model_len!r}")
    if max_model_len < 2:
        raise WorkloadError(f"max_model_len={max_model_len}: a request needs a prompt token and an output token")
    room = max_model_len - settings.shared_prefix
    if room < 2:
        raise WorkloadError(f"workload.shared_prefix={settings.shared_prefix} leaves no room in {max_model_len} tokens")
    notes: dict[str, Any] = {"name": settings.name, "path": settings.path}
    if settings.path is None:
        arrival = process_arrivals(settings, seed, settings.num_requests, notes)[: settings.limit]
        drawn = draw_rows(settings, len(arrival), room, seed)
        rows = drawn.fitted.rows
        notes |= {"rows_read": drawn.drawn, "dropped_invalid": {}, **_counts(drawn.fitted), "sorted": 0, "notices": []}
    else:
        rows = _replayed(settings, room, seed, notes)
        arrival = trace_arrivals(rows.arrival_ns, len(rows), settings, seed, notes)
        rows = rows.take(np.arange(len(arrival)))
    arrival = stretch(arrival, settings.time_scale, f"workload.time_scale={settings.time_scale}")
    if settings.duration_s is not None:
        arrival = arrival[arrival < settings.duration_s * _SECOND]
        rows = rows.take(np.arange(len(arrival)))
    if len(rows) == 0:
        raise WorkloadError(f"workload.duration_s={settings.duration_s}: no request arrives before that time")
    notes |= {"requests": len(rows), "offered_rate": offered_rate(arrival), "span_s": float(arrival[-1]) / _SECOND}
    notes["declared"] = settings.max_tokens
    notes["notices"] += [*_fewer(settings, len(rows)), *_unused(settings, notes["arrival"])]
    if settings.shared_prefix:
        _put_before(rows, settings.shared_prefix)
    notes["notices"] += _ask_of_all(rows, settings)
    requests = make_requests(rows, arrival, _declared(settings.max_tokens, rows, max_model_len))
    concurrency = settings.concurrency if settings.arrival == "closed_loop" else None
    return Workload(requests, concurrency, notes, _banner(notes))


def _replayed(settings: Settings, max_model_len: int, seed: int, notes: dict[str, Any]) -> Rows:
    """The rows of a trace that fit the model, in the file's time."""
    trace = read_trace(settings.path or "", settings.reading(seed))
    fitted = fit_rows(trace.rows, settings.max_tokens, max_model_len, settings.fit, trace.where)
    notes |= {"format": trace.layout.name, "rows_read": trace.rows_read, "dropped_invalid": trace.dropped}
    notes |= {**_counts(fitted), "sorted": trace.out_of_order, "notices": trace.notices}
    if settings.skip_s is not None:
        notes["skipped"] = trace.skipped
    if len(fitted.rows) == 0:
        raise WorkloadError(
            f"{trace.path}: the file as a whole has no row whose prompt + output fit max_model_len={max_model_len}; "
            "workload.fit=scale would shorten them"
        )
    if settings.duration_s is None and settings.num_requests is not None:
        return fitted.rows.take(np.arange(min(settings.num_requests, len(fitted.rows))))
    return fitted.rows


def _put_before(rows: Rows, prefix: int) -> None:
    """Prepend the same `prefix` tokens to every prompt; the rest of each prompt is unique."""
    if "hash_ids" in rows.more or "token_ids" in rows.more:
        raise WorkloadError("workload.shared_prefix: the rows of this trace say what they contain already")
    rows.prompt_len = rows.prompt_len + prefix
    pieces, unused = (-(-rows.prompt_len // prefix)).tolist(), 1
    ids: list[array[int]] = []
    for count in pieces:
        ids.append(array("Q", [0, *range(unused, unused + count - 1)]))
        unused += count - 1
    rows.more["hash_ids"], rows.more["hash_block"] = ids, np.full(len(rows), prefix, dtype=np.int64)


def _ask_of_all(rows: Rows, settings: Settings) -> list[str]:
    """Apply keys to all rows: answers per request, and limits to rows without their own. Returns notices."""
    said = []
    if settings.n > 1:
        if (rows.column("n") != settings.n).any() and (rows.column("n") > 1).any():
            said.append(f"workload.n={settings.n} counts, not the n of the trace's own rows")
        rows.more["n"] = np.full(len(rows), settings.n)
        rows.more["use_beam_search"] = np.full(len(rows), settings.use_beam_search)
    for name in LIMITS:
        limit = getattr(settings, name)
        if limit is not None:
            own = rows.column(name)
            rows.more[name] = np.where(np.isnan(own), limit, own)
    return said


def _declared(spec: str, rows: Rows, max_model_len: int) -> Integers:
    """Each client's cap on output tokens: at most what `max_model_len` leaves, at least the true output length."""
    cap = np.minimum(declared_cap(spec, rows, max_model_len), max_model_len - rows.prompt_len)
    return np.maximum(cap, rows.output_len).astype(np.int64)


def make_requests(rows: Rows, arrival: Integers, declared: Integers) -> list[Request]:
    """One request per row, ids from 0; `arrival` in nanoseconds, `declared` in tokens, both int64[rows]."""
    outputs = rows.output_len.tolist()
    columns: dict[str, Any] = {
        "id": range(len(rows)),
        "arrival_ns": arrival.tolist(),
        "prompt_len": rows.prompt_len.tolist(),
        "output_len": outputs,
        **{name: BY_NAME[name].values(column) for name, column in rows.more.items()},
        # one int object for both
        "max_tokens": outputs if np.array_equal(declared, rows.output_len) else declared.tolist(),
    }
    last = max(place for place, name in enumerate(DEFAULTS) if name in columns)
    arguments = [columns.get(name) or repeat(default) for name, default in list(DEFAULTS.items())[: last + 1]]
    collecting = gc.isenabled()
    gc.disable()  # a million new objects and no garbage: the collector would take a third of the time
    try:
        return list(map(Request, *arguments))
    finally:
        if collecting:
            gc.enable()


def _counts(fitted: Fitted) -> dict[str, int]:
    return {"dropped_fit": fitted.dropped, "clipped": fitted.clipped, "scaled": fitted.scaled}


def _unused(settings: Settings, process: str) -> list[str]:
    """Notices about keys that are set and have no effect: a sweep over one would look like a result."""
    said = []
    if settings.rate is not None and process in ("burst", "closed_loop"):
        said.append(f"workload.rate={settings.rate:g} has no effect with arrival={process}")
    if settings.concurrency is not None and process != "closed_loop":
        said.append(f"workload.concurrency={settings.concurrency} has no effect with arrival={process}")
    if settings.arrival == "auto" and settings.time_scale != 1 and process == "burst":
        said.append(f"workload.time_scale={settings.time_scale:g} has no effect on requests that all arrive at once")
    return said


def _fewer(settings: Settings, requests: int) -> list[str]:
    """A notice if there are fewer requests than `num_requests`; `workload.limit` is only an upper bound."""
    if settings.duration_s is not None or settings.num_requests is None or requests >= settings.num_requests:
        return []
    limited = settings.limit is not None and requests >= settings.limit
    why = f"workload.limit={settings.limit}" if limited else f"{settings.path} has no more"
    return [f"workload.num_requests={settings.num_requests}, but there are {requests} requests: {why}"]


def _banner(notes: dict[str, Any]) -> str | None:
    changes = {
        "invalid": sum(notes["dropped_invalid"].values()),
        "longer than max_model_len and left out (workload.fit)": notes["dropped_fit"],
        "clipped": notes["clipped"],
        "scaled": notes["scaled"],
    }
    changed = sum(changes.values())
    if changed <= (_BANNER_SHARE * notes["rows_read"] if notes["path"] is None else 0):
        return None
    parts = ", ".join(f"{count} {what}" for what, count in changes.items() if count)
    return f"{changed} of {notes['rows_read']} rows of {notes['name']} were changed or left out: {parts}"
