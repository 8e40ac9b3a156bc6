"""The fields of a request, declared once for readers, `workload.columns`, export and the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as attributes
from typing import Any, Literal

import numpy as np

from schedulers.request import Request

Kind = Literal["time", "length", "whole", "limit", "flag", "text", "ids"]
_SIXTY_FOUR_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Field:
    """One attribute of `Request`, from the column of a trace to the column of an export.

    Attributes:
        name: of the attribute, of the column in our own traces, and in `workload.columns`.
        kind: what a value must be. time: not negative; length: tokens, at least 1; whole: a whole number from `least`;
            limit: milliseconds above 0; flag: true or false; text; ids: a list of whole numbers.
        blank: the value of a row that does not set the field (a length or a time is always set).
        least, most: bounds of a whole number or of an id.
        code: array type code of ids.
    """

    name: str
    kind: Kind
    blank: Any = None
    least: int = 1
    most: int = 2**31 - 1
    code: str = ""

    def column(self, count: int) -> Any:
        """A column of `count` blanks."""
        if self.kind in ("text", "ids"):
            return [self.blank] * count
        return np.full(count, self.blank)

    def values(self, column: Any) -> list[Any]:
        """A checked column as values of requests; a blank becomes the default of `Request`."""
        found: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column
        return [None if math.isnan(value) else value for value in found] if self.kind == "limit" else found

    def text(self, value: Any) -> str:
        """A value of a request as JSON."""
        if self.kind in ("time", "length", "whole"):
            return str(value)
        return f"[{','.join([str(int(item)) for item in value])}]" if self.kind == "ids" else json.dumps(value)

    def cell(self, value: Any) -> str:
        """A value of a request as CSV; an empty cell for none."""
        if self.kind == "ids":
            return "" if value is None else " ".join([str(int(item)) for item in value])
        if value is None or value == self.blank:
            return ""
        return value if self.kind == "text" else self.text(value)


FIELDS = (  # in the order of an export
    Field("arrival_ns", "time"),
    Field("prompt_len", "length"),
    Field("output_len", "length"),
    Field("max_tokens", "whole", blank=0),
    Field("session", "text", blank=""),
    Field("priority", "whole", blank=0, least=-(2**31)),
    Field("n", "whole", blank=1),
    Field("use_beam_search", "flag", blank=False),
    Field("ttft_slo_ms", "limit", blank=math.nan),
    Field("tpot_slo_ms", "limit", blank=math.nan),
    Field("deadline_ms", "limit", blank=math.nan),
    Field("hash_block", "whole", blank=0),
    Field("hash_ids", "ids", least=-(2**63), most=_SIXTY_FOUR_BITS, code="Q"),  # tokens an id stands for: hash_block
    Field("token_ids", "ids", least=0, code="i"),
)
BY_NAME: Mapping[str, Field] = {field.name: field for field in FIELDS}
OPTIONAL = tuple(field for field in FIELDS if field.kind not in ("time", "length"))
LIMITS = tuple(field.name for field in FIELDS if field.kind == "limit")
DEFAULTS: Mapping[str, Any] = {item.name: item.default for item in attributes(Request)}  # in the constructor's order
