"""Plain tables whose columns are recognised by name: `arrival_time,input_len,output_len` and all their relatives."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.workload.errors import WorkloadError
from harness.workload.fields import OPTIONAL
from harness.workload.readers.format import Format
from harness.workload.readers.names import unit_of, words

_SIZE = "(len|length|size|tokens|toks|(token|seq|sequence)_(len|length|count)|num_tokens)"
_PROMPT = re.compile(rf"((num|number|n)_)?(input|prompt|prefill|context|request|query|in)_{_SIZE}|isl")
_OUTPUT = re.compile(
    rf"((num|number|n)_)?(output|completion|response|generated|generation|gen|decode|answer|reply|out)_{_SIZE}|osl"
)
_UNIT = "(_(s|secs?|seconds|ms|milliseconds|us|microseconds|ns|nanoseconds))?"
_ARRIVAL = re.compile(rf"((request|req)_)?(arrival|arrived)(_(at|time|timestamp|ts|offset))?{_UNIT}")
_START = re.compile(
    rf"(timestamp|time|ts|t|(request|req|start|submit|submission|send|sent)_(at|time|timestamp|ts)){_UNIT}"
)
_SESSION = re.compile("(session|conversation|client|user|tenant|chat)(_id)?")
_OURS = {field.name for field in OPTIONAL}
TIMES = ("arrival_time", "arrival", "arrival_timestamp", "timestamp", "time", "request_time", "start_time")
SHOWN = "a prompt's and an answer's length (input_len, prompt_tokens ...; output_len, completion_tokens ...)"


def plain(path: str, header: Sequence[str], named: Sequence[str]) -> Format | None:
    """The format of a header by the names of its columns; None if the two lengths are not among them.

    Args:
        path: for messages.
        header: column names or keys.
        named: fields that `workload.columns` gives, so that they need not be found here.

    Raises:
        WorkloadError: several columns could be the same field.
    """
    spelt = {name: "_".join(words(name)) for name in header}

    def having(pattern: re.Pattern[str], field: str) -> str | None:
        found = [name for name, text in spelt.items() if pattern.fullmatch(text)]
        if len(found) > 1 and not any(name.startswith(field) for name in named):
            key = f"workload.columns={{{field}: {found[0]}}}"
            raise WorkloadError(f"{path}: {' and '.join(found)} could each be {field}: {key} says which")
        return found[0] if found else None

    prompt, output = having(_PROMPT, "prompt_len"), having(_OUTPUT, "output_len")
    if (prompt is None and "prompt_len" not in named) or (output is None and "output_len" not in named):
        return None
    arrival = having(_ARRIVAL, "arrival") or having(_START, "arrival")
    sessions = [name for name, text in spelt.items() if _SESSION.fullmatch(text)]
    columns = {"prompt_len": prompt or "", "output_len": output or ""}
    columns |= {text: name for name, text in spelt.items() if text in _OURS}
    return Format(
        name="plain columns",
        required=tuple(name for name in (prompt, output) if name),
        columns=({"session": sessions[0]} if len(sessions) == 1 else {}) | columns,
        times=((arrival, unit_of(arrival)),) if arrival else tuple((name, None) for name in TIMES),
    )
