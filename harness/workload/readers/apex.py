"""APEX traces: Azure's names with a start offset in nanoseconds."""

from harness.workload.readers.format import NANOSECOND, Format

FORMATS = (
    Format(
        name="APEX",
        required=("ContextTokens", "GeneratedTokens", "StartTimeOffset"),
        columns={"prompt_len": "ContextTokens", "output_len": "GeneratedTokens"},
        times=(("StartTimeOffset", NANOSECOND),),
        untimed=False,
    ),
)
