"""The scheduler's limits as vLLM's log reports them at start-up."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import HarnessError

# Key of `scheduler` → its pattern in the log. The last match counts: requested values are logged before effective ones.
SAID = {
    "max_num_seqs": r"max_num_seqs['\"]?[:=]\s*(\d+)",
    "max_num_batched_tokens": r"max_num_batched_tokens['\"]?[:=]\s*(\d+)",
}


def limits_of(log: str | None) -> dict[str, int]:
    """The limits found in a log, by key of `scheduler`.

    Raises:
        HarnessError: there is no such file, or no limit in it.
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
