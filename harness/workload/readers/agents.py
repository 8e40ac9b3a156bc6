"""Traces of agents as LMCache publishes them: text of every call, or tokens of every round of a session."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from harness.workload.readers.format import ABSENT, Choice, Columns, Format, Unreadable, Values
from harness.workload.readers.text import BLOCK, lengths, text_format, text_of

_SAID = {"text", "reasoning", "tool_call", "usage_report"}  # events of the model; a round begins before them
LONGEST = 10_000_000  # tokens of a round; each of its pieces gets an id, so a slip would fill the memory
_NOTE = (
    "a round shares `prefix_tokens` with the round before it; the prefix of a session's first round is taken to be the "
    "same in all sessions of its model"
)


def _calls(columns: Columns, choice: Choice) -> Columns:
    """The prompt is a call's whole input; the answer is a text, or its length is given."""
    answers = [
        text_of(output) if length is ABSENT or length is None else length
        for output, length in zip(columns["output"], columns["output_length"], strict=True)
    ]
    return lengths([text_of(value) for value in columns["input"]], answers)


def _rounds(values: Values, choice: Choice) -> Iterator[tuple[int, Any]]:
    """Rounds with the ids of their pieces: those that `prefix_tokens` fill are shared with the session's last round."""
    unused = count()
    last: dict[tuple[str, ...], list[int]] = {}
    common: dict[str, list[int]] = {}
    for line, row in values:
        if not isinstance(row, dict):
            yield line, row
            continue
        total, prefix = row.get("input_tokens_total"), row.get("prefix_tokens")
        flat = {name: row.get(name, ABSENT) for name in ("session_id", "input_tokens_total", "output_tokens")}
        flat["timing_events"] = _begin(row.get("timing_events"))
        if isinstance(total, int) and isinstance(prefix, int):
            if not 0 <= prefix <= total:
                yield line, Unreadable(f"prefix_tokens is {prefix} of {total} input_tokens_total")
                continue
            if total > LONGEST:
                yield line, Unreadable(f"input_tokens_total is {total}, more than {LONGEST}")
                continue
            session = tuple(str(row.get(name)) for name in ("provider", "project", "session_id", "session_file"))
            before = last.get(session)
            if before is None:
                before = common.setdefault(str(row.get("model")), [])
                before += [next(unused) for _ in range(prefix // BLOCK - len(before))]
            kept = before[: prefix // BLOCK]
            ids = kept + [next(unused) for _ in range(-(-total // BLOCK) - len(kept))]
            flat["hash_ids"] = last[session] = ids
        yield line, flat


def _begin(events: Any) -> Any:
    """When a round is sent: the time of the last input event before the model's first one."""
    if not isinstance(events, list):
        return ABSENT
    stamps = [(str(event.get("event_type")), event.get("timestamp")) for event in events if isinstance(event, dict)]
    waited = [stamp for kind, stamp in stamps if kind not in _SAID and isinstance(stamp, str)]
    said = [stamp for _, stamp in stamps if isinstance(stamp, str)]
    return max(waited) if waited else min(said, default=ABSENT)


FORMATS = (
    *(
        text_format(
            "LMCache agent calls",
            ("session_id", "input", answer),
            _calls,
            ("output", "output_length"),
            session="session_id",
        )
        for answer in ("output", "output_length")
    ),
    Format(
        name="agent rounds",
        required=("session_id", "input_tokens_total", "prefix_tokens", "output_tokens"),
        columns={
            "prompt_len": "input_tokens_total",
            "output_len": "output_tokens",
            "session": "session_id",
            "hash_ids": "hash_ids",
        },
        times=(("timing_events", None),),
        default_block=BLOCK,
        unfold=_rounds,
        note=_NOTE,
    ),
)
