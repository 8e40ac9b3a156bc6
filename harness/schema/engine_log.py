"""`kv_slots=from_log:FILE`: the size of the KV pool as an engine said it when it started.

An engine finds that size by a profiling run, so no formula tells it as well as its own log.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from harness.files import missing

WORD = "from_log:"
# Wording → engine. A pool in blocks says nothing of how long a block is.
SAID = {
    r"GPU KV cache size: ([\d,]+) tokens": "vLLM",
    r"\bmax_total_num_tokens=([\d,]+)": "SGLang",
}
BLOCKS = r"# (?:GPU|cuda) blocks: ([\d,]+)"  # of vLLM's first engine
MOST_BYTES = 2**20  # of a line: what has longer ones is no log
HOW = "no line says “GPU KV cache size: N tokens” (vLLM) or “max_total_num_tokens=N” (SGLang)"


@dataclass(frozen=True)
class FromLog:
    """`from_log:FILE`, read as the number of tokens that the file names."""

    def __str__(self) -> str:
        return "from_log:FILE, the log of an engine"

    def read(self, value: Any) -> int:
        if not isinstance(value, str) or not value.startswith(WORD):
            raise ValueError
        path = os.path.expanduser(value.removeprefix(WORD))
        if said := missing(path):
            raise ValueError(said)
        try:
            found, blocks = _sizes(path)
        except OSError as error:
            raise ValueError(f"{path} can't be read: {error.strerror}") from None
        if len(found) == 1:
            return next(iter(found))
        if found:
            told = ", ".join(f"{size:,} in line {line}" for size, line in list(found.items())[:3])
            raise ValueError(f"{path} names several sizes ({told}): set kv_slots to the one that is meant")
        if blocks:
            raise ValueError(f"{path} counts blocks ({blocks:,}): set kv_slots to as many times its block size")
        raise ValueError(f"{path}: {HOW}")


def _sizes(path: str) -> tuple[dict[int, int], int]:
    """(sizes in tokens with the line of each, blocks where those are counted). Ranks say the same several times."""
    found: dict[int, int] = {}
    blocks = 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_BYTES), ""), 1):
            for pattern in SAID:
                if match := re.search(pattern, line):
                    found.setdefault(_whole(match[1]), number)
            if match := re.search(BLOCKS, line):
                blocks = _whole(match[1])
    return {size: line for size, line in found.items() if size}, blocks


def _whole(text: str) -> int:
    digits = text.replace(",", "")
    return int(digits) if digits else 0
