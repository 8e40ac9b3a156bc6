"""Our own traces, CSV or JSONL, as `export` writes them and as a person would."""

from harness.workload.fields import FIELDS
from harness.workload.readers.format import NANOSECOND, SECOND, Format

FORMATS = (
    Format(
        name="kvlab",
        required=("prompt_len", "output_len"),
        columns={field.name: field.name for field in FIELDS if field.kind != "time"},
        times=(("arrival_ns", NANOSECOND), ("arrival_s", SECOND)),
        keep_origin=True,
    ),
)
