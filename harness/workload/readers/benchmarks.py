"""Result files of serving benchmarks: `vllm bench serve`, SGLang's bench_serving, AIPerf and guidellm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.workload.errors import WorkloadError
from harness.workload.readers.format import ABSENT, NANOSECOND, SECOND, Choice, Format, LeftOut, Unreadable, Values


def _serving(values: Values, choice: Choice) -> Iterator[tuple[int, Any]]:
    """The requests of one run, in the order in which they were sent; a result's lists have one entry per request."""
    runs = [value for _, value in values]
    run = _chosen(runs, [_asked(run, ("dataset_name", "request_rate", "max_concurrency")) for run in runs], choice)
    lists = {name: run.get(name) for name in ("input_lens", "output_lens", "start_times", "errors")}
    lists = {name: found for name, found in lists.items() if isinstance(found, list)}
    if not {"input_lens", "output_lens"} <= set(lists):
        raise WorkloadError(f"{choice.path}: the file as a whole is {_SUMS}: {_AGAIN}")
    if len(set(map(len, lists.values()))) > 1:
        found = ", ".join(f"{len(entries)} {name}" for name, entries in lists.items())
        raise WorkloadError(f"{choice.path}: the file as a whole is damaged: it has {found}")
    failures = lists.pop("errors", None)
    for index in range(len(lists["input_lens"])):
        if failures and failures[index]:
            yield index + 1, Unreadable(f"the request failed: {str(failures[index])[:80]!r}")
        else:
            yield index + 1, {name: entries[index] for name, entries in lists.items()}


def _chosen(runs: Sequence[Any], called: Sequence[str], choice: Choice) -> Any:
    """The run with the number `workload.sample` (from 0); a single run needs no number."""
    if choice.sample is None and len(runs) > 1:
        known = ", ".join(f"{index}: {name}" for index, name in enumerate(called))
        raise WorkloadError(
            f"{choice.path}: the file as a whole holds {len(runs)} runs; workload.sample=N says which ({known})"
        )
    index = choice.sample or 0
    if index >= len(runs):
        raise WorkloadError(f"workload.sample={index}: {choice.path} holds {len(runs)} runs, counted from 0")
    if not isinstance(runs[index], dict):
        why = runs[index].why if isinstance(runs[index], Unreadable) else f"it is {str(runs[index])[:40]}"
        raise WorkloadError(f"{choice.path}: the file as a whole is damaged: run {index}: {why}")
    return runs[index]


def _asked(run: Any, names: Sequence[str]) -> str:
    found = run if isinstance(run, dict) else {}
    return " ".join(f"{name}={found[name]}" for name in names if found.get(name) is not None) or "?"


def _guidellm(values: Values, choice: Choice) -> Iterator[tuple[int, Any]]:
    """The requests of one benchmark of a report; those that failed or were cut off are faults."""
    found = [_inner(report, "benchmarks") for _, report in values]
    runs = [run for several in found if isinstance(several, list) for run in several]
    if not runs:
        raise WorkloadError(f"{choice.path}: the file as a whole is a guidellm report without benchmarks")
    called = [_asked(_inner(run, "config.strategy") or _inner(run, "args.strategy"), ("type_", "rate")) for run in runs]
    requests = _chosen(runs, called, choice).get("requests")
    groups = requests if isinstance(requests, dict) else {"successful": requests}
    number = 0
    for outcome, why in (("successful", ""), ("incomplete", "did not finish"), ("errored", "failed")):
        for request in groups.get(outcome) or []:
            number += 1
            flat = {name: _first(request, paths) for name, paths in _GUIDELLM.items()}
            yield number, Unreadable(f"the request {why} when it was measured") if why else flat


_GUIDELLM = {
    "request_start_time": ("request_start_time", "info.timings.request_start", "scheduler_info.request_start_time",
                           "scheduler_info.request_timings.request_start", "start_time"),
    "prompt_tokens": ("prompt_tokens", "input_metrics.total_tokens", "input_metrics.text_tokens"),
    "output_tokens": ("output_tokens", "output_metrics.total_tokens", "output_metrics.text_tokens"),
}  # fmt: skip


def _inner(value: Any, path: str) -> Any:
    """The value at a dotted path of nested objects; None if there is none."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _first(value: Any, paths: Sequence[str]) -> Any:
    return next((found for path in paths if (found := _inner(value, path)) is not None), ABSENT)


def _aiperf(values: Values, choice: Choice) -> Iterator[tuple[int, Any]]:
    """Records of AIPerf, one request each; warm-up is left out, requests that failed are faults."""
    for line, row in values:
        if not isinstance(row, dict):
            yield line, row
        elif "warm" in str(_first(row, ("metadata.benchmark_phase", "metadata.credit_phase"))):
            yield line, LeftOut("of the warm-up")
        elif row.get("error") or _inner(row, "metadata.was_cancelled"):
            why = _first(row, ("error.message", "error.type", "error"))
            yield line, Unreadable(f"the request failed or was cancelled: {str(why)[:80]!r}")
        else:
            metric = {name: _first(row, (f"metrics.{name}.value", f"metrics.{name}")) for name in _METRICS}
            said, thought = (metric.pop(name) for name in _METRICS[2:])
            if metric["output_sequence_length"] is ABSENT and isinstance(said, int):
                metric["output_sequence_length"] = said + (thought if isinstance(thought, int) else 0)
            start = _first(row, _AIPERF_START)
            session = _first(row, ("metadata.conversation_id", "metadata.x_correlation_id"))
            yield line, metric | {"request_start_ns": start, "conversation_id": session}


_AIPERF_START = ("metadata.request_start_ns", "metadata.timestamp_ns", "metrics.min_request_timestamp.value")
_METRICS = ("input_sequence_length", "output_sequence_length", "output_token_count", "reasoning_token_count")
_SUMS = "the sums of a benchmark without its requests"
_AIPERF_SUMS, _AIPERF_RECORDS = "a summary of AIPerf", "its requests are in profile_export.jsonl beside it"
_AGAIN = "repeat it with --save-detailed (vllm bench serve) or --output-details (SGLang)"
_SERVING = {
    "columns": {"prompt_len": "input_lens", "output_len": "output_lens"},
    "times": (("start_times", SECOND),),
    "unfold": _serving,
    "place": "request",
    "without_times": "of older results; workload.arrival=poisson with the run's request_rate as workload.rate is alike",
}  # fmt: skip

FORMATS = (
    Format(name="SGLang bench_serving", required=("dataset_name", "input_lens", "output_lens"), **_SERVING),  # type: ignore[arg-type]
    Format(name="vllm bench serve", required=("input_lens", "output_lens"), **_SERVING),  # type: ignore[arg-type]
    Format(
        name="AIPerf",
        required=("metadata", "metrics"),
        columns={
            "prompt_len": "input_sequence_length",
            "output_len": "output_sequence_length",
            "session": "conversation_id",
        },
        times=(("request_start_ns", NANOSECOND),),
        untimed=False,
        unfold=_aiperf,
    ),
    Format(
        name="guidellm",
        required=("benchmarks",),
        columns={"prompt_len": "prompt_tokens", "output_len": "output_tokens"},
        times=(("request_start_time", SECOND),),
        unfold=_guidellm,
        place="request",
    ),
    *(
        Format(name=name, required=required, instead=instead)
        for name, required, instead in (
            (_SUMS, ("completed", "total_output_tokens"), _AGAIN),
            (
                _SUMS,
                ("elapsed_time", "num_requests", "total_num_tokens"),
                "use `vllm bench serve` with --save-detailed",
            ),
            (_AIPERF_SUMS, ("request_latency", "request_throughput"), _AIPERF_RECORDS),
            (_AIPERF_SUMS, ("Metric", "avg", "p99"), _AIPERF_RECORDS),
            ("a raw profile of GenAI-Perf", ("experiments",), "it has no lengths in tokens; AIPerf's records have"),
            ("requests of OpenAI's batch API", ("custom_id", "body"), "no answers, so no output lengths, are in them"),
            (
                "the summary of a run of ours",
                ("system", "workload_notes"),
                "its requests are in workload.jsonl beside it",
            ),
        )
    ),
)
