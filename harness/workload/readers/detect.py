"""Tells a trace's format by its header or keys, and says what a file is not."""

from __future__ import annotations

import difflib

from harness.workload.errors import WorkloadError
from harness.workload.readers import (
    apex,
    azure,
    burstgpt,
    castillo,
    kvlab,
    llmservingsim,
    mooncake,
    servegen,
    text,
    vidur,
    vtc,
)
from harness.workload.readers.format import Format
from harness.workload.readers.source import Source

_FAMILIES = (kvlab, azure, mooncake, burstgpt, vidur, llmservingsim, text, vtc, servegen, apex, castillo)
KNOWN: tuple[Format, ...] = tuple(layout for family in _FAMILIES for layout in family.FORMATS)
_ALIKE = 0.6  # of 1: below, naming a nearest format would mislead


def detect(source: Source) -> Format:
    """The format whose required names the file has all; the one that requires most, where several do.

    Raises:
        WorkloadError: none; the message shows how the file begins, the nearest format and all known ones.
    """
    fits = [layout for layout in KNOWN if set(layout.required) <= set(source.header)]
    if fits:
        return max(fits, key=lambda layout: len(layout.required))
    known = "".join(f"\n  {layout.name}: {', '.join(layout.required)}" for layout in KNOWN)
    raise WorkloadError(
        f"{source.path}:{source.first_line}: not a trace: it begins with {source.first_text!r}"
        f"{_nearest(source.header)}. Known kinds and the names they must have:{known}"
    )


def _nearest(header: list[str]) -> str:
    """Which format the header most resembles and what it lacks for it; nothing when it resembles none."""
    seen = [name.lower()[:60] for name in header]

    def likeness(layout: Format) -> float:
        best = [
            max((difflib.SequenceMatcher(None, name.lower(), other).ratio() for other in seen), default=0.0)
            for name in layout.required
        ]
        return sum(best) / len(best)

    if seen and all(_is_number(name) for name in seen):
        return " and has no line of column names"
    nearest = max(KNOWN, key=likeness)
    if likeness(nearest) < _ALIKE:
        return ""
    lacking = ", ".join(name for name in nearest.required if name not in header)
    return f"; the nearest kind is {nearest.name}, for which it lacks {lacking}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
