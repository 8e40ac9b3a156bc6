"""What an engine's start says of its limits: lines of vLLM's log."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import HarnessError

# Key of `scheduler` → where vLLM says it. The last line wins: what was asked for stands before what came of it.
SAID = {
    "max_num_seqs": r"max_num_seqs['\"]?[:=]\s*(\d+)",
    "max_num_batched_tokens": r"max_num_batched_tokens['\"]?[:=]\s*(\d+)",
}


def limits_of(log: str | None) -> dict[str, int]:
    """The limits that a log tells, by key of `scheduler`.

    Raises:
        HarnessError: there is no such file, or it tells none.
    """
    if log is None:
        return {}
    try:
        text = Path(log).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise HarnessError(f"beside.log={log}: {error.strerror}") from None
    found = {key: re.findall(pattern, text) for key, pattern in SAID.items()}
    limits = {key: int(values[-1]) for key, values in found.items() if values}
    if not limits:
        raise HarnessError(f"beside.log={log}: it says nothing of {' or '.join(SAID)}, as vLLM does when it starts")
    return limits
